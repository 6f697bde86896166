"""The LSTM on chip: one program per network and tile of the batch runs all time steps.

As in ``resident.py`` the state is held as (N, batch) in float32, and the four matrices, one below the other, are the
left operand of the one product that a step takes. What backward needs is stored in half precision: h and c of every
step, and z, from which the gates are found again. A gate itself would not do: above 0.998 it rounds to 1 in bfloat16,
which has no slope, and which over hundreds of steps forgets nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.elementwise import sigmoid, tanh
from lipschitz_rnn.ops.common.triton.products import INTERPRETING, round_to_operand, stack, unstack


@triton.jit
def gates(z, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr):
    """i, f, g, o, each (BLOCK_N, BLOCK_B), of z in that order from top to bottom.

    The GPU's own tanh has 11 bits. That is enough for all gates but f, by which c is multiplied in every step.
    """
    upper, lower = unstack(z, 2 * BLOCK_N, BLOCK_B)
    z_i, z_f = unstack(upper, BLOCK_N, BLOCK_B)
    z_g, z_o = unstack(lower, BLOCK_N, BLOCK_B)
    f, g = sigmoid(z_f), tanh(z_g, PRECISION)
    if PRECISION == "bf16":
        i, o = 0.5 + 0.5 * tanh(0.5 * z_i, PRECISION), 0.5 + 0.5 * tanh(0.5 * z_o, PRECISION)
    else:
        i, o = sigmoid(z_i), sigmoid(z_o)
    return i, f, g, o


@triton.jit
def four_columns(values, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns of a product added up to four, as far as a thread of the tensor cores can without asking another."""
    pairs = tl.reshape(values, (ROWS, COLUMNS // 8, 4, 2))
    return tl.sum(tl.sum(pairs, 3), 1)


@triton.jit
def load_operand(weights, offsets):
    """A left operand; loaded without a conversion it stays in shared memory."""
    M = tl.load(weights + offsets)
    if INTERPRETING:
        M = M.to(tl.float32)
    return M


@triton.jit(do_not_specialize=["T", "x_s"])
def forward_kernel(
    x, drive, weights, U, b, h0, c0, tape, z_tape, last_h, last_c, T, B, N, x_s, x_t, x_b,
    PRECISION: tl.constexpr, FUSED_INPUT: tl.constexpr, SAVE: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """All T steps for one network and BLOCK_B samples.

    Memory: weights (S, 4 BLOCK_N, BLOCK_N); U, b (S, 4N); h0, c0, last_h, last_c (S, B, N); tape (S, T + 1, 2, B, N)
    with h and c, first those before all steps, or (S, T + 1, 1, B, N) with h alone and no z without SAVE; z_tape
    (S, T, B, 4N), as drive, which is U x; or, with FUSED_INPUT, the one feature x itself, (S, T, B) by its strides.
    WIDE: offsets within a step may pass 2³¹.
    """
    network = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units, rows = tl.arange(0, BLOCK_N), tl.arange(0, 4 * BLOCK_N)
    if WIDE:
        columns, B = columns.to(tl.int64), tl.cast(B, tl.int64)
    column_mask = columns < B
    mask = (units < N)[:, None] & column_mask[None, :]
    cells = units[:, None] + columns[None, :] * N
    M = load_operand(weights + network * (4 * BLOCK_N * BLOCK_N), rows[:, None] * BLOCK_N + units[None, :])

    gate_mask = rows % BLOCK_N < N
    gate_rows = (rows // BLOCK_N) * N + rows % BLOCK_N
    z_mask = gate_mask[:, None] & column_mask[None, :]
    z_cells = gate_rows[:, None] + columns[None, :] * (4 * N)
    offset_row = tl.load(b + network * 4 * N + gate_rows, mask=gate_mask, other=0.0).to(tl.float32)
    input_row = offset_row
    if FUSED_INPUT:
        input_row = tl.load(U + network * 4 * N + gate_rows, mask=gate_mask, other=0.0).to(tl.float32)

    # h and c are stored together: rows of the lower half go to the place of c.
    pair = tl.arange(0, 2 * BLOCK_N)
    pair_mask = (pair % BLOCK_N < N)[:, None] & column_mask[None, :]
    pair_cells = (pair // BLOCK_N * B * N + pair % BLOCK_N)[:, None] + columns[None, :] * N
    SLOTS: tl.constexpr = 2 if SAVE else 1
    x += network * x_s + columns.to(tl.int64) * x_b
    drive += network * T * B * 4 * N
    tape += network * (T + 1) * SLOTS * B * N
    z_tape += network * T * B * 4 * N

    h = tl.load(h0 + network * B * N + cells, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(c0 + network * B * N + cells, mask=mask, other=0.0).to(tl.float32)
    if SAVE:
        tl.store(tape + pair_cells, stack(h, c, BLOCK_N, BLOCK_B), mask=pair_mask)
    else:
        tl.store(tape + cells, h, mask=mask)
    if FUSED_INPUT:
        arriving = tl.load(x, mask=column_mask, other=0.0)
    else:
        arriving = tl.load(drive + z_cells, mask=z_mask, other=0.0)
    for t in range(T):
        here = tl.cast(t, tl.int64)
        ahead = tl.minimum(here + 1, T - 1)  # the last step loads itself again rather than beyond the end
        if FUSED_INPUT:
            u = input_row[:, None] * arriving.to(tl.float32)[None, :] + offset_row[:, None]
            arriving = tl.load(x + ahead * x_t, mask=column_mask, other=0.0)
        else:
            u = arriving.to(tl.float32) + offset_row[:, None]
            arriving = tl.load(drive + ahead * B * 4 * N + z_cells, mask=z_mask, other=0.0)
        z = tl.dot(M, round_to_operand(h, PRECISION)) + u
        i, f, g, o = gates(z, PRECISION, BLOCK_N, BLOCK_B)
        c = f * c + i * g
        h = o * tanh(c, PRECISION)
        if SAVE:
            tl.store(z_tape + here * B * 4 * N + z_cells, z, mask=z_mask)
            tl.store(tape + (here + 1) * 2 * B * N + pair_cells, stack(h, c, BLOCK_N, BLOCK_B), mask=pair_mask)
        else:
            tl.store(tape + (here + 1) * B * N + cells, h, mask=mask)
    tl.store(last_h + network * B * N + cells, h, mask=mask)
    tl.store(last_c + network * B * N + cells, c, mask=mask)


@triton.jit(do_not_specialize=["T", "x_s"])
def backward_kernel(
    weights, tape, z_tape, grad_states, grad_last_h, grad_last_c, x, d_tape, grad_h0, grad_c0, input_sums,
    T, B, N, x_s, x_t, x_b,
    PRECISION: tl.constexpr, HAS_STATES: tl.constexpr, HAS_LAST_H: tl.constexpr, HAS_LAST_C: tl.constexpr,
    HAS_INPUT: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The adjoint of ``forward_kernel``: fills d = ∂loss/∂z, (S, T, B, 4N), ∂h0 and ∂c0, (S, B, N).

    weights is (S, BLOCK_N, 4 BLOCK_N), Wᵀ; grad_states (S, T, B, N). Where inputs of one feature were multiplied by U
    on the way, also each tile's partial sums of ∂U and ∂b, (S, tiles, 2, 4N).
    """
    network = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units, rows = tl.arange(0, BLOCK_N), tl.arange(0, 4 * BLOCK_N)
    if WIDE:
        columns, B = columns.to(tl.int64), tl.cast(B, tl.int64)
    column_mask = columns < B
    mask = (units < N)[:, None] & column_mask[None, :]
    cells = units[:, None] + columns[None, :] * N
    M = load_operand(weights + network * (4 * BLOCK_N * BLOCK_N), units[:, None] * (4 * BLOCK_N) + rows[None, :])

    gate_mask = rows % BLOCK_N < N
    gate_rows = (rows // BLOCK_N) * N + rows % BLOCK_N
    z_mask = gate_mask[:, None] & column_mask[None, :]
    z_cells = gate_rows[:, None] + columns[None, :] * (4 * N)
    grad_states += network * T * B * N
    tape += network * (T + 1) * 2 * B * N + B * N  # only c is read
    z_tape += network * T * B * 4 * N
    d_tape += network * T * B * 4 * N

    of_h = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    of_c = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    if HAS_LAST_H:
        of_h = tl.load(grad_last_h + network * B * N + cells, mask=mask, other=0.0).to(tl.float32)
    if HAS_LAST_C:
        of_c = tl.load(grad_last_c + network * B * N + cells, mask=mask, other=0.0).to(tl.float32)
    end = tl.cast(T - 1, tl.int64)
    c_after = tl.load(tape + (end + 1) * 2 * B * N + cells, mask=mask, other=0.0)
    c_before = tl.load(tape + end * 2 * B * N + cells, mask=mask, other=0.0)
    z_ahead = tl.load(z_tape + end * B * 4 * N + z_cells, mask=z_mask, other=0.0)
    if HAS_STATES:
        incoming = tl.load(grad_states + end * B * N + cells, mask=mask, other=0.0)
    if HAS_INPUT:
        x += network * x_s + columns.to(tl.int64) * x_b
        feature = tl.load(x + end * x_t, mask=column_mask, other=0.0)
    of_U = tl.zeros((4 * BLOCK_N, 4), tl.float32)
    of_b = tl.zeros((4 * BLOCK_N, 4), tl.float32)
    for reverse in range(T):
        here = tl.cast(T - 1 - reverse, tl.int64)
        before = tl.maximum(here - 1, 0)
        if HAS_STATES:
            of_h += incoming.to(tl.float32)
            incoming = tl.load(grad_states + before * B * N + cells, mask=mask, other=0.0)
        i, f, g, o = gates(z_ahead.to(tl.float32), PRECISION, BLOCK_N, BLOCK_B)
        z_ahead = tl.load(z_tape + before * B * 4 * N + z_cells, mask=z_mask, other=0.0)
        s, c = tanh(c_after.to(tl.float32), PRECISION), c_before.to(tl.float32)
        c_after = c_before
        c_before = tl.load(tape + before * 2 * B * N + cells, mask=mask, other=0.0)

        of_c += of_h * o * (1.0 - s * s)
        d_i = of_c * g * (i * (1.0 - i))
        d_f = of_c * c * (f * (1.0 - f))
        d_g = of_c * i * (1.0 - g * g)
        d_o = of_h * s * (o * (1.0 - o))
        of_c *= f
        d = stack(stack(d_i, d_f, BLOCK_N, BLOCK_B), stack(d_g, d_o, BLOCK_N, BLOCK_B), 2 * BLOCK_N, BLOCK_B)
        if HAS_INPUT:
            of_U += four_columns(d * feature.to(tl.float32)[None, :], 4 * BLOCK_N, BLOCK_B)
            of_b += four_columns(d, 4 * BLOCK_N, BLOCK_B)
            feature = tl.load(x + before * x_t, mask=column_mask, other=0.0)
        tl.store(d_tape + here * B * 4 * N + z_cells, d, mask=z_mask)
        of_h = tl.dot(M, round_to_operand(d, PRECISION))
    if HAS_INPUT:
        out = input_sums + (network * tl.num_programs(0) + tl.program_id(0)) * (8 * N) + gate_rows
        tl.store(out, tl.sum(of_U, 1), mask=gate_mask)
        tl.store(out + 4 * N, tl.sum(of_b, 1), mask=gate_mask)
    tl.store(grad_h0 + network * B * N + cells, of_h, mask=mask)
    tl.store(grad_c0 + network * B * N + cells, of_c, mask=mask)
