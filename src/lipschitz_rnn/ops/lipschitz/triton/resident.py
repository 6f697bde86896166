"""One program per network and tile of the batch runs all time steps with both matrices on chip.

The state is held as (N, batch), so that the matrices are the left operand of each product, which the tensor cores take
from registers (IN_REGISTERS) or, on Hopper, from shared memory. Inputs are loaded a step ahead of their use. What a
step stores goes out in one piece, and while the tensor cores are busy with the next product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.elementwise import sigma, sigma_slope
from lipschitz_rnn.ops.common.triton.noise import disturb, disturb_back, read_noise
from lipschitz_rnn.ops.common.triton.products import (
    in_registers,
    load_parts,
    parts_of,
    product,
    round_to_operand,
    stack,
    unstack,
)
from lipschitz_rnn.ops.lipschitz.triton.prefetch import STEPS_AHEAD, prefetch
from lipschitz_rnn.ops.lipschitz.triton.tiles import tile


@triton.jit(do_not_specialize=["T", "starts"])
def forward_kernel(
    drive, weights, h0, U, b, noise, timespans, tape, last,
    T, B, N, step_size, starts, drive_s, drive_t, drive_b, drive_n, spans_s, spans_t, spans_b,
    STAGES: tl.constexpr, STAGE_COEFFICIENTS: tl.constexpr, WEIGHTS: tl.constexpr,
    NONLINEARITY: tl.constexpr, PRECISION: tl.constexpr,
    FUSED_INPUT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SPANS: tl.constexpr, NOISE: tl.constexpr,
    KEEP: tl.constexpr, SAVE: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, IN_REGISTERS: tl.constexpr,
):  # fmt: skip
    """All T steps for one network and BLOCK_B samples.

    Memory: weights from ``left_operand``; h0, last (S, B, N); tape (S, T, 2 STAGES, B, N) with the state first, then
    the values of σ and the states of all stages but the first, or (S, T, 1, B, N) without SAVE; drive and timespans by
    their strides. h0 is read for the first ``starts`` samples, B or none, and zero for the others. noise, (S, 5), is
    read with NOISE. WIDE: offsets within a step may pass 2³¹.
    """
    network = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = tl.arange(0, BLOCK_N)
    if WIDE:
        B = tl.cast(B, tl.int64)
    units, columns, unit_mask, column_mask, mask, cells = tile(units, columns, B, N, WIDE)

    PARTS: tl.constexpr = parts_of(PRECISION)
    SIZE: tl.constexpr = 2 * BLOCK_N * BLOCK_N
    rows = tl.arange(0, 2 * BLOCK_N)
    M1, M2, M3 = load_parts(weights + network * PARTS * SIZE, rows[:, None] * BLOCK_N + units[None, :], SIZE, PRECISION)
    if IN_REGISTERS:
        M1 = in_registers(M1, BLOCK_N)

    # State and σ of the last stage are stored together: rows of the upper half go to the state's place.
    row = tl.where(rows < BLOCK_N, rows, rows - BLOCK_N)
    tape_cells = tl.where(rows < BLOCK_N, row, row + STAGES * B * N)[:, None] + columns[None, :] * N
    tape_mask = (row < N)[:, None] & column_mask[None, :]

    input_row = tl.zeros((BLOCK_N,), tl.float32)
    offset_row = tl.zeros((BLOCK_N,), tl.float32)
    if FUSED_INPUT:
        input_row = tl.load(U + network * N + units, mask=unit_mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        offset_row = tl.load(b + network * N + units, mask=unit_mask, other=0.0).to(tl.float32)

    # A load of nothing rather than zeros: the compiler then keeps the state as it keeps every later one.
    started = unit_mask[:, None] & (columns < starts)[None, :]
    h = tl.load(h0 + network * B * N + cells, mask=started, other=0.0).to(tl.float32)
    if NOISE:
        seed, first_sample, first_step, a, m = read_noise(noise, network)
    SLOTS: tl.constexpr = 2 * STAGES if SAVE else 1
    drive += network * drive_s
    tape += network * T * SLOTS * B * N
    timespans += network * spans_s
    drive_cells = units[:, None] * drive_n + columns[None, :] * drive_b
    step = tl.full((BLOCK_B,), 0.0, tl.float32) + step_size
    s = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    near_units, near_columns = tl.minimum(tl.arange(0, BLOCK_N // 8) * 8, N - 1), tl.minimum(columns, B - 1)
    if WIDE:
        near_units = near_units.to(tl.int64)

    if FUSED_INPUT:
        x = tl.load(drive + columns * drive_b, mask=column_mask, other=0.0)
    else:
        x = tl.load(drive + drive_cells, mask=mask, other=0.0)
    if HAS_SPANS:
        span = tl.load(timespans + columns * spans_b, mask=column_mask, other=0.0)
    for t in range(T):
        here = tl.cast(t, tl.int64)
        ahead = tl.minimum(here + 1, T - 1)  # the last step loads itself again rather than beyond the end
        if FUSED_INPUT:
            u = input_row[:, None] * x.to(tl.float32)[None, :] + offset_row[:, None]
            x = tl.load(drive + ahead * drive_t + columns * drive_b, mask=column_mask, other=0.0)
        else:
            u = x.to(tl.float32)
            x = tl.load(drive + ahead * drive_t + drive_cells, mask=mask, other=0.0)
        if HAS_SPANS:
            step = span.to(tl.float32)
            span = tl.load(timespans + ahead * spans_t + columns * spans_b, mask=column_mask, other=0.0)
        if IN_REGISTERS:
            soon = tl.minimum(here + STEPS_AHEAD, T - 1)
            if FUSED_INPUT:
                prefetch(drive + soon * drive_t + near_columns * drive_b)
            else:
                prefetch(drive + soon * drive_t + near_units[:, None] * drive_n + near_columns[None, :] * drive_b)
            if HAS_SPANS:
                prefetch(timespans + soon * spans_t + near_columns * spans_b)

        out = tape + here * SLOTS * B * N
        at = h
        for i in tl.static_range(STAGES):
            both = product(M1, M2, M3, at, PRECISION, 2 * BLOCK_N, BLOCK_N, BLOCK_B)
            if SAVE and i == 0:  # what the step before has left
                before = out - SLOTS * B * N
                tl.store(before + tape_cells, stack(h, s, BLOCK_N, BLOCK_B), mask=tape_mask & (t > 0))
            linear, z = unstack(both, BLOCK_N, BLOCK_B)
            s = sigma(z + u, NONLINEARITY, PRECISION)
            slope = linear + s
            if i == 0:
                total = slope * WEIGHTS[i]
            else:
                total += slope * WEIGHTS[i]
            if i + 1 < STAGES:
                at = h + (step * STAGE_COEFFICIENTS[i + 1])[None, :] * slope
                if SAVE:
                    tl.store(out + (i + 1) * B * N + cells, s, mask=mask)
                    tl.store(out + (STAGES + i + 1) * B * N + cells, at, mask=mask)
        h += step[None, :] * total
        if NOISE:
            h = disturb(h, seed, a, m, units, first_sample + columns, first_step + t, step, mask, BLOCK_N, BLOCK_B)
        if KEEP and not SAVE:
            tl.store(out + cells, h, mask=mask)
    if SAVE:
        out = tape + tl.cast(T - 1, tl.int64) * SLOTS * B * N
        tl.store(out + tape_cells, stack(h, s, BLOCK_N, BLOCK_B), mask=tape_mask)
    tl.store(last + network * B * N + cells, h, mask=mask)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    weights, timespans, tape, grad_states, grad_last, x, noise, kappa_d, grad_h0, input_sums,
    T, B, N, step_size, grads_s, grads_t, grads_b, grads_n, spans_s, spans_t, spans_b, x_s, x_t, x_b,
    STAGES: tl.constexpr, STAGE_COEFFICIENTS: tl.constexpr, WEIGHTS: tl.constexpr,
    NONLINEARITY: tl.constexpr, PRECISION: tl.constexpr, HAS_STATES: tl.constexpr, HAS_LAST: tl.constexpr,
    HAS_SPANS: tl.constexpr, HAS_INPUT: tl.constexpr, NOISE: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, IN_REGISTERS: tl.constexpr,
):  # fmt: skip
    """The adjoint of ``forward_kernel`` (see ``adjoint.py``): fills κ and d, (S, T, STAGES, B, 2N), and ∂h0.

    Where the kernel multiplied inputs of one feature by U, also each tile's sums for ∂U and ∂b, (S, tiles, 2, N).
    """
    network = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = tl.arange(0, BLOCK_N)
    if WIDE:
        B = tl.cast(B, tl.int64)
    units, columns, unit_mask, column_mask, mask, cells = tile(units, columns, B, N, WIDE)

    PARTS: tl.constexpr = parts_of(PRECISION)
    SIZE: tl.constexpr = 2 * BLOCK_N * BLOCK_N
    rows = tl.arange(0, 2 * BLOCK_N)
    operand_cells = units[:, None] * (2 * BLOCK_N)
    weights += network * PARTS * SIZE
    if IN_REGISTERS:
        A_t, _, _ = load_parts(weights, operand_cells + units[None, :], SIZE, PRECISION)
        W_t, _, _ = load_parts(weights + BLOCK_N, operand_cells + units[None, :], SIZE, PRECISION)
        A_t = in_registers(A_t, BLOCK_N)
        W_t = in_registers(W_t, BLOCK_N)
    else:
        M1, M2, M3 = load_parts(weights, operand_cells + rows[None, :], SIZE, PRECISION)

    row = tl.where(rows < BLOCK_N, rows, rows - BLOCK_N)
    out_cells = tl.where(rows < BLOCK_N, row, row + N)[:, None] + columns[None, :] * (2 * N)
    out_mask = (row < N)[:, None] & column_mask[None, :]

    adjoint = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    if HAS_LAST:
        adjoint = tl.load(grad_last + network * B * N + cells, mask=mask, other=0.0).to(tl.float32)
    if NOISE:
        seed, first_sample, first_step, _, m = read_noise(noise, network)
    grad_states += network * grads_s
    grad_cells = units[:, None] * grads_n + columns[None, :] * grads_b
    SLOTS: tl.constexpr = 2 * STAGES
    tape += network * T * SLOTS * B * N
    kappa_d += network * T * STAGES * B * 2 * N
    timespans += network * spans_s
    step = tl.full((BLOCK_B,), 0.0, tl.float32) + step_size
    near_columns = tl.minimum(columns, B - 1)
    near_units = tl.minimum(tl.arange(0, BLOCK_N // 8) * 8, N - 1)[:, None]
    if WIDE:
        near_units = near_units.to(tl.int64)

    end = tl.cast(T - 1, tl.int64)
    value = tl.load(tape + (end * SLOTS + STAGES) * B * N + cells, mask=mask, other=0.0)
    if HAS_STATES:
        incoming = tl.load(grad_states + end * grads_t + grad_cells, mask=mask, other=0.0)
    if HAS_SPANS:
        span = tl.load(timespans + end * spans_t + columns * spans_b, mask=column_mask, other=0.0)
    if HAS_INPUT:
        x += network * x_s
        feature = tl.load(x + end * x_t + columns * x_b, mask=column_mask, other=0.0)
    grad_U = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    grad_b = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    for reverse in range(T):
        here = tl.cast(T - 1 - reverse, tl.int64)
        before = tl.maximum(here - 1, 0)
        if HAS_STATES:
            adjoint += incoming.to(tl.float32)
            incoming = tl.load(grad_states + before * grads_t + grad_cells, mask=mask, other=0.0)
        if HAS_SPANS:
            step = span.to(tl.float32)
            span = tl.load(timespans + before * spans_t + columns * spans_b, mask=column_mask, other=0.0)
        if HAS_INPUT:
            x_now = feature.to(tl.float32)
            feature = tl.load(x + before * x_t + columns * x_b, mask=column_mask, other=0.0)
        if IN_REGISTERS:
            soon = tl.maximum(here - STEPS_AHEAD, 0)
            for i in tl.static_range(STAGES):
                prefetch(tape + (soon * SLOTS + i + 1) * B * N + near_units + near_columns[None, :] * N)
            if HAS_STATES:
                prefetch(grad_states + soon * grads_t + near_units * grads_n + near_columns[None, :] * grads_b)
            if HAS_SPANS:
                prefetch(timespans + soon * spans_t + near_columns * spans_b)
            if HAS_INPUT:
                prefetch(x + soon * x_t + near_columns * x_b)
        if NOISE:
            adjoint = disturb_back(
                adjoint, seed, m, units, first_sample + columns, first_step + here, step, mask, BLOCK_N, BLOCK_B
            )
        total = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
        eta = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
        for i in tl.static_range(STAGES - 1, -1, -1):
            s = value.to(tl.float32)
            # What comes next on the way back: σ of the stage before, or of the last stage of the step before.
            if i > 0:
                value = tl.load(tape + (here * SLOTS + i) * B * N + cells, mask=mask, other=0.0)
            else:
                value = tl.load(tape + (before * SLOTS + STAGES) * B * N + cells, mask=mask, other=0.0)
            kappa = adjoint * WEIGHTS[i]
            if i + 1 < STAGES:
                kappa += eta * STAGE_COEFFICIENTS[i + 1]
            kappa *= step[None, :]
            d = kappa * sigma_slope(s, NONLINEARITY)
            if HAS_INPUT:
                grad_U += d * x_now[None, :]
                grad_b += d
            both, out = stack(kappa, d, BLOCK_N, BLOCK_B), kappa_d + (here * STAGES + i) * (2 * B * N) + out_cells
            if IN_REGISTERS:
                share_A = tl.dot(A_t, round_to_operand(kappa, PRECISION))
                share_W = tl.dot(W_t, round_to_operand(d, PRECISION))
                tl.store(out, both, mask=out_mask)
                # By fma, since Triton would make a plain sum one chain of products, twice as long.
                eta = tl.fma(share_A, 1.0, share_W)
            else:
                tl.store(out, both, mask=out_mask)
                eta = product(M1, M2, M3, both, PRECISION, BLOCK_N, 2 * BLOCK_N, BLOCK_B)
            total += eta
        adjoint += total
    if HAS_INPUT:
        out = input_sums + (network * tl.num_programs(0) + tl.program_id(0)) * (2 * N) + units
        tl.store(out, tl.sum(grad_U, 1), mask=unit_mask)
        tl.store(out + N, tl.sum(grad_b, 1), mask=unit_mask)
    tl.store(grad_h0 + network * B * N + cells, adjoint, mask=mask)
