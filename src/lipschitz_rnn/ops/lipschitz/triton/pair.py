"""Symmetric-skew matrices where the kernels need them: formed from M while the operands are written.

    A = M + f Mᵀ − γI,  and likewise W

One launch writes the left operands of both scans, and one adds the partial sums of the gradients of A and W and turns
them into those of M. The matrices are rounded as PyTorch's own operations round them, so a network computes with what
``hidden_matrices()`` returns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.triton.gradients import add_input_sums
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


class PairSums:
    """∂M = ∂A + f ∂Aᵀ, and likewise for W, from partial sums of ∂A and ∂W, and ∂U and ∂b where there are sums of them.

    Args:
        shape: of the partial sums of the matrices, (1, sums, 2N, N).
        tiles: how many partial sums the input map has, for inputs of one feature; 0 if it has none.
        factors: f of A and of W.
        dtype: of all gradients.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        tiles: int,
        alpha: float,
        factors: tuple[float, float],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        _, count, _, N = shape
        across = divide_up(N, _TILE)
        grid = (across * across, 3 if tiles else 2, 1)
        constants = (_TILE, _AT_ONCE, power_of_two(N))
        self._launch = Launch(_sums_kernel, grid, (count, tiles, N, alpha, *factors), constants, num_warps=4)
        self._new_matrix = allocator((N, N), dtype, device)
        self._new_U, self._new_b = allocator((N, 1), dtype, device), allocator((N,), dtype, device)

    def __call__(self, sums: Tensor, input_sums: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        M_A, M_W = self._new_matrix(), self._new_matrix()
        if input_sums is None:
            self._launch(sums, sums, M_A, M_W, M_A, M_A)  # any tensor may stand where none is written
            return M_A, M_W, None, None
        grad_U, grad_b = self._new_U(), self._new_b()
        self._launch(sums, input_sums, M_A, M_W, grad_U, grad_b)
        return M_A, M_W, grad_U, grad_b


# A side of the tiles, and how many partial sums are loaded at a time. Reading them is all latency: small tiles on many
# multiprocessors, and few turns with many loads in flight, take less time than long rows.
_TILE, _AT_ONCE = 8, 64
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


@triton.jit(do_not_specialize=["count", "tiles"])
def _sums_kernel(
    sums, input_sums, M_A, M_W, grad_U, grad_b, count, tiles, N, alpha, factor_A, factor_W,
    TILE: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of ∂M and the one across its diagonal, of A or of W; or after those ∂U and ∂b."""
    across, half = tl.cdiv(N, TILE), tl.program_id(1)
    row, column = tl.program_id(0) // across, tl.program_id(0) % across
    i, j = row * TILE + tl.arange(0, TILE), column * TILE + tl.arange(0, TILE)
    if half == 2:
        if tl.program_id(0) == 0:
            n = tl.arange(0, BLOCK)
            add_input_sums(input_sums, grad_U, grad_b, tiles, N, n, n < N)
    elif row <= column:
        upper, lower = _added(sums + half * N * N, i, j, count, N, TILE, AT_ONCE)
        if half == 0:
            _store_both(M_A, alpha * upper, alpha * lower, i, j, factor_A, N)
        else:
            _store_both(M_W, upper, lower, i, j, factor_W, N)


@triton.jit
def _added(sums, i, j, count, N, TILE: tl.constexpr, AT_ONCE: tl.constexpr):
    """The partial sums added up: rows i and columns j, and rows j and columns i.

    Every thread adds its own numbers until the end; threads meet once.
    """
    index = tl.arange(0, AT_ONCE)[:, None, None]
    upper_inside = (i < N)[None, :, None] & (j < N)[None, None, :]
    lower_inside = (j < N)[None, :, None] & (i < N)[None, None, :]
    place = sums + index * 2 * N * N
    upper_place = place + i[None, :, None] * N + j[None, None, :]
    lower_place = place + j[None, :, None] * N + i[None, None, :]
    upper = tl.zeros((AT_ONCE, TILE, TILE), tl.float32)
    lower = tl.zeros((AT_ONCE, TILE, TILE), tl.float32)
    for start in range(0, count, AT_ONCE):
        valid, step = start + index < count, start * 2 * N * N
        upper += tl.load(upper_place + step, mask=upper_inside & valid, other=0.0)
        lower += tl.load(lower_place + step, mask=lower_inside & valid, other=0.0)
    return tl.sum(upper, 0), tl.sum(lower, 0)


@triton.jit
def _store_both(M, upper, lower, i, j, factor, N):
    inside = (i < N)[:, None] & (j < N)[None, :]
    tl.store(M + i[:, None] * N + j[None, :], upper + factor * tl.trans(lower), mask=inside)
    tl.store(M + j[:, None] * N + i[None, :], lower + factor * tl.trans(upper), mask=tl.trans(inside))
