"""The backward pass of the modReLU scan by hand, in plain PyTorch or with its kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.matrix_gradient import matrix_gradient
from lipschitz_rnn.ops.modrelu import pairs
from lipschitz_rnn.ops.modrelu.reference import in_pairs, real_matrix


def gradients(
    needs: Sequence[bool],
    inputs: Tensor,
    W: Tensor,
    bias: Tensor,
    h0: Tensor,
    tape: Tensor,
    grad_states: Tensor,
    compute: torch.dtype,
    backend: str,
) -> tuple[Tensor | None, ...]:
    """∂u = d = ∂loss/∂z, ∂W = Σ d hᵀ with the h before a step, ∂b, ∂h0 = Wᵀ d₁; ∂W and ∂h0 only where needed.

    The tape is what forward kept: the states, or z of a state in pairs.
    """
    before = torch.empty(tape.shape, dtype=compute, device=tape.device) if needs[1] else None
    paired, matrix = in_pairs(W), real_matrix(W)
    if paired and backend == "triton":
        from lipschitz_rnn.ops.modrelu.triton import launch as kernels_of_pairs

        d, grad_bias = kernels_of_pairs.scan_backward(tape, bias, grad_states, W, compute, inputs.dtype, before)
    elif paired:
        d, grad_bias = pairs.scan_backward(tape, bias, grad_states, matrix, compute, inputs.dtype, before)
    elif backend == "triton":
        from lipschitz_rnn.ops.modrelu.triton import kernels as kernels

        d, grad_bias = kernels.scan_backward(tape, grad_states, W, compute, inputs.dtype)
    else:
        d, grad_bias = scan_backward(tape, grad_states, W, compute, inputs.dtype)
    grad_W = None
    if before is not None:
        before[:, 0] = h0
        if not paired:
            before[:, 1:] = tape[:, :-1]
        grad_W = matrix_gradient(d, before, W.dtype)
        if paired:  # each of Re W and Im W stands in the whole matrix twice
            left, right = grad_W.chunk(2, -1)
            upper, lower = right.chunk(2, -2)
            grad_W = left + torch.cat([lower, -upper], -2)
    grad_h0 = matmul(d[:, 0].to(compute), matrix.to(compute)).to(W.dtype) if needs[3] else None
    return d, grad_W, grad_bias, grad_h0


def scan_backward(
    states: Tensor, grad_states: Tensor, W: Tensor, compute: torch.dtype, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """d of every step in ``dtype``, (S, T, B, N), and ∂b = Σ sign(h⁺) d, (S, N).

    d = ∂loss/∂h⁺ + Wᵀ (d one step on) where h⁺ ≠ 0.
    """
    weights = W.to(compute)
    steps: list[Tensor] = []
    for dead, grad in reversed([*zip((states == 0).unbind(1), grad_states.unbind(1), strict=True)]):
        total = pairs.arriving(grad, steps[-1] if steps else None, weights, W.dtype)
        steps.append(torch.where(dead, 0.0, total).to(dtype))
    d = torch.stack(steps[::-1], 1)
    return d, (states.sign() * d).sum((1, 2))
