"""The scan of a state in pairs (Re h, Im h) on a GPU: each step is a product and a pointwise kernel, as in ``kernels``.

One step of one network is B rows of 2N numbers. A program takes some of its B·N pairs, both numbers of each. The
formulas, with no difference of large numbers in them, are those of ``ops.modrelu.pairs``; ``slopes`` has them for all
kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.triton.launching import beyond_32_bits, divide_up, launch, with_rows
from lipschitz_rnn.ops.modrelu import reference

BLOCK = 256  # pairs of one program: two for each thread
GUARD = tl.constexpr(reference.GUARD)


def scan_forward(
    inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, compute: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """States and, with ``save``, z: (S, T, B, 2N), float32; the products read the state in ``compute``.

    W is the whole matrix, (S, 2N, 2N), here and in ``scan_backward``.
    """
    (S, T, B, width), N = inputs.shape, bias.shape[-1]
    inputs, bias = with_rows(inputs), bias.contiguous()
    states = torch.empty(inputs.shape, dtype=W.dtype, device=W.device)
    z = torch.empty_like(states) if save else states.new_empty((S, 0))
    weights, h = W.mT.to(compute), h0.to(compute)
    rounded = None if compute == W.dtype else torch.empty((S, B, width), dtype=compute, device=W.device)
    copy = states if rounded is None else rounded  # any tensor may stand where none is written
    constants = (save, rounded is not None, beyond_32_bits((B, width)), BLOCK)
    for t in range(T):
        tensors = (matmul(h, weights), inputs, bias, states, z if save else states, copy)
        numbers = (t, T, B * N, N, *inputs.stride()[:2])
        launch(_forward_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants)
        h = states[:, t] if rounded is None else rounded
    return states, z


def scan_backward(
    z: Tensor,
    bias: Tensor,
    grad_states: Tensor,
    W: Tensor,
    compute: torch.dtype,
    dtype: torch.dtype,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `ops.modrelu.pairs.scan_backward`; ∂b is added up for each sample in float32 along the way."""
    (S, T, B, width), N = z.shape, bias.shape[-1]
    z, grad_states, bias, weights = z.contiguous(), with_rows(grad_states), bias.contiguous(), W.to(compute)
    d = torch.empty(z.shape, dtype=dtype, device=W.device)
    sums = torch.empty((S, B, N), dtype=W.dtype, device=W.device)
    rounded = None if compute == dtype else torch.empty((S, B, width), dtype=compute, device=W.device)
    copy = d if rounded is None else rounded
    product = sums  # not read at the last step
    for t in range(T - 1, -1, -1):
        last = t == T - 1
        if not last:
            product = matmul(d[:, t + 1] if rounded is None else rounded, weights)
        tensors = (product, grad_states, z, bias, d, copy, sums, d if before is None else before)
        numbers = (t, T, B * N, N, *grad_states.stride()[:2])
        constants = (last, rounded is not None, before is not None, beyond_32_bits((B, width)), BLOCK)
        launch(_backward_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants)
    return d, sums.sum(1)


@triton.jit
def modulus_of(x, y):
    """|x + iy| without overflow; NaN if either is."""
    x, y = tl.abs(x), tl.abs(y)
    large, small = tl.where(x > y, x, y), tl.where(x > y, y, x)
    ratio = small / tl.where(large == 0.0, 1.0, large)
    return large * tl.sqrt(1.0 + ratio * ratio)


@triton.jit
def is_dead(modulus, b):
    """Where modReLU and its slopes are 0; not at NaN."""
    return (modulus + b <= 0.0) | (modulus == 0.0)


@triton.jit
def gain(modulus, b):
    """What modReLU multiplies z by, as `ops.modrelu.reference.gain`; NaN stays NaN."""
    return tl.where(is_dead(modulus, b), 0.0, (modulus + b) / (modulus + GUARD))


