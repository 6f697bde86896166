"""Gradients of the matrices and of the input map: products over all steps and samples, after the backward scan.

The axis that is summed over is long (T·B) and the result small, so it is split among programs. Each writes a partial
sum, and partial sums are added in a fixed order: same input, same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.triton.launching import Launch, allocator, divide_up, on_device, power_of_two
from lipschitz_rnn.ops.common.triton.products import round_to_operand

PROGRAMS = 264  # two for each multiprocessor of a large GPU


class MatrixSums:
    """Products summed over steps and samples, as partial sums: (S, sums, rows, columns) in float32.

    For the matrices [κ; d] Hᵀ with 2N rows and N columns, for the input map d xᵀ with N rows and p columns.

    Args:
        shape: (S, rows, columns).
        pairs: the sizes of each pair: T, B, three strides of the left factor, (S, T, B, rows), and three of the right
            one, (S, T, B, columns), then where in its tensor each of the two begins. The last axis is contiguous.
        ones: adds a column: the left factor, summed alone.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        pairs: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        precision: str,
        device: torch.device,
        ones: bool = False,
    ) -> None:
        S, high, wide = shape
        single = dtype == torch.float32
        if precision == "tf32":
            precision = "bf16x3"  # both operands lie the wrong way round for TF32, and turning them takes longer
        # Smaller blocks would leave the warp-group instructions, and six passes do not compile without them.
        least = 64 if precision == "bf16x6" else 32
        rows, columns = (min(128, max(least, power_of_two(size))) for size in (high, wide + ones))
        inner = 32 if single else 64
        tiles = divide_up(high, rows) * divide_up(wide + ones, columns)
        plans = [_split(T * B, inner, S * tiles) for T, B, *_ in pairs]
        count = sum(splits for splits, _ in plans)
        self.shape, self._launches, first = (S, count, high, wide + ones), [], 0
        for (T, B, *strides), (splits, length) in zip(pairs, plans, strict=True):
            numbers = (T * B, B, high, wide, length, first, count, *strides)
            launch = Launch(
                _gradient_kernel, (splits, tiles, S), numbers, (precision, rows, columns, inner, single, ones),
                num_warps=8 if rows >= 128 else 4, num_stages=1 if single else 3,
            )  # fmt: skip
            self._launches.append(launch)
            first += splits
        self._new_sums = allocator(self.shape, torch.float32, device)

    def __call__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        sums = self._new_sums()
        for launch, (left, right) in zip(self._launches, pairs, strict=True):
            launch(left, right, sums)
        return sums


def matrix_partial_sums(pairs: Sequence[tuple[Tensor, Tensor]], precision: str, ones: bool = False) -> Tensor:
    """The same for pairs of tensors, (S, T, B, rows) and (S, T, B, columns)."""
    sizes = tuple((*left.shape[1:3], *left.stride()[:3], *right.stride()[:3], 0, 0) for left, right in pairs)
    left, right = pairs[0]
    shape = (left.shape[0], left.shape[3], right.shape[3])
    with on_device(left):
        return _matrix_sums(shape, sizes, left.dtype, precision, left.device, ones)(pairs)


_matrix_sums = lru_cache(maxsize=1024)(MatrixSums)


