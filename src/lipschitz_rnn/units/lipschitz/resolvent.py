"""(I + H)⁻¹ for an H whose symmetric part is not negative: by elimination, or by matrix products alone.

A GPU eliminates row after row, which takes milliseconds for N = 128, whatever the number of networks. A product of such
matrices takes microseconds. So there the inverse comes from a fixed number of products, and the host waits for nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.units.lipschitz.rounding import LARGEST_NORM

# Where float64 is as fast as float32: A100, H100 and H200, B200. Others eliminate from this size on, because about
# 36 products of N³ terms then take longer.
_FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))
_LARGEST_ELSEWHERE = 192

# PyTorch factorizes a batch in several threads, in which MKL fails from a size between 128 and 151 on: it reports wrong
# pivots, returns wrong numbers or hangs (pytorch/pytorch#142815). Larger matrices are inverted one by one.
_LARGEST_IN_THREADS = 64


def by_elimination(M: Tensor) -> Tensor:
    """M⁻¹ for (…, N, N), without a check that a GPU would have to wait for; a singular M gives NaN or infinity."""
    size = M.shape[-1]
    if M.dim() > 2 and size > _LARGEST_IN_THREADS and M.device.type == "cpu" and torch.get_num_threads() > 1:
        each = [torch.linalg.inv_ex(one)[0] for one in M.reshape(-1, size, size).unbind()]
        return torch.stack(each).reshape(M.shape)
    inverse: Tensor = torch.linalg.inv_ex(M)[0]
    return inverse


def by_products(M: Tensor) -> Tensor:
    """M⁻¹ for (…, N, N) by Newton's iteration X ← cX(2I − cMX), with about 36 products.

    Needs M + Mᵀ ≽ 2I and a Frobenius norm of at most :func:`largest_norm`, which a contracting pair guarantees. Then
    the singular values of M are at least 1, and from X = Mᵀ/‖M‖_F² the eigenvalues of MX lie between 1/``largest``²
    and 1. Each factor c widens the next interval as much as possible: its lower end grows fourfold, not twofold. The
    last two steps have c = 1 and correct the rounding of all before: they leave MX = I + E with E as small as the
    rounding of one product MX.
    """
    size = M.shape[-1]
    M = M.reshape(-1, size, size)
    norm = torch.linalg.vector_norm(M, dim=(-2, -1), keepdim=True)
    X = M.mT / norm.square()
    for factor in _factors(size):
        X = torch.baddbmm(X, X, torch.bmm(M, X), beta=2.0 * factor, alpha=-(factor**2))
    return X


def inverse(M: Tensor) -> Tensor:
    """M⁻¹ for (…, N, N) by the faster way; :func:`by_products` says which M are allowed."""
    return by_products(M).reshape(M.shape) if prefers_products(M.device, M.shape[-1]) else by_elimination(M)


def traced_inverse(M: Tensor) -> Tensor:
    """The same in a compiled program. On a GPU one operator makes the choice when it runs, and has its own gradient."""
    inverse: Tensor = inverse_operator(M) if M.device.type == "cuda" else by_elimination(M)
    return inverse


@torch.library.custom_op("lipschitz_rnn::inverse", mutates_args=())
def inverse_operator(M: Tensor) -> Tensor:
    return inverse(M).contiguous()


@inverse_operator.register_fake
def _(M: Tensor) -> Tensor:
    return M.new_empty(M.shape)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    (X,) = ctx.saved_tensors
    return -(X.mT @ gradient @ X.mT)


inverse_operator.register_autograd(_backward, setup_context=_keep)


@inverse_operator.register_vmap
def _(info: Any, in_dims: tuple[int], M: Tensor) -> tuple[Tensor, int]:
    return inverse_operator(M.movedim(in_dims[0], 0)), 0


def prefers_products(device: torch.device, size: int) -> bool:
    """Whether products are faster than an elimination."""
    if device.type != "cuda":
        return False
    return size <= _LARGEST_ELSEWHERE or torch.cuda.get_device_capability(device) in _FAST_FLOAT64


def largest_norm(size: int) -> float:
    """A bound on ‖I + H‖_F for a pair whose rotation and feedback have at most ``LARGEST_NORM``, and a leak of 2."""
    return 1.001 * (LARGEST_NORM + 2.0 * math.sqrt(size))


@lru_cache
def _factors(size: int) -> tuple[float, ...]:
    """The factors c, from the smallest eigenvalue that MX may have: 2/(1 + l) maps [l, 1] onto [4l/(1 + l)², 1]."""
    low, factors = largest_norm(size) ** -2, []
    while 1.0 - low > 1e-4:
        factors.append(2.0 / (1.0 + low))
        low = 4.0 * low / (1.0 + low) ** 2
    return *factors, 1.0, 1.0
