"""The scan of FastGRNN on a GPU: each step is one product by PyTorch and one pointwise kernel, forward and back.

To a kernel one step of one network is a row of B·N numbers. It takes whole tensors and the number of the step: a slice
has another address at each step, and Triton compiles for the alignment of addresses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.triton.elementwise import sigmoid, tanh
from lipschitz_rnn.ops.common.triton.launching import beyond_32_bits, divide_up, launch, with_rows
from lipschitz_rnn.ops.fastgrnn.reference import FastGRNN

BLOCK = 128  # elements of one program: a step is short, and small programs spread it over the GPU


def scan_forward(given: FastGRNN, compute: torch.dtype, save: bool) -> tuple[Tensor, Tensor]:
    """States and, with ``save``, s: (S, T, B, N), float32; the products read the state in ``compute``."""
    inputs, W, *others = given
    S, T, B, N = inputs.shape
    inputs, others = with_rows(inputs), [tensor.contiguous() for tensor in others]
    states = torch.empty(inputs.shape, dtype=W.dtype, device=W.device)
    sums = torch.empty_like(states) if save else states.new_empty((S, 0))
    weights, h = W.mT.to(compute), given.h0.to(compute)
    rounded = None if compute == W.dtype else torch.empty((S, B, N), dtype=compute, device=W.device)
    written = (states, sums if save else states, states if rounded is None else rounded)  # a tensor for each pointer
    for t in range(T):
        tensors = (matmul(h, weights), inputs, *others, *written)
        numbers = (t, T, B * N, N, *inputs.stride()[:2])
        constants = (t == 0, save, rounded is not None, beyond_32_bits((B, N)), BLOCK)
        launch(_forward_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants)
        h = states[:, t] if rounded is None else rounded
    return states, sums


def scan_backward(
    given: FastGRNN, states: Tensor, sums: Tensor, grad_states: Tensor, compute: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `ops.fastgrnn.gradients.scan_backward`; four sums are added up for each sample in float32 along the way."""
    inputs, W, *others = given
    S, T, B, N = states.shape
    grad_states, weights = with_rows(grad_states), W.to(compute)
    read = [tensor.contiguous() for tensor in (sums, states, *others)]
    d = torch.empty(states.shape, dtype=inputs.dtype, device=W.device)
    passed = torch.empty((S, B, N), dtype=W.dtype, device=W.device)
    totals = torch.empty((S, 4, B, N), dtype=W.dtype, device=W.device)  # of b_z, b_g, ζ and ν
    rounded = None if compute == inputs.dtype else torch.empty((S, B, N), dtype=compute, device=W.device)
    written = (d, d if rounded is None else rounded, passed, totals)
    product = passed  # not read at the last step
    for t in range(T - 1, -1, -1):
        if t < T - 1:
            product = matmul(d[:, t + 1] if rounded is None else rounded, weights)
        tensors = (product, grad_states, *read, *written)
        numbers = (t, T, B * N, N, *grad_states.stride()[:2])
        constants = (t == 0, t == T - 1, rounded is not None, beyond_32_bits((B, N)), BLOCK)
        launch(_backward_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants)
    of_gate, of_update = totals[:, :2].sum(2).unbind(1)
    of_zeta, of_nu = totals[:, 2:].sum((2, 3)).unbind(1)
    return d, passed, of_gate, of_update, of_zeta, of_nu


@triton.jit
def _state_before(states, h0, network, t, T, size, i, inside, FIRST: tl.constexpr):
    """h before step t: h0 at the first."""
    if FIRST:
        h = tl.load(h0 + network * size + i, mask=inside, other=0.0)
    else:
        h = tl.load(states + (network * T + t - 1) * size + i, mask=inside, other=0.0)
    return h


@triton.jit
def _gates(s, gate_bias, update_bias, zeta, nu, network, N, i, inside):
    """z, g, ζ and ν; tanh and sigmoid to float32 precision, because the state adds up many steps."""
    unit = network * N + i % N
    z = sigmoid(s + tl.load(gate_bias + unit, mask=inside, other=0.0))
    g = tanh(s + tl.load(update_bias + unit, mask=inside, other=0.0), "ieee")
    return z, g, tl.load(zeta + network), tl.load(nu + network)


@triton.jit(do_not_specialize=["t"])
def _forward_kernel(
    product, inputs, gate_bias, update_bias, zeta, nu, h0, states, sums, copy, t, T, size, N, inputs_s, inputs_t,
    FIRST: tl.constexpr, SAVE: tl.constexpr, COPY: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """s = product + u to ``sums[:, t]``, h⁺ to ``states[:, t]`` and, rounded for the next product, to ``copy``."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < size
    now = (network * T + t) * size + i
    s = tl.load(product + network * size + i, mask=inside, other=0.0).to(tl.float32)
    s += tl.load(inputs + network * inputs_s + t.to(tl.int64) * inputs_t + i, mask=inside, other=0.0).to(tl.float32)
    h = _state_before(states, h0, network, t, T, size, i, inside, FIRST)
    z, g, own, constant = _gates(s, gate_bias, update_bias, zeta, nu, network, N, i, inside)
    h = (own * (1.0 - z) + constant) * g + z * h
    tl.store(states + now, h, mask=inside)
    if SAVE:
        tl.store(sums + now, s, mask=inside)
    if COPY:
        tl.store(copy + network * size + i, h, mask=inside)


@triton.jit(do_not_specialize=["t"])
def _backward_kernel(
    product, grads, sums, states, gate_bias, update_bias, zeta, nu, h0, d, copy, passed, totals,
    t, T, size, N, grads_s, grads_t,
    FIRST: tl.constexpr, LAST: tl.constexpr, COPY: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """G = ∂loss/∂h⁺: G times both slopes to ``d[:, t]`` and ``copy``, G z to ``passed``, four terms to ``totals``."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < size
    here = network * size + i
    G = tl.load(grads + network * grads_s + t.to(tl.int64) * grads_t + i, mask=inside, other=0.0)
    if not LAST:
        G += tl.load(passed + here, mask=inside, other=0.0)
        G += tl.load(product + here, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sums + (network * T + t) * size + i, mask=inside, other=0.0)
    h = _state_before(states, h0, network, t, T, size, i, inside, FIRST)
    z, g, own, constant = _gates(s, gate_bias, update_bias, zeta, nu, network, N, i, inside)
    of_gate = G * (h - own * g) * z * (1.0 - z)
    of_update = G * (own * (1.0 - z) + constant) * (1.0 - g * g)
    tl.store(d + (network * T + t) * size + i, of_gate + of_update, mask=inside)
    tl.store(passed + here, G * z, mask=inside)
    if COPY:
        tl.store(copy + here, of_gate + of_update, mask=inside)
    at = totals + network * 4 * size + i
    _add(at, of_gate, inside, LAST)
    _add(at + size, of_update, inside, LAST)
    _add(at + 2 * tl.cast(size, tl.int64), G * (1.0 - z) * g, inside, LAST)
    _add(at + 3 * tl.cast(size, tl.int64), G * g, inside, LAST)


@triton.jit
def _add(at, term, inside, LAST: tl.constexpr):
    """Added to what lies there, except at the last step, which comes first: memory is fresh then."""
    if not LAST:
        term += tl.load(at, mask=inside, other=0.0)
    tl.store(at, term, mask=inside)
