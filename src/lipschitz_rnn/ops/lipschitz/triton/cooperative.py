"""For hidden sizes whose matrices do not fit on one multiprocessor: several programs share them.

Each program owns some hidden units of one tile of the batch and keeps their rows of both matrices. At every stage it
publishes its part of the state, waits until the others of its tile have done the same, and reads the whole. All
programs of a launch must run at once, so the launch is cooperative and no larger than the GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.elementwise import sigma, sigma_slope
from lipschitz_rnn.ops.common.triton.noise import disturb, disturb_back, read_noise
from lipschitz_rnn.ops.common.triton.products import load_parts, parts_of, product, unstack
from lipschitz_rnn.ops.lipschitz.triton.tiles import tile


@triton.jit
def wait_for_all(counter, arrivals):
    """A barrier among the programs that share ``counter``, which has counted ``arrivals`` when all are there."""
    tl.debug_barrier()  # every thread of this program has written its part
    tl.atomic_add(counter, 1, sem="release", scope="gpu")
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
        pass
    tl.debug_barrier()


@triton.jit
def shared_product(
    weights, M1, M2, M3, row_cells, vector, column_cells, vector_mask, total,
    K, SIZE: tl.constexpr, PRECISION: tl.constexpr, RESIDENT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """total + M v, with v read from memory and M on chip, or streamed through it where it does not fit."""
    k = tl.arange(0, BLOCK_K)
    if RESIDENT:
        v = tl.load(
            vector + k[:, None] + column_cells, mask=(k < K)[:, None] & vector_mask, other=0.0, cache_modifier=".cg"
        )
        return total + product(M1, M2, M3, v.to(tl.float32), PRECISION, ROWS, BLOCK_K, BLOCK_B, False)
    for start in range(0, K, BLOCK_K):
        kk = start + k
        v = tl.load(
            vector + kk[:, None] + column_cells, mask=(kk < K)[:, None] & vector_mask, other=0.0, cache_modifier=".cg"
        )
        P1, P2, P3 = load_parts(weights, row_cells + kk[None, :], SIZE, PRECISION)
        total += product(P1, P2, P3, v.to(tl.float32), PRECISION, ROWS, BLOCK_K, BLOCK_B, False)
    return total


@triton.jit(do_not_specialize=["T", "first_unit", "starts"])
def forward_kernel(
    drive, weights, h0, U, b, noise, timespans, tape, last, exchange, counters,
    T, B, N, step_size, starts, first_unit, tiles,
    drive_s, drive_t, drive_b, drive_n, spans_s, spans_t, spans_b,
    STAGES: tl.constexpr, STAGE_COEFFICIENTS: tl.constexpr, WEIGHTS: tl.constexpr,
    NONLINEARITY: tl.constexpr, PRECISION: tl.constexpr,
    FUSED_INPUT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SPANS: tl.constexpr, NOISE: tl.constexpr,
    KEEP: tl.constexpr, SAVE: tl.constexpr, WIDE: tl.constexpr, RESIDENT: tl.constexpr,
    PADDED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """All T steps for BLOCK_R hidden units of BLOCK_B samples of one network. Memory as in ``resident``.

    weights: (S, parts, 2·PADDED, PADDED); exchange: (S, 2, B, N), two buffers that take turns; counters: (S·tiles,).
    """
    group = tl.program_id(0)
    groups = tl.num_programs(0)
    unit = first_unit + tl.program_id(1)
    network = (unit // tiles).to(tl.int64)
    columns = (unit % tiles) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = group * BLOCK_R + tl.arange(0, BLOCK_R)
    if WIDE:
        B = tl.cast(B, tl.int64)
    units, columns, unit_mask, column_mask, mask, cells = tile(units, columns, B, N, WIDE)

    PARTS: tl.constexpr = parts_of(PRECISION)
    SIZE: tl.constexpr = 2 * PADDED * PADDED
    weights += network * PARTS * SIZE
    both = tl.arange(0, 2 * BLOCK_R)
    row = tl.where(both < BLOCK_R, group * BLOCK_R + both, PADDED + group * BLOCK_R + both - BLOCK_R)
    row_cells = row[:, None] * PADDED
    k = tl.arange(0, BLOCK_K)
    M1, M2, M3 = load_parts(weights, row_cells + k[None, :], SIZE, PRECISION)

    input_row = tl.zeros((BLOCK_R,), tl.float32)
    offset_row = tl.zeros((BLOCK_R,), tl.float32)
    if FUSED_INPUT:
        input_row = tl.load(U + network * N + units, mask=unit_mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        offset_row = tl.load(b + network * N + units, mask=unit_mask, other=0.0).to(tl.float32)
    started = unit_mask[:, None] & (columns < starts)[None, :]
    h = tl.load(h0 + network * B * N + cells, mask=started, other=0.0).to(tl.float32)
    if NOISE:
        seed, first_sample, first_step, a, m = read_noise(noise, network)
    step = tl.full((BLOCK_B,), 0.0, tl.float32) + step_size

    SLOTS: tl.constexpr = 2 * STAGES if SAVE else 1
    drive += network * drive_s
    tape += network * T * SLOTS * B * N
    timespans += network * spans_s
    counter = counters + unit
    drive_cells = units[:, None] * drive_n + columns[None, :] * drive_b
    for t in range(T):
        here = tl.cast(t, tl.int64)
        if FUSED_INPUT:
            x = tl.load(drive + here * drive_t + columns * drive_b, mask=column_mask, other=0.0).to(tl.float32)
            u = input_row[:, None] * x[None, :] + offset_row[:, None]
        else:
            u = tl.load(drive + here * drive_t + drive_cells, mask=mask, other=0.0).to(tl.float32)
        if HAS_SPANS:
            step = tl.load(timespans + here * spans_t + columns * spans_b, mask=column_mask, other=0.0).to(tl.float32)
        out = tape + here * SLOTS * B * N
        at = h
        for i in tl.static_range(STAGES):
            phase = here * STAGES + i
            place = exchange + (network * 2 + phase % 2) * B * N
            tl.store(place + cells, at, mask=mask)
            wait_for_all(counter, ((phase + 1) * groups).to(tl.int32))
            result = shared_product(
                weights, M1, M2, M3, row_cells, place, columns[None, :] * N, column_mask[None, :],
                tl.zeros((2 * BLOCK_R, BLOCK_B), tl.float32), N, SIZE, PRECISION, RESIDENT,
                2 * BLOCK_R, BLOCK_K, BLOCK_B,
            )  # fmt: skip
            linear, z = unstack(result, BLOCK_R, BLOCK_B)
            s = sigma(z + u, NONLINEARITY, PRECISION)
            slope = linear + s
            if SAVE:
                tl.store(out + (i + 1) * B * N + cells, s, mask=mask)
            if i == 0:
                total = slope * WEIGHTS[i]
            else:
                total += slope * WEIGHTS[i]
            if i + 1 < STAGES:
                at = h + (step * STAGE_COEFFICIENTS[i + 1])[None, :] * slope
                if SAVE:
                    tl.store(out + (STAGES + i + 1) * B * N + cells, at, mask=mask)
        h += step[None, :] * total
        if NOISE:
            h = disturb(h, seed, a, m, units, first_sample + columns, first_step + t, step, mask, BLOCK_R, BLOCK_B)
        if KEEP:
            tl.store(out + cells, h, mask=mask)
    tl.store(last + network * B * N + cells, h, mask=mask)


@triton.jit(do_not_specialize=["T", "first_unit"])
def backward_kernel(
    weights, timespans, tape, grad_states, grad_last, x, noise, kappa_d, grad_h0, input_sums, counters,
    T, B, N, step_size, first_unit, tiles,
    grads_s, grads_t, grads_b, grads_n, spans_s, spans_t, spans_b, x_s, x_t, x_b,
    STAGES: tl.constexpr, STAGE_COEFFICIENTS: tl.constexpr, WEIGHTS: tl.constexpr,
    NONLINEARITY: tl.constexpr, PRECISION: tl.constexpr, HAS_STATES: tl.constexpr, HAS_LAST: tl.constexpr,
    HAS_SPANS: tl.constexpr, HAS_INPUT: tl.constexpr, NOISE: tl.constexpr, WIDE: tl.constexpr,
    RESIDENT: tl.constexpr,
    PADDED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The adjoint of ``forward_kernel``. κ and d are published where they are wanted anyway, (S, T, STAGES, B, 2N)."""
    group = tl.program_id(0)
    groups = tl.num_programs(0)
    unit = first_unit + tl.program_id(1)
    network = (unit // tiles).to(tl.int64)
    columns = (unit % tiles) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = group * BLOCK_R + tl.arange(0, BLOCK_R)
    if WIDE:
        B = tl.cast(B, tl.int64)
    units, columns, unit_mask, column_mask, mask, cells = tile(units, columns, B, N, WIDE)
    double_cells = units[:, None] + columns[None, :] * (2 * N)

    PARTS: tl.constexpr = parts_of(PRECISION)
    SIZE: tl.constexpr = 2 * PADDED * PADDED
    weights += network * PARTS * SIZE
    row_cells = units[:, None] * (2 * PADDED)
    k = tl.arange(0, BLOCK_K)
    A1, A2, A3 = load_parts(weights, row_cells + k[None, :], SIZE, PRECISION)
    W1, W2, W3 = load_parts(weights + PADDED, row_cells + k[None, :], SIZE, PRECISION)

    adjoint = tl.zeros((BLOCK_R, BLOCK_B), tl.float32)
    if HAS_LAST:
        adjoint = tl.load(grad_last + network * B * N + cells, mask=mask, other=0.0).to(tl.float32)
    if NOISE:
        seed, first_sample, first_step, _, m = read_noise(noise, network)
    grad_states += network * grads_s
    grad_cells = units[:, None] * grads_n + columns[None, :] * grads_b
    tape += network * T * 2 * STAGES * B * N
    kappa_d += network * T * STAGES * B * 2 * N
    timespans += network * spans_s
    counter = counters + unit
    step = tl.full((BLOCK_B,), 0.0, tl.float32) + step_size
    if HAS_INPUT:
        x += network * x_s + columns * x_b
    grad_U = tl.zeros((BLOCK_R, BLOCK_B), tl.float32)
    grad_b = tl.zeros((BLOCK_R, BLOCK_B), tl.float32)
    for reverse in range(T):
        here = tl.cast(T - 1 - reverse, tl.int64)
        done = tl.cast(reverse, tl.int64)
        if HAS_STATES:
            adjoint += tl.load(grad_states + here * grads_t + grad_cells, mask=mask, other=0.0).to(tl.float32)
        if HAS_SPANS:
            step = tl.load(timespans + here * spans_t + columns * spans_b, mask=column_mask, other=0.0).to(tl.float32)
        if NOISE:
            adjoint = disturb_back(
                adjoint, seed, m, units, first_sample + columns, first_step + here, step, mask, BLOCK_R, BLOCK_B
            )
        total = tl.zeros((BLOCK_R, BLOCK_B), tl.float32)
        eta = tl.zeros((BLOCK_R, BLOCK_B), tl.float32)
        for i in tl.static_range(STAGES - 1, -1, -1):
            s = tl.load(tape + (here * 2 * STAGES + i + 1) * B * N + cells, mask=mask, other=0.0).to(tl.float32)
            kappa = adjoint * WEIGHTS[i]
            if i + 1 < STAGES:
                kappa += eta * STAGE_COEFFICIENTS[i + 1]
            kappa *= step[None, :]
            d = kappa * sigma_slope(s, NONLINEARITY)
            if HAS_INPUT:
                feature = tl.load(x + here * x_t, mask=column_mask, other=0.0).to(tl.float32)
                grad_U += d * feature[None, :]
                grad_b += d
            out = kappa_d + (here * STAGES + i) * (2 * B * N)
            tl.store(out + double_cells, kappa, mask=mask)
            tl.store(out + N + double_cells, d, mask=mask)
            wait_for_all(counter, ((done * STAGES + STAGES - i) * groups).to(tl.int32))
            eta = shared_product(
                weights, A1, A2, A3, row_cells, out, columns[None, :] * (2 * N), column_mask[None, :],
                tl.zeros((BLOCK_R, BLOCK_B), tl.float32), N, SIZE, PRECISION, RESIDENT, BLOCK_R, BLOCK_K, BLOCK_B,
            )  # fmt: skip
            eta = shared_product(
                weights + PADDED, W1, W2, W3, row_cells, out + N, columns[None, :] * (2 * N), column_mask[None, :],
                eta, N, SIZE, PRECISION, RESIDENT, BLOCK_R, BLOCK_K, BLOCK_B,
            )  # fmt: skip
            total += eta
        adjoint += total
    if HAS_INPUT:
        place = input_sums + unit.to(tl.int64) * (2 * N) + units
        tl.store(place, tl.sum(grad_U, 1), mask=unit_mask)
        tl.store(place + N, tl.sum(grad_b, 1), mask=unit_mask)
    tl.store(grad_h0 + network * B * N + cells, adjoint, mask=mask)
