"""The scan with modReLU on a GPU: each step is one product by PyTorch and one pointwise kernel, forward and back.

To a kernel one step of one network is a row of B·N numbers. It takes whole tensors and the number of the step: a slice
has another address at each step, and Triton compiles for the alignment of addresses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.triton.launching import beyond_32_bits, divide_up, launch, with_rows

BLOCK = 512  # elements of one program: four for each thread


def scan_forward(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, compute: torch.dtype) -> Tensor:
    """States (S, T, B, N), float32; the products read the state in ``compute``."""
    S, T, B, N = inputs.shape
    inputs, bias = with_rows(inputs), bias.contiguous()
    states = torch.empty(inputs.shape, dtype=W.dtype, device=W.device)
    weights, h = W.mT.to(compute), h0.to(compute)
    rounded = None if compute == W.dtype else torch.empty((S, B, N), dtype=compute, device=W.device)
    copy = states if rounded is None else rounded  # any tensor may stand where none is written
    constants = (rounded is not None, beyond_32_bits((B, N)), BLOCK)
    for t in range(T):
        tensors = (matmul(h, weights), inputs, bias, states, copy)
        numbers = (t, T, B * N, N, *inputs.stride()[:2])
        launch(_forward_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants)
        h = states[:, t] if rounded is None else rounded
    return states


def scan_backward(
    states: Tensor, grad_states: Tensor, W: Tensor, compute: torch.dtype, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """d of every step in ``dtype``, (S, T, B, N), and ∂b, (S, N), for each sample added up in float32 along the way."""
    S, T, B, N = states.shape
    states, grad_states, weights = states.contiguous(), with_rows(grad_states), W.to(compute)
    d = torch.empty(states.shape, dtype=dtype, device=W.device)
    sums = torch.empty((S, B, N), dtype=W.dtype, device=W.device)
    rounded = None if compute == dtype else torch.empty((S, B, N), dtype=compute, device=W.device)
    copy = d if rounded is None else rounded
    product = sums  # not read at the last step
    for t in range(T - 1, -1, -1):
        if t < T - 1:
            product = matmul(d[:, t + 1] if rounded is None else rounded, weights)
        tensors = (product, grad_states, states, d, copy, sums)
        numbers = (t, T, B * N, *grad_states.stride()[:2])
        constants = (t == T - 1, rounded is not None, beyond_32_bits((B, N)), BLOCK)
        launch(_backward_kernel, (divide_up(B * N, BLOCK), S, 1), tensors, numbers, constants)
    return d, sums.sum(1)


@triton.jit(do_not_specialize=["t"])
def _forward_kernel(
    product, inputs, bias, states, copy, t, T, size, N, inputs_s, inputs_t,
    COPY: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """z = product + u, and modReLU(z) to ``states[:, t]`` and, rounded for the next product, to ``copy``."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < size
    z = tl.load(product + network * size + i, mask=inside, other=0.0).to(tl.float32)
    z += tl.load(inputs + network * inputs_s + t.to(tl.int64) * inputs_t + i, mask=inside, other=0.0).to(tl.float32)
    modulus = tl.abs(z) + tl.load(bias + network * N + i % N, mask=inside, other=0.0)
    h = tl.where(z < 0.0, -modulus, modulus)
    h = tl.where((modulus <= 0.0) | (z == 0.0), 0.0, h)  # NaN stays NaN
    tl.store(states + (network * T + t) * size + i, h, mask=inside)
    if COPY:
        tl.store(copy + network * size + i, h, mask=inside)


@triton.jit(do_not_specialize=["t"])
def _backward_kernel(
    product, grads, states, d, copy, sums, t, T, size, grads_s, grads_t,
    LAST: tl.constexpr, COPY: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂loss/∂h⁺ + product, where h⁺ ≠ 0, to ``d[:, t]`` and ``copy``; with the sign of h⁺ it is added to ``sums``."""
    i = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    network = tl.program_id(1).to(tl.int64)
    inside = i < size
    h = tl.load(states + (network * T + t) * size + i, mask=inside, other=0.0)
    total = tl.load(grads + network * grads_s + t.to(tl.int64) * grads_t + i, mask=inside, other=0.0)
    if not LAST:
        total += tl.load(product + network * size + i, mask=inside, other=0.0).to(tl.float32)
    total = tl.where(h == 0.0, 0.0, total)
    term = tl.where(h < 0.0, -total, total)
    if not LAST:
        term += tl.load(sums + network * size + i, mask=inside, other=0.0)
    tl.store(sums + network * size + i, term, mask=inside)
    tl.store(d + (network * T + t) * size + i, total, mask=inside)
    if COPY:
        tl.store(copy + network * size + i, total, mask=inside)
