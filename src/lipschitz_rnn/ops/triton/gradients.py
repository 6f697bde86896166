"""Gradients of the matrices and of the input map: products over all steps and samples, after the walk through time.

The axis that is summed over is long (T·B) and the result small, so it is split among programs; each leaves its share,
and the shares are added in a fixed order: same input, same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.triton.products import leading

PROGRAMS = 264  # two for each multiprocessor of a large GPU


def gradient_sums(
    kappa_d: Tensor, previous: Tensor, h0: Tensor, x: Tensor | None, precision: str, *, shifted: bool
) -> Tensor:
    """Sums over steps and samples, in float32, for each of several shares of them: (S, shares, 2N, N + 2).

    Columns 0 to N hold [κ; d] Hᵀ; column N, with x, [κ; d] x, and column N + 1 the plain sum [κ; d].

    Args:
        kappa_d: (S, T, B, 2N), last axis contiguous.
        previous: (S, T, B, N), the states H; with ``shifted`` the state *after* each step, so that step t reads step
            t − 1, and step 0 reads h0, (S, B, N).
        x: (S, T, B), inputs of one feature; without it the last two columns are left empty.
    """
    S, T, B, double = kappa_d.shape
    N, L = double // 2, T * B
    single = kappa_d.dtype == torch.float32
    # Smaller blocks would leave the warp-group instructions, and six passes do not compile without them.
    block = min(128, max(64 if precision == "bf16x6" else 32, triton.next_power_of_2(N)))
    block_k = 32 if single else 64
    tiles = triton.cdiv(N, block)
    splits = max(1, min(triton.cdiv(L, 4 * block_k), PROGRAMS // (S * 2 * tiles * tiles)))
    rows = triton.cdiv(triton.cdiv(L, splits), block_k) * block_k
    splits = triton.cdiv(L, rows)
    shares = torch.empty((S, splits, double, N + 2), dtype=torch.float32, device=kappa_d.device)
    _gradient_kernel[(splits, 2 * tiles * tiles, S)](
        kappa_d, previous, h0, kappa_d if x is None else x, shares, L, B, N, rows, tiles,
        *kappa_d.stride()[:3], *previous.stride()[:3], *h0.stride()[:2], *((0, 0, 0) if x is None else x.stride()),
        SHIFTED=shifted, HAS_INPUT=x is not None, PRECISION=precision, BLOCK=block, BLOCK_K=block_k,
        num_warps=8 if block >= 128 else 4, num_stages=2 if single else 3,
    )  # fmt: skip
    return shares


@triton.jit(do_not_specialize=["L", "rows"])
def _gradient_kernel(
    kappa_d, previous, h0, x, shares, L, B, N, rows, tiles,
    kd_s, kd_t, kd_b, prev_s, prev_t, prev_b, h0_s, h0_b, x_s, x_t, x_b,
    SHIFTED: tl.constexpr, HAS_INPUT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    split, splits = tl.program_id(0), tl.num_programs(0)
    tile = tl.program_id(1)
    network = tl.program_id(2).to(tl.int64)
    half = tile // (tiles * tiles)  # 0: the rows of κ, 1: those of d
    m = ((tile // tiles) % tiles) * BLOCK + tl.arange(0, BLOCK)
    n = (tile % tiles) * BLOCK + tl.arange(0, BLOCK)
    m_mask, n_mask = m < N, n < N
    kappa_d += network * kd_s + half * N
    previous += network * prev_s
    h0 += network * h0_s
    x += network * x_s
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    inputs = tl.zeros((BLOCK, 16), tl.float32)
    extra = tl.arange(0, 16)[None, :]
    for start in range(0, rows, BLOCK_K):
        r = split * rows + start + tl.arange(0, BLOCK_K)
        valid = r < L
        t, b = (r // B).to(tl.int64), r % B
        place = (t * kd_t + b * kd_b)[:, None] + m[None, :]
        left = tl.load(kappa_d + place, mask=valid[:, None] & m_mask[None, :], other=0.0)
        if SHIFTED:
            place = ((t - 1) * prev_t + b * prev_b)[:, None] + n[None, :]
            right = tl.load(previous + place, mask=(valid & (t > 0))[:, None] & n_mask[None, :], other=0.0)
            if split * rows + start < B:
                first = (valid & (t == 0))[:, None] & n_mask[None, :]
                initial = tl.load(h0 + (b * h0_b)[:, None] + n[None, :], mask=first, other=0.0)
                right = tl.where(first, initial, right)
        else:
            place = (t * prev_t + b * prev_b)[:, None] + n[None, :]
            right = tl.load(previous + place, mask=valid[:, None] & n_mask[None, :], other=0.0)
        total = _accumulate(left, right, total, PRECISION)
        if HAS_INPUT:
            # x and 1 as two more columns of H: the tensor cores add faster than a reduction does.
            feature = tl.load(x + t * x_t + b * x_b, mask=valid, other=0.0).to(tl.float32)
            columns = tl.where(extra == 0, feature[:, None], tl.where(extra == 1, 1.0, 0.0))
            inputs = _accumulate(left, columns.to(left.dtype), inputs, PRECISION)
    out = shares + ((network * splits + split) * 2 + half) * (N * (N + 2)) + m[:, None] * (N + 2)
    tl.store(out + n[None, :], total, mask=m_mask[:, None] & n_mask[None, :])
    if HAS_INPUT:
        once = tl.where(tile % tiles == 0, 2, 0)  # one tile of each row writes them
        tl.store(out + N + extra, inputs, mask=m_mask[:, None] & (extra < once))


@triton.jit
def _accumulate(left, right, total, PRECISION: tl.constexpr):
    """total + leftᵀ right."""
    l1, r1 = leading(left, PRECISION), leading(right, PRECISION)
    if PRECISION == "tf32":
        total = tl.dot(tl.trans(l1), r1, total, input_precision="tf32")
    elif PRECISION == "bf16x6":
        l_rest, r_rest = left - l1.to(tl.float32), right - r1.to(tl.float32)
        l2, r2 = leading(l_rest, PRECISION), leading(r_rest, PRECISION)
        l3, r3 = leading(l_rest - l2.to(tl.float32), PRECISION), leading(r_rest - r2.to(tl.float32), PRECISION)
        share = tl.dot(tl.trans(l3), r1)  # small terms first
        share = tl.dot(tl.trans(l2), r2, share)
        share = tl.dot(tl.trans(l1), r3, share)
        share = tl.dot(tl.trans(l2), r1, share)
        share = tl.dot(tl.trans(l1), r2, share)
        # The tensor cores truncate as they add, so the long sum is taken outside of them.
        total += tl.dot(tl.trans(l1), r1, share)
    else:
        total = tl.dot(tl.trans(l1), r1, total)
    return total


def add_shares(shares: Tensor, alpha: float, dtype: torch.dtype, *, with_input: bool) -> tuple[Tensor | None, ...]:
    """∂A, ∂W, (S, N, N), and with the input ∂U and ∂b, (S, N), from the shares of ``gradient_sums``, in one pass."""
    S, count, double, width = shares.shape
    N = double // 2
    grad_A, grad_W = (torch.empty((S, N, N), dtype=dtype, device=shares.device) for _ in range(2))
    grad_U, grad_b = (torch.empty((S, N if with_input else 0), dtype=dtype, device=shares.device) for _ in range(2))
    block = triton.next_power_of_2(width)
    _add_kernel[(double, S)](
        shares, grad_A, grad_W, grad_U, grad_b, count, N, alpha, WITH_INPUT=with_input, BLOCK=block, num_warps=1
    )
    return grad_A, grad_W, grad_U if with_input else None, grad_b if with_input else None


@triton.jit(do_not_specialize=["count"])
def _add_kernel(shares, grad_A, grad_W, grad_U, grad_b, count, N, alpha, WITH_INPUT: tl.constexpr, BLOCK: tl.constexpr):
    row, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, BLOCK)
    wanted = n < (N + 2 if WITH_INPUT else N)
    total = tl.zeros((BLOCK,), tl.float32)
    for share in range(count):
        line = ((network * count + share) * 2 * N + row) * (N + 2)
        total += tl.load(shares + line + n, mask=wanted, other=0.0)
    if row < N:
        tl.store(grad_A + (network * N + row) * N + n, total * alpha, mask=n < N)
    else:
        unit = row - N
        tl.store(grad_W + (network * N + unit) * N + n, total, mask=n < N)
        if WITH_INPUT:
            tl.store(grad_U + network * N + unit + (n - N), total, mask=n == N)
            tl.store(grad_b + network * N + unit + (n - N - 1), total, mask=n == N + 1)
