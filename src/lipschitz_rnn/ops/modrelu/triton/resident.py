"""The scan of a state in pairs in one kernel: a program takes some samples of a network through all steps, W on chip.

As in the LSTM's kernel the state is (N, batch) in float32, and W the left operand. [Re W; Im W] times the columns
Re h and Im h, side by side, gives all four products of which W h is made, from half of the entries of the real matrix.
Backwards W is replaced by its conjugate transpose and everything else stays.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lipschitz_rnn.ops.common.triton.products import load_parts, parts_of, product, unstack
from lipschitz_rnn.ops.modrelu.triton.pairs import gain, modulus_of, slopes


@triton.jit
def complex_product(
    M1, M2, M3, x, y, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr
):  # fmt: skip
    """Real and imaginary part of W (x + iy), (BLOCK_N, BLOCK_B) each; M is [Re W; Im W]."""
    columns = tl.reshape(tl.join(x, y), (BLOCK_N, 2 * BLOCK_B))  # a pair stays in one thread
    both = product(M1, M2, M3, columns, PRECISION, 2 * BLOCK_N, BLOCK_N, 2 * BLOCK_B)
    by_real, by_imaginary = unstack(both, BLOCK_N, 2 * BLOCK_B)
    real_x, real_y = tl.split(tl.reshape(by_real, (BLOCK_N, BLOCK_B, 2)))
    imaginary_x, imaginary_y = tl.split(tl.reshape(by_imaginary, (BLOCK_N, BLOCK_B, 2)))
    return real_x - imaginary_y, real_y + imaginary_x


@triton.jit
def load_pair(at, N, mask):
    """Real and imaginary part, which is N places further on."""
    return tl.load(at, mask=mask, other=0.0), tl.load(at + N, mask=mask, other=0.0)


@triton.jit
def store_pair(at, x, y, N, mask):
    tl.store(at, x, mask=mask)
    tl.store(at + N, y, mask=mask)


@triton.jit
def tile(B, N, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr):
    """A program's network, units, and the places of their real parts in a step, (BLOCK_N, BLOCK_B), with a mask."""
    network = tl.program_id(1).to(tl.int64)
    columns, units = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_N)
    if WIDE:
        columns, B = columns.to(tl.int64), tl.cast(B, tl.int64)
    mask = (units < N)[:, None] & (columns < B)[None, :]
    cells = units[:, None] + columns[None, :] * (2 * N)
    return network, units, cells, mask


@triton.jit
def load_parameters(weights, bias, network, units, N, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr):
    """The parts of [Re W; Im W], (2 BLOCK_N, BLOCK_N), and b, (BLOCK_N, 1), of a network."""
    rows = tl.arange(0, 2 * BLOCK_N)
    PARTS: tl.constexpr = parts_of(PRECISION)
    SIZE: tl.constexpr = 2 * BLOCK_N * BLOCK_N
    M1, M2, M3 = load_parts(weights + network * PARTS * SIZE, rows[:, None] * BLOCK_N + units[None, :], SIZE, PRECISION)
    return M1, M2, M3, tl.load(bias + network * N + units, mask=units < N, other=0.0)[:, None]


@triton.jit(do_not_specialize=["T", "inputs_s", "inputs_t"])
def forward_kernel(
    inputs, weights, bias, h0, states, tape, T, B, N, inputs_s, inputs_t,
    PRECISION: tl.constexpr, SAVE: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """All T steps for one network and BLOCK_B samples.

    Memory: inputs (S, T, B, 2N), the steps by their strides; weights (S, parts, 2 BLOCK_N, BLOCK_N); bias (S, N); h0
    (S, B, 2N); states and, with SAVE, tape, which gets z: (S, T, B, 2N). WIDE: offsets within a step may pass 2³¹.
    """
    network, units, cells, mask = tile(B, N, WIDE, BLOCK_N, BLOCK_B)
    M1, M2, M3, b = load_parameters(weights, bias, network, units, N, PRECISION, BLOCK_N)
    inputs += network * inputs_s
    size = tl.cast(B, tl.int64) * (2 * N)
    states += network * T * size
    tape += network * T * size
    x, y = load_pair(h0 + network * size + cells, N, mask)
    u_x, u_y = load_pair(inputs + cells, N, mask)
    for t in range(T):
        here = tl.cast(t, tl.int64)
        ahead = tl.minimum(here + 1, T - 1)  # the last step loads itself again rather than beyond the end
        v_x, v_y = u_x.to(tl.float32), u_y.to(tl.float32)
        u_x, u_y = load_pair(inputs + ahead * inputs_t + cells, N, mask)
        z_x, z_y = complex_product(M1, M2, M3, x, y, PRECISION, BLOCK_N, BLOCK_B)
        z_x, z_y = z_x + v_x, z_y + v_y
        factor = gain(modulus_of(z_x, z_y), b)
        x, y = factor * z_x, factor * z_y
        if SAVE:
            store_pair(tape + here * size + cells, z_x, z_y, N, mask)
        store_pair(states + here * size + cells, x, y, N, mask)


@triton.jit(do_not_specialize=["T", "grads_s", "grads_t"])
def backward_kernel(
    weights, tape, bias, grads, d, before, sums, T, B, N, grads_s, grads_t,
    PRECISION: tl.constexpr, BEFORE: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The adjoint of ``forward_kernel``: d = ∂loss/∂z, (S, T, B, 2N), and each tile's sums of ∂b, (S, tiles, N).

    weights are the conjugate transpose; with BEFORE, ``before[:, t + 1]`` gets h after step t, for all but the last.
    """
    network, units, cells, mask = tile(B, N, WIDE, BLOCK_N, BLOCK_B)
    M1, M2, M3, b = load_parameters(weights, bias, network, units, N, PRECISION, BLOCK_N)
    grads += network * grads_s
    size = tl.cast(B, tl.int64) * (2 * N)
    tape += network * T * size
    d += network * T * size
    before += network * T * size
    end = tl.cast(T - 1, tl.int64)
    z_x, z_y = load_pair(tape + end * size + cells, N, mask)
    g_x, g_y = load_pair(grads + end * grads_t + cells, N, mask)
    total_x = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    total_y = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    of_bias = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    for reverse in range(T):
        here = tl.cast(T - 1 - reverse, tl.int64)
        earlier = tl.maximum(here - 1, 0)
        total_x, total_y = total_x + g_x, total_y + g_y
        g_x, g_y = load_pair(grads + earlier * grads_t + cells, N, mask)
        d_x, d_y, of_b, factor = slopes(z_x, z_y, b, total_x, total_y)
        of_bias += of_b
        if BEFORE:
            after = mask & (cells * 0 + reverse > 0)
            store_pair(before + (here + 1) * size + cells, factor * z_x, factor * z_y, N, after)
        z_x, z_y = load_pair(tape + earlier * size + cells, N, mask)
        store_pair(d + here * size + cells, d_x, d_y, N, mask)
        total_x, total_y = complex_product(M1, M2, M3, d_x, d_y, PRECISION, BLOCK_N, BLOCK_B)
    out = sums + (network * tl.num_programs(0) + tl.program_id(0)) * N + units
    tl.store(out, tl.sum(tl.where(mask, of_bias, 0.0), 1), mask=units < N)