@triton.jit
def slopes(x, y, b, g_x, g_y):
    """d = J g, as two numbers, the derivative with respect to b, and the gain at z = x + iy.

    As `ops.modrelu.pairs.slopes`, but nothing divides by the slope along z, which may be rounded to 0.
    """
    modulus = modulus_of(x, y)
    dead, divisor = is_dead(modulus, b), modulus + GUARD
    share, across = modulus / divisor, gain(modulus, b)
    along = tl.where(dead, 0.0, share * share + GUARD * (2.0 * modulus + b) / divisor / divisor)
    safe = tl.where(modulus == 0.0, 1.0, modulus)
    n_x, n_y = x / safe, y / safe
    onward, aside = n_x * g_x + n_y * g_y, n_x * g_y - n_y * g_x
    of_b = tl.where(dead, 0.0, share * onward)
    onward, aside = along * onward, across * aside
    d_x = tl.where(dead, 0.0, n_x * onward - n_y * aside)
    d_y = tl.where(dead, 0.0, n_y * onward + n_x * aside)
    return d_x, d_y, of_b, across


@triton.jit(do_not_specialize=["t"])
def _forward_kernel(
    product, inputs, bias, states, tape, copy, t, T, pairs, N, inputs_s, inputs_t,
    SAVE: tl.constexpr, COPY: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """z = product + u to ``tape[:, t]``, modReLU(z) to ``states[:, t]`` and, for the next product, to ``copy``."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < pairs
    at = i + i // N * N  # of the real part in a step; the imaginary one is N further on
    now = (network * T + t) * (2 * pairs)
    own = network * (2 * pairs)
    inputs += network * inputs_s + t.to(tl.int64) * inputs_t
    x = tl.load(product + own + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(product + own + at + N, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(inputs + at, mask=inside, other=0.0).to(tl.float32)
    y += tl.load(inputs + at + N, mask=inside, other=0.0).to(tl.float32)
    factor = gain(modulus_of(x, y), tl.load(bias + network * N + i % N, mask=inside, other=0.0))
    tl.store(states + now + at, factor * x, mask=inside)
    tl.store(states + now + at + N, factor * y, mask=inside)
    if SAVE:
        tl.store(tape + now + at, x, mask=inside)
        tl.store(tape + now + at + N, y, mask=inside)
    if COPY:
        tl.store(copy + own + at, factor * x, mask=inside)
        tl.store(copy + own + at + N, factor * y, mask=inside)


@triton.jit(do_not_specialize=["t"])
def _backward_kernel(
    product, grads, tape, bias, d, copy, sums, before, t, T, pairs, N, grads_s, grads_t,
    LAST: tl.constexpr, COPY: tl.constexpr, BEFORE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """J (∂loss/∂h⁺ + product) to ``d[:, t]`` and ``copy``; of z, also h⁺ to ``before[:, t + 1]``."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < pairs
    at = i + i // N * N
    now = (network * T + t) * (2 * pairs)
    own = network * (2 * pairs)
    grads += network * grads_s + t.to(tl.int64) * grads_t
    x = tl.load(tape + now + at, mask=inside, other=0.0)
    y = tl.load(tape + now + at + N, mask=inside, other=0.0)
    b = tl.load(bias + network * N + i % N, mask=inside, other=0.0)
    g_x = tl.load(grads + at, mask=inside, other=0.0)
    g_y = tl.load(grads + at + N, mask=inside, other=0.0)
    if not LAST:
        g_x += tl.load(product + own + at, mask=inside, other=0.0).to(tl.float32)
        g_y += tl.load(product + own + at + N, mask=inside, other=0.0).to(tl.float32)
    d_x, d_y, of_b, factor = slopes(x, y, b, g_x, g_y)
    if not LAST:
        of_b += tl.load(sums + network * pairs + i, mask=inside, other=0.0)
        if BEFORE:
            tl.store(before + now + 2 * pairs + at, factor * x, mask=inside)
            tl.store(before + now + 2 * pairs + at + N, factor * y, mask=inside)
    tl.store(sums + network * pairs + i, of_b, mask=inside)
    tl.store(d + now + at, d_x, mask=inside)
    tl.store(d + now + at + N, d_y, mask=inside)
    if COPY:
        tl.store(copy + own + at, d_x, mask=inside)
        tl.store(copy + own + at + N, d_y, mask=inside)
