"""The scan of a diagonal linear recurrence, real or complex: h_t = f_t h_{t−1} + a_t, each number by itself.

Its adjoint is the same scan backwards, g_t = ∂loss/∂h_t + conj(f_{t+1}) g_{t+1}: ∂a = g and ∂f_t = g_t conj(h_{t−1}).
So one function that runs in either direction is its own derivative, of any order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.tracing import traceless
from lipschitz_rnn.ops.common.triton import support
from lipschitz_rnn.ops.common.vmap import run_folded
from lipschitz_rnn.ops.linear.reference import reference

BACKENDS = ("auto", "torch", "triton")
KERNEL_DTYPES = (torch.float32, torch.complex64)


def linear_scan(factors: Tensor, added: Tensor, start: Tensor, *, backend: str = "auto") -> Tensor:
    """States (T, B, N) of h⁺ = f ⊙ h + a, each after its step.

    On a GPU one kernel reads a and writes h once. Elsewhere, and for further dtypes, forward mode and `torch.compile`,
    neighbouring steps are joined in about 2 log₂ T parallel operations.

    Args:
        factors: f, (T, B, N), with 1 in place of a size that all share.
        added: a, (T, B, N), real or complex like the factors.
        start: h before the first step, (B, N).
        backend: "triton" (float32 and complex64 on CUDA), "torch" (anywhere), or "auto".
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    served = added.dtype in KERNEL_DTYPES and factors.dtype == added.dtype == start.dtype
    if backend == "auto":
        backend = "triton" if served and added.numel() > 0 and traceless() and _has_kernels(added) else "torch"
    elif backend == "triton" and not (served and (support.interpreting() or _has_kernels(added))):
        raise ValueError("backend 'triton' serves float32 and complex64 on NVIDIA GPUs; use backend='auto'")
    if backend == "torch":
        return reference(factors, added, start)
    with without_autocast(added.device):
        scanned: Tensor = LinearScan.apply(factors.unsqueeze(0), added.unsqueeze(0), start.unsqueeze(0), False)
        return scanned.squeeze(0)


class LinearScan(torch.autograd.Function):
    """S scans at once: factors (S, T, B, N), with 1 for a shared size, added (S, T, B, N), start (S, B, N).

    Backwards it is h_t = f_{t+1} h_{t+1} + a_t, and ``start`` counts as zero.
    """

    @staticmethod
    def forward(factors: Tensor, added: Tensor, start: Tensor, backwards: bool) -> Tensor:
        from lipschitz_rnn.ops.linear.triton import kernels as kernels

        return kernels.scan(factors, added, start, backwards)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        factors, _, start, ctx.backwards = inputs
        ctx.save_for_backward(factors, start, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factors, start, states = ctx.saved_tensors
        of_factors = of_start = None
        with without_autocast(grad.device):
            d = LinearScan.apply(factors.conj(), grad, torch.zeros_like(start), not ctx.backwards)
            if ctx.needs_input_grad[0]:
                # On the way to h_t, f_t multiplies what was before it: h_{t−1}; backwards f_{t+1} multiplies h_{t+1}.
                one, other = (states[:, 1:], d[:, :-1]) if ctx.backwards else (d[:, 1:], states[:, :-1])
                first = torch.zeros_like(d[:, :1]) if ctx.backwards else d[:, :1] * start.unsqueeze(1).conj()
                terms = one.conj() * other if ctx.backwards else one * other.conj()
                if factors.shape[1] == 1:  # no copy of all terms
                    of_factors = first.sum_to_size(factors.shape) + terms.sum_to_size(factors.shape)
                else:
                    of_factors = torch.cat([first, terms], 1).sum_to_size(factors.shape)
            if ctx.needs_input_grad[2] and not ctx.backwards:
                of_start = factors[:, 0].conj() * d[:, 0]
        return of_factors, d, of_start, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        (found,), (axis,) = run_folded(lambda *given: (LinearScan.apply(*given),), info, in_dims, args)
        return found, axis


def _has_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda and support.triton_installed() and support.gpu_limits(tensor.device)[0] is None