def _split(length: int, inner: int, others: int) -> tuple[int, int]:
    """Parts of the long axis, and the length of each: enough of them to fill the chip, each worth its launch."""
    splits = max(1, min(divide_up(length, 4 * inner), PROGRAMS // others))
    part = divide_up(divide_up(length, splits), inner) * inner
    return divide_up(length, part), part


@triton.jit(do_not_specialize=["L", "length", "first", "count"])
def _gradient_kernel(
    left, right, sums, L, B, high, wide, length, first, count, left_s, left_t, left_b, right_s, right_t, right_b,
    left_start, right_start,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, AHEAD: tl.constexpr,
    ONES: tl.constexpr,
):  # fmt: skip
    """ROWS of the left factor's and COLUMNS of the right one's, over ``length`` of the L samples.

    With ONES the right factor has one more column, all ones.

    AHEAD loads into registers a turn before the values are used. Triton's own pipeline, which is better for half
    precision, copies what has to be rounded on its way to the tensor cores four bytes at a time.
    """
    split, tile = tl.program_id(0), tl.program_id(1)
    network = tl.program_id(2).to(tl.int64)
    full = wide + 1 if ONES else wide
    across = tl.cdiv(full, COLUMNS)
    m = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    m_mask, n_mask = m < high, n < wide
    ones = (n == wide) if ONES else (n < 0)
    left += left_start + network * left_s
    right += right_start + network * right_s
    # Sample r is step r // B, sample r % B of its batch. A division in every turn would cost more than the product, so
    # places move on by what INNER samples make, and by the rest of a step where that passes the end of the batch.
    start = split.to(tl.int64) * length
    r = tl.arange(0, INNER)
    last = tl.minimum(L - start, length).to(tl.int32)  # of this program's samples, counted from its first
    t, place = (start + r) // B, (start + r) % B
    b = place.to(tl.int32)
    left_rows, right_rows = t * left_t + place * left_b, t * right_t + place * right_b
    whole, part = tl.cast(INNER // B, tl.int64), INNER % B
    rest = tl.cast(part, tl.int64)
    left_step, right_step = whole * left_t + rest * left_b, whole * right_t + rest * right_b
    left_turn, right_turn = left_t - tl.cast(B, tl.int64) * left_b, right_t - tl.cast(B, tl.int64) * right_b
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if AHEAD:
        kd, H = _pair(left, left_rows, m, m_mask, right, right_rows, n, n_mask, ones, r < last, ONES)
    for _ in range(0, length, INNER):
        if not AHEAD:
            kd, H = _pair(left, left_rows, m, m_mask, right, right_rows, n, n_mask, ones, r < last, ONES)
        r += INNER
        b += part
        turned = b >= B
        b = tl.where(turned, b - B, b)
        left_rows += tl.where(turned, left_step + left_turn, left_step)
        right_rows += tl.where(turned, right_step + right_turn, right_step)
        if AHEAD:
            kd_next, H_next = _pair(left, left_rows, m, m_mask, right, right_rows, n, n_mask, ones, r < last, ONES)
        total = _accumulate(kd, H, total, PRECISION)
        if AHEAD:
            kd, H = kd_next, H_next
    out = sums + (network * count + first + split) * (high * full)
    tl.store(out + m[:, None] * full + n[None, :], total, mask=m_mask[:, None] & (n < full)[None, :])


@triton.jit
def _pair(left, left_rows, m, m_mask, right, right_rows, n, n_mask, ones, valid, ONES: tl.constexpr):
    """The factors, (INNER, ROWS) and (INNER, COLUMNS): κ and d, and H."""
    kd = tl.load(left + left_rows[:, None] + m[None, :], mask=valid[:, None] & m_mask[None, :], other=0.0)
    H = tl.load(right + right_rows[:, None] + n[None, :], mask=valid[:, None] & n_mask[None, :], other=0.0)
    if ONES:
        H = tl.where(ones[None, :], 1.0, H).to(H.dtype)
    return kd, H


@triton.jit
def _accumulate(left, right, total, PRECISION: tl.constexpr):
    """total + leftᵀ right."""
    l1, r1 = round_to_operand(left, PRECISION), round_to_operand(right, PRECISION)
    if PRECISION == "bf16x3":
        l2 = round_to_operand(left - l1.to(tl.float32), PRECISION)
        r2 = round_to_operand(right - r1.to(tl.float32), PRECISION)
        total = tl.dot(tl.trans(l2), r1, total)
        total = tl.dot(tl.trans(l1), r2, total)
        total = tl.dot(tl.trans(l1), r1, total)
    elif PRECISION == "bf16x6":
        l_rest, r_rest = left - l1.to(tl.float32), right - r1.to(tl.float32)
        l2, r2 = round_to_operand(l_rest, PRECISION), round_to_operand(r_rest, PRECISION)
        l3 = round_to_operand(l_rest - l2.to(tl.float32), PRECISION)
        r3 = round_to_operand(r_rest - r2.to(tl.float32), PRECISION)
        small = tl.dot(tl.trans(l3), r1)  # small terms first
        small = tl.dot(tl.trans(l2), r2, small)
        small = tl.dot(tl.trans(l1), r3, small)
        small = tl.dot(tl.trans(l2), r1, small)
        small = tl.dot(tl.trans(l1), r2, small)
        # The tensor cores truncate as they add, so the long sum is taken outside of them.
        total += tl.dot(tl.trans(l1), r1, small)
    else:
        total = tl.dot(tl.trans(l1), r1, total)
    return total


class AddedSums:
    """∂A, ∂W, (S, N, N), and where there are partial sums of them ∂U, (S, N, 1), and ∂b, (S, N): one launch for all.

    Args:
        shape: of the partial sums of the matrices, (S, sums, 2·width, width).
        N: how many rows of either matrix, and how many columns, exist.
        tiles: how many partial sums the input map has; 0 if it has none.
        dtype, input_dtype: of the gradients of the matrices, and of those of the input map.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        N: int,
        tiles: int,
        alpha: float,
        dtype: torch.dtype,
        input_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        S, count, _, width = shape
        block = power_of_two(N)
        chunk = max(1, min(16, 2048 // block))
        grid = (2 * N + (1 if tiles else 0), S, 1)
        self._launch = Launch(_add_kernel, grid, (count, tiles, N, width, alpha), (block, chunk), num_warps=4)
        self._new_matrix = allocator((S, N, N), dtype, device)
        self._new_U = allocator((S, N, 1), input_dtype, device)
        self._new_b = allocator((S, N), input_dtype, device)

    def __call__(self, sums: Tensor, input_sums: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        grad_A, grad_W = self._new_matrix(), self._new_matrix()
        if input_sums is None:
            self._launch(sums, sums, grad_A, grad_W, grad_A, grad_A)  # any tensor may stand where none is written
            return grad_A, grad_W, None, None
        grad_U, grad_b = self._new_U(), self._new_b()
        self._launch(sums, input_sums, grad_A, grad_W, grad_U, grad_b)
        return grad_A, grad_W, grad_U, grad_b


_added_sums = lru_cache(maxsize=1024)(AddedSums)


def add_partial_sums(
    sums: Tensor, N: int, input_sums: Tensor | None, alpha: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The same, for sums of any shape."""
    S, count, double, width = sums.shape
    tiles = 0 if input_sums is None else input_sums.shape[1]
    with on_device(sums):
        return _added_sums((S, count, double, width), N, tiles, alpha, dtype, dtype, sums.device)(sums, input_sums)


@triton.jit(do_not_specialize=["count", "tiles"])
def _add_kernel(
    sums, input_sums, grad_A, grad_W, grad_U, grad_b, count, tiles, N, width, alpha,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One row of ∂A or ∂W, or after those ∂U and ∂b. CHUNK partial sums are loaded at a time."""
    row, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, BLOCK)
    mask = n < N
    total = tl.zeros((BLOCK,), tl.float32)
    if row < 2 * N:
        index = tl.arange(0, CHUNK)
        height = tl.where(row < N, row, row - N + width)
        place = sums + ((network * count + index) * 2 * width + height)[:, None] * width + n[None, :]
        for start in range(0, count, CHUNK):
            inside = (start + index < count)[:, None] & mask[None, :]
            total += tl.sum(tl.load(place + tl.cast(start, tl.int64) * 2 * width * width, mask=inside, other=0.0), 0)
        if row < N:
            tl.store(grad_A + (network * N + row) * N + n, total * alpha, mask=mask)
        else:
            tl.store(grad_W + (network * N + row - N) * N + n, total, mask=mask)
    else:
        add_input_sums(
            input_sums + network * tiles * 2 * N, grad_U + network * N, grad_b + network * N, tiles, N, n, mask
        )


@triton.jit
def add_input_sums(input_sums, grad_U, grad_b, tiles, N, n, mask):
    """∂U and ∂b of one network, from the sums of every tile of its samples."""
    weight, bias = tl.zeros(n.shape, tl.float32), tl.zeros(n.shape, tl.float32)
    for tile in range(tiles):
        entry = input_sums + tile * (2 * N) + n
        weight += tl.load(entry, mask=mask, other=0.0)
        bias += tl.load(entry + N, mask=mask, other=0.0)
    tl.store(grad_U + n, weight, mask=mask)
    tl.store(grad_b + n, bias, mask=mask)
