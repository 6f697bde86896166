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


def matrix_gradient(kappa_d: Tensor, previous: Tensor, h0: Tensor, precision: str, *, shifted: bool) -> Tensor:
    """Σ over steps and samples of [κ; d] Hᵀ, (S, 2N, N) in float32.

    Args:
        kappa_d: (S, T, B, 2N), last axis contiguous.
        previous: (S, T, B, N), the states H; with ``shifted`` the state *after* each step, so that step t reads step
            t − 1, and step 0 reads h0, (S, B, N).
    """
    S, T, B, double = kappa_d.shape
    N = double // 2
    block_n = min(128, max(16, triton.next_power_of_2(N)))
    block_m = min(128, max(16, triton.next_power_of_2(double)))
    tiles_m, tiles_n = triton.cdiv(double, block_m), triton.cdiv(N, block_n)
    block_k = 64 if kappa_d.dtype != torch.float32 else 32
    splits = max(1, min(triton.cdiv(T * B, 4 * block_k), PROGRAMS // (S * tiles_m * tiles_n)))
    rows = triton.cdiv(triton.cdiv(T * B, splits), block_k) * block_k
    splits = triton.cdiv(T * B, rows)
    shares = torch.empty((S, splits, double, N), dtype=torch.float32, device=kappa_d.device)
    _matrix_gradient_kernel[(splits, tiles_m * tiles_n, S)](
        kappa_d, previous, h0, shares, T * B, B, N, rows, tiles_n,
        *kappa_d.stride()[:3], *previous.stride()[:3], *h0.stride()[:2],
        SHIFTED=shifted, PRECISION=precision, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        num_warps=8 if block_m >= 128 else 4, num_stages=2 if kappa_d.dtype == torch.float32 else 3,
    )  # fmt: skip
    return shares.sum(1)


@triton.jit(do_not_specialize=["L", "rows"])
def _matrix_gradient_kernel(
    kappa_d, previous, h0, shares, L, B, N, rows, tiles_n,
    kd_s, kd_t, kd_b, prev_s, prev_t, prev_b, h0_s, h0_b,
    SHIFTED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    network = tl.program_id(2).to(tl.int64)
    m = (tl.program_id(1) // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(1) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_mask, n_mask = m < 2 * N, n < N
    kappa_d += network * kd_s
    previous += network * prev_s
    h0 += network * h0_s
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, rows, BLOCK_K):
        r = split * rows + start + tl.arange(0, BLOCK_K)
        valid = r < L
        t, b = (r // B).to(tl.int64), r % B
        left = tl.load(
            kappa_d + (t * kd_t + b * kd_b)[:, None] + m[None, :], mask=valid[:, None] & m_mask[None, :], other=0.0
        )
        if SHIFTED:
            later = valid & (t > 0)
            place = ((t - 1) * prev_t + b * prev_b)[:, None] + n[None, :]
            right = tl.load(previous + place, mask=later[:, None] & n_mask[None, :], other=0.0)
            if split * rows + start < B:
                first = valid & (t == 0)
                right += tl.load(
                    h0 + (b * h0_b)[:, None] + n[None, :], mask=first[:, None] & n_mask[None, :], other=0.0
                )
        else:
            place = (t * prev_t + b * prev_b)[:, None] + n[None, :]
            right = tl.load(previous + place, mask=valid[:, None] & n_mask[None, :], other=0.0)
        total = _accumulate(left, right, total, PRECISION)
    out = shares + (network * tl.num_programs(0) + split) * (2 * N * N)
    tl.store(out + m[:, None] * N + n[None, :], total, mask=m_mask[:, None] & n_mask[None, :])


@triton.jit
def _accumulate(left, right, total, PRECISION: tl.constexpr):
    """total + leftᵀ right."""
    if PRECISION == "tf32":
        total = tl.dot(tl.trans(left), right, total, input_precision="tf32")
    elif PRECISION == "bf16x6":
        l1 = leading(left, PRECISION)
        l_rest = left - l1.to(tl.float32)
        l2 = leading(l_rest, PRECISION)
        l3 = leading(l_rest - l2.to(tl.float32), PRECISION)
        r1 = leading(right, PRECISION)
        r_rest = right - r1.to(tl.float32)
        r2 = leading(r_rest, PRECISION)
        r3 = leading(r_rest - r2.to(tl.float32), PRECISION)
        total = tl.dot(tl.trans(l3), r1, total)
        total = tl.dot(tl.trans(l2), r2, total)
        total = tl.dot(tl.trans(l1), r3, total)
        total = tl.dot(tl.trans(l2), r1, total)
        total = tl.dot(tl.trans(l1), r2, total)
        total = tl.dot(tl.trans(l1), r1, total)
    else:
        total = tl.dot(tl.trans(leading(left, PRECISION)), leading(right, PRECISION), total)
    return total


def input_gradients(d: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """For one feature: ∂U = Σ d x and ∂b = Σ d, each (S, N) in float32. d: (S, T, B, N), x: (S, T, B)."""
    S, T, B, N = d.shape
    block_n = min(128, max(16, triton.next_power_of_2(N)))
    block_k = 32
    tiles = triton.cdiv(N, block_n)
    splits = max(1, min(triton.cdiv(T * B, 2 * block_k), PROGRAMS // (S * tiles)))
    rows = triton.cdiv(triton.cdiv(T * B, splits), block_k) * block_k
    splits = triton.cdiv(T * B, rows)
    shares = torch.empty((S, splits, 2, N), dtype=torch.float32, device=d.device)
    _input_gradient_kernel[(splits, tiles, S)](
        d, x, shares, T * B, B, N, rows, *d.stride()[:3], *x.stride(), BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4
    )
    return shares[:, :, 0].sum(1), shares[:, :, 1].sum(
        1
    )  # two sums, because an operator's results may not share memory


@triton.jit(do_not_specialize=["L", "rows"])
def _input_gradient_kernel(
    d, x, shares, L, B, N, rows, d_s, d_t, d_b, x_s, x_t, x_b, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    split = tl.program_id(0)
    network = tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = n < N
    d += network * d_s
    x += network * x_s
    weight = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    bias = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    for start in range(0, rows, BLOCK_K):
        r = split * rows + start + tl.arange(0, BLOCK_K)
        valid = r < L
        t, b = (r // B).to(tl.int64), r % B
        place = (t * d_t + b * d_b)[:, None] + n[None, :]
        value = tl.load(d + place, mask=valid[:, None] & n_mask[None, :], other=0.0).to(tl.float32)
        feature = tl.load(x + t * x_t + b * x_b, mask=valid, other=0.0).to(tl.float32)
        weight += value * feature[:, None]
        bias += value
    out = shares + (network * tl.num_programs(0) + split) * (2 * N) + n
    tl.store(out, tl.sum(weight, 0), mask=n_mask)
    tl.store(out + N, tl.sum(bias, 0), mask=n_mask)
