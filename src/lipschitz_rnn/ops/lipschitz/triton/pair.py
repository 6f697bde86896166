"""Symmetric-skew matrices where the kernels need them: formed from M while the operands are written.

    A = M + f Mᵀ − γI,  and likewise W

One launch writes the left operands of both scans, and one turns the gradients of A and W into those of M. The matrices
are rounded as PyTorch's own operations round them, so a network computes with what ``hidden_matrices()`` returns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.triton.launching import Launch, allocator, divide_up, power_of_two
from lipschitz_rnn.ops.common.triton.products import round_to_operand
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan

_OPERANDS = {"tf32": torch.float32, "fp16": torch.float16}  # others: bfloat16


class PairOperands:
    """[αA; W], (parts, 2·padded, padded), and with ``both`` [αAᵀ Wᵀ], (parts, padded, 2·padded), of one network.

    Args:
        strides: two of M_A, then two of M_W.
        maps: f and γ for A, then for W.
        dtype: in which A and W are used; narrower than that of M under autocast.
    """

    def __init__(
        self,
        plan: LaunchPlan | CudaPlan,
        N: int,
        alpha: float,
        strides: tuple[int, int, int, int],
        maps: tuple[float, float, float, float],
        dtype: torch.dtype,
        device: torch.device,
        both: bool,
    ) -> None:
        padded, parts = plan.padded, plan.parts
        kept = _OPERANDS.get(plan.precision, torch.bfloat16)
        self._new_forward = allocator((parts, 2 * padded, padded), kept, device)
        self._new_backward = allocator((parts, padded, 2 * padded), kept, device) if both else None
        tile = min(32, power_of_two(padded))
        tiles = divide_up(padded, tile)
        constants = (plan.precision, parts, _NAMES[dtype], both, tile)
        numbers = (N, alpha, padded, *maps, *strides)
        self._launch = Launch(_operands_kernel, (tiles * tiles, 2, 1), numbers, constants)

    def __call__(self, M_A: Tensor, M_W: Tensor) -> tuple[Tensor, Tensor | None]:
        forward = self._new_forward()
        if self._new_backward is None:
            self._launch(M_A, M_W, forward, forward)
            return forward, None
        backward = self._new_backward()
        self._launch(M_A, M_W, forward, backward)
        return forward, backward


class PairGradients:
    """∂M = ∂A + f ∂Aᵀ, and likewise for W, in ``dtype``, from contiguous (1, N, N) in float32."""

    def __init__(self, N: int, factors: tuple[float, float], dtype: torch.dtype, device: torch.device) -> None:
        tile = min(32, max(16, power_of_two(N)))
        tiles = divide_up(N, tile)
        self._new_matrix = allocator((N, N), dtype, device)
        self._launch = Launch(_gradients_kernel, (tiles * tiles, 2, 1), (N, *factors), (tile,))

    def __call__(self, grad_A: Tensor, grad_W: Tensor) -> tuple[Tensor, Tensor]:
        M_A, M_W = self._new_matrix(), self._new_matrix()
        self._launch(grad_A, grad_W, M_A, M_W)
        return M_A, M_W


_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@triton.jit
def _operands_kernel(
    M_A, M_W, forward, backward, N, alpha, padded, factor_A, gamma_A, factor_W, gamma_W, A_i, A_j, W_i, W_j,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr, BOTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of A or W, from that of M and the one across its diagonal."""
    tiles = tl.cdiv(padded, TILE)
    half = tl.program_id(1)
    i = ((tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE))[:, None]
    j = ((tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE))[None, :]
    mask = (i < N) & (j < N)
    if half == 0:
        S = _skew(M_A, i, j, A_i, A_j, factor_A, gamma_A, mask)
        S = _rounded(S, DTYPE) * alpha
    else:
        S = _skew(M_W, i, j, W_i, W_j, factor_W, gamma_W, mask)
        S = _rounded(S, DTYPE)
    inside = (i < padded) & (j < padded)
    for part in tl.static_range(PARTS):
        piece = round_to_operand(S, PRECISION)
        start = part * 2 * padded * padded
        tl.store(forward + start + (half * padded + i) * padded + j, piece, mask=inside)
        if BOTH:
            tl.store(backward + start + j * (2 * padded) + half * padded + i, piece, mask=inside)
        S -= piece.to(tl.float32)


@triton.jit
def _skew(M, i, j, M_i, M_j, factor, gamma, mask):
    """M + f Mᵀ − γI of a tile, zero outside of the matrix; each step rounded to the dtype of M."""
    own = tl.load(M + i * M_i + j * M_j, mask=mask, other=0.0).to(tl.float32)
    across = tl.load(M + j * M_i + i * M_j, mask=mask, other=0.0).to(tl.float32)
    S = (own + factor * across).to(M.dtype.element_ty).to(tl.float32)
    return tl.where((i == j) & mask, (S - gamma).to(M.dtype.element_ty).to(tl.float32), S)


@triton.jit
def _rounded(S, DTYPE: tl.constexpr):
    if DTYPE == "bfloat16":
        S = S.to(tl.bfloat16).to(tl.float32)
    elif DTYPE == "float16":
        S = S.to(tl.float16).to(tl.float32)
    return S


@triton.jit
def _gradients_kernel(grad_A, grad_W, M_A, M_W, N, factor_A, factor_W, TILE: tl.constexpr):
    tiles = tl.cdiv(N, TILE)
    i = ((tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE))[:, None]
    j = ((tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE))[None, :]
    mask = (i < N) & (j < N)
    if tl.program_id(1) == 0:
        own, across = tl.load(grad_A + i * N + j, mask=mask), tl.load(grad_A + j * N + i, mask=mask)
        tl.store(M_A + i * N + j, own + factor_A * across, mask=mask)
    else:
        own, across = tl.load(grad_W + i * N + j, mask=mask), tl.load(grad_W + j * N + i, mask=mask)
        tl.store(M_W + i * N + j, own + factor_W * across, mask=mask)
