"""The linear scan on a GPU: every thread walks through time with a number of the state, and reads a few steps ahead.

A scan moves each number once there and once back, so memory sets its pace. Four steps are read together, while the four
before them are computed: otherwise each step would wait for the memory to answer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.triton.launching import beyond_32_bits, divide_up, launch

BLOCK = 128  # numbers of the state in one program, one for each thread


def scan(factors: Tensor, added: Tensor, start: Tensor, backwards: bool) -> Tensor:
    """States (S, T, B, N): h_t = f_t h_{t−1} + a_t from ``start``, or h_t = f_{t+1} h_{t+1} + a_t from zero."""
    S, T, B, N = added.shape
    given = [tensor.resolve_conj().resolve_neg().contiguous() for tensor in (factors, added, start)]
    states = torch.empty_like(given[1])
    strides = [0 if size == 1 else stride for size, stride in zip(factors.shape, given[0].stride(), strict=True)]
    paired = added.is_complex()
    tensors = [torch.view_as_real(tensor) if paired else tensor for tensor in (*given, states)]  # (…, 2)
    constants = (factors.shape[1] == 1, paired, backwards, beyond_32_bits((B, 2 * N)), BLOCK)
    numbers = (T, B * N, N, *strides)
    launch(_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants, num_warps=4)
    return states


@triton.jit
def load_number(at, mask, PAIRED: tl.constexpr):
    """A number as (real, imaginary); of a real one there is no second."""
    x = tl.load(at, mask=mask, other=0.0)
    y = x
    if PAIRED:
        y = tl.load(at + 1, mask=mask, other=0.0)
    return x, y


@triton.jit
def read(
    f_at, a_at, k, T, f_step, a_step, f_x, f_y, inside,
    SAME: tl.constexpr, PAIRED: tl.constexpr, BACKWARDS: tl.constexpr,
):  # fmt: skip
    """f and a of the k-th step of the walk; beyond the last there is nothing to read."""
    mask = tl.where(inside, k, T) < T
    t = k
    if BACKWARDS:
        t = T - 1 - k
    a_x, a_y = load_number(a_at + t * a_step, mask, PAIRED)
    if not SAME:
        if BACKWARDS:
            t = tl.minimum(t + 1, T - 1)  # of the first step back any will do: the state is zero
        f_x, f_y = load_number(f_at + t * f_step, mask, PAIRED)
    return f_x, f_y, a_x, a_y


@triton.jit
def advance(
    x, y, f_x, f_y, a_x, a_y, h_at, k, T, a_step, inside, PAIRED: tl.constexpr, BACKWARDS: tl.constexpr
):  # fmt: skip
    """h⁺ = f h + a, stored as the k-th step of the walk."""
    mask = tl.where(inside, k, T) < T
    t = k
    if BACKWARDS:
        t = T - 1 - k
    if PAIRED:
        before = x
        x = f_x * x - f_y * y + a_x
        y = f_x * y + f_y * before + a_y
        tl.store(h_at + t * a_step + 1, y, mask=mask)
    else:
        x = f_x * x + a_x
    tl.store(h_at + t * a_step, x, mask=mask)
    return x, y


@triton.jit(do_not_specialize=["T"])
def _kernel(
    factors, added, start, states, T, size, N, factors_s, factors_t, factors_b, factors_n,
    SAME: tl.constexpr, PAIRED: tl.constexpr, BACKWARDS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All T steps of BLOCK numbers of one network. A complex number lies in two places, one after the other."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < size
    WIDTH: tl.constexpr = 2 if PAIRED else 1
    T = tl.cast(T, tl.int64)
    a_step, f_step = WIDTH * size, WIDTH * factors_t
    f_at = factors + network * factors_s * WIDTH + (i // N * factors_b + i % N * factors_n) * WIDTH
    a_at = added + network * T * a_step + i * WIDTH
    h_at = states + network * T * a_step + i * WIDTH
    x = tl.zeros((BLOCK,), tl.float32)
    y = x
    if not BACKWARDS:
        x, y = load_number(start + network * a_step + i * WIDTH, inside, PAIRED)
    f_x, f_y = load_number(f_at, inside, PAIRED)

    k = T * 0
    p0, q0, a0, b0 = read(f_at, a_at, k, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
    p1, q1, a1, b1 = read(f_at, a_at, k + 1, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
    p2, q2, a2, b2 = read(f_at, a_at, k + 2, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
    p3, q3, a3, b3 = read(f_at, a_at, k + 3, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
    while k < T:
        n = k + 4
        r0, s0, c0, d0 = read(f_at, a_at, n, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
        r1, s1, c1, d1 = read(f_at, a_at, n + 1, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
        r2, s2, c2, d2 = read(f_at, a_at, n + 2, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
        r3, s3, c3, d3 = read(f_at, a_at, n + 3, T, f_step, a_step, f_x, f_y, inside, SAME, PAIRED, BACKWARDS)
        x, y = advance(x, y, p0, q0, a0, b0, h_at, k, T, a_step, inside, PAIRED, BACKWARDS)
        x, y = advance(x, y, p1, q1, a1, b1, h_at, k + 1, T, a_step, inside, PAIRED, BACKWARDS)
        x, y = advance(x, y, p2, q2, a2, b2, h_at, k + 2, T, a_step, inside, PAIRED, BACKWARDS)
        x, y = advance(x, y, p3, q3, a3, b3, h_at, k + 3, T, a_step, inside, PAIRED, BACKWARDS)
        p0, q0, a0, b0 = r0, s0, c0, d0
        p1, q1, a1, b1 = r1, s1, c1, d1
        p2, q2, a2, b2 = r2, s2, c2, d2
        p3, q3, a3, b3 = r3, s3, c3, d3
        k = n
