"""The scan of a state in pairs on a GPU: one kernel for all steps if W finds room on chip, otherwise two each step."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import float32_setting
from lipschitz_rnn.ops.common.triton.device import shared_memory
from lipschitz_rnn.ops.common.triton.launching import beyond_32_bits, divide_up, launch, power_of_two, with_rows
from lipschitz_rnn.ops.common.triton.products import parts_of
from lipschitz_rnn.ops.modrelu.reference import real_matrix
from lipschitz_rnn.ops.modrelu.triton import pairs
from lipschitz_rnn.ops.modrelu.triton.resident import backward_kernel, forward_kernel

BATCH = 8  # samples of a program: as few as the tensor cores take, because a step waits for the one before it
MOST_UNITS = 128


def scan_forward(
    inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, compute: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """States and, with ``save``, z: (S, T, B, 2N), float32; W is (Re W, Im W), (S, 2N, N)."""
    (S, T, B, _), N = inputs.shape, bias.shape[-1]
    precision = resident_precision(N, compute, W.device)
    if precision is None:
        return pairs.scan_forward(inputs, real_matrix(W), bias, h0, compute, save)
    inputs, block = with_rows(inputs), max(16, power_of_two(N))
    states = torch.empty(inputs.shape, dtype=W.dtype, device=W.device)
    z = torch.empty_like(states) if save else states.new_empty((S, 0))
    real, imaginary = W.chunk(2, -2)
    weights = left_operand(real, imaginary, block, precision)
    tensors = (inputs, weights, bias.contiguous(), h0.contiguous(), states, z if save else states)
    numbers = (T, B, N, *inputs.stride()[:2])
    constants = (precision, save, beyond_32_bits((B, 2 * N)), block, BATCH)
    launch(forward_kernel, (divide_up(B, BATCH), S, 1), tensors, numbers, constants, **_options(block))
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
    """As `ops.modrelu.pairs.scan_backward`, but W is (Re W, Im W), (S, 2N, N)."""
    (S, T, B, _), N = z.shape, bias.shape[-1]
    precision = resident_precision(N, compute, W.device)
    if precision is None:
        return pairs.scan_backward(z, bias, grad_states, real_matrix(W), compute, dtype, before)
    grad_states, block, tiles = with_rows(grad_states), max(16, power_of_two(N)), divide_up(B, BATCH)
    d = torch.empty(z.shape, dtype=dtype, device=W.device)
    sums = torch.empty((S, tiles, N), dtype=W.dtype, device=W.device)
    real, imaginary = W.chunk(2, -2)
    weights = left_operand(real.mT, -imaginary.mT, block, precision)
    given = (z.contiguous(), bias.contiguous(), grad_states)
    tensors = (weights, *given, d, d if before is None else before, sums)
    numbers = (T, B, N, *grad_states.stride()[:2])
    constants = (precision, before is not None, beyond_32_bits((B, 2 * N)), block, BATCH)
    launch(backward_kernel, (tiles, S, 1), tensors, numbers, constants, **_options(block))
    return d, sums.sum(1)


def left_operand(real: Tensor, imaginary: Tensor, block: int, precision: str) -> Tensor:
    """[Re W; Im W], (S, parts, 2·block, block): padded with zeros, in as many parts as the precision asks for."""
    S, N = real.shape[:2]
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    rest = real.new_zeros((S, 2, block, block))
    rest[:, 0, :N, :N], rest[:, 1, :N, :N] = real, imaginary
    operand = torch.empty((S, parts_of(precision), 2, block, block), dtype=dtype, device=real.device)
    for part in operand.unbind(1):
        part.copy_(rest)
        rest = rest - part
    return operand


def resident_precision(N: int, compute: torch.dtype, device: torch.device) -> str | None:
    """How the products are taken if W stays on chip, as `ops.common.triton.products` has it; None if it cannot.

    Float32 products follow PyTorch's setting: "highest" takes three parts of every entry, "high" and "medium" two,
    which are more accurate than TF32.
    """
    precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(compute)
    if precision is None:
        precision = "bf16x6" if float32_setting() == "highest" else "bf16x3"
    block = max(16, power_of_two(N))
    needed = 4 * block * block * parts_of(precision) + 256 * block  # the matrices, and what threads pass on
    return precision if N <= MOST_UNITS and needed <= shared_memory(device) else None


def _options(block: int) -> dict[str, int]:
    return {"num_warps": 8 if block >= 128 else 4}
