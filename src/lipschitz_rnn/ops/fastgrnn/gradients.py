"""The backward pass of the FastGRNN scan by hand, in plain PyTorch or with its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.matrix_gradient import matrix_gradient
from lipschitz_rnn.ops.fastgrnn.reference import FastGRNN


def gradients(needs: Sequence[bool], *args: Any) -> tuple[Tensor | None, ...]:
    """∂u = d = ∂loss/∂s, ∂W = Σ d hᵀ with the h before a step, ∂b_z, ∂b_g, ∂ζ, ∂ν and ∂h0.

    Args:
        needs: which of the seven are needed; ∂W and ∂h0 are None otherwise.
        *args: the tensors of a :class:`FastGRNN`, the states, s of all steps, ∂loss/∂states, the dtype of products, and
            the backend.
    """
    given, (states, sums, grad_states, compute, backend) = FastGRNN(*args[:7]), args[7:]
    if backend == "triton":
        from lipschitz_rnn.ops.fastgrnn.triton import kernels as kernels

        d, passed, *of_parameters = kernels.scan_backward(given, states, sums, grad_states, compute)
    else:
        d, passed, *of_parameters = scan_backward(given, states, sums, grad_states, compute)
    grad_W = grad_h0 = None
    if needs[1]:
        before = torch.cat([given.h0.unsqueeze(1).to(compute), states[:, :-1].to(compute)], 1)
        grad_W = matrix_gradient(d, before, given.W.dtype)
    if needs[6]:
        grad_h0 = passed + matmul(d[:, 0].to(compute), given.W.to(compute)).to(given.W.dtype)
    return d, grad_W, *of_parameters, grad_h0


def scan_backward(
    given: FastGRNN, states: Tensor, sums: Tensor, grad_states: Tensor, compute: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """d, (S, T, B, N), in the dtype of the inputs; G z of the first step, (S, B, N); ∂b_z, ∂b_g, (S, N); ∂ζ, ∂ν, (S,).

    G = ∂loss/∂h⁺ is what the output's gradient, z ⊙ h and W h of the next step pass back. d is G times the sum of the
    slopes along both gates, which are known for all steps at once. Nothing is changed in place, so that this can be
    differentiated itself.
    """
    weights = given.W.to(compute)
    z = torch.sigmoid(sums + given.gate_bias[:, None, None])
    g = torch.tanh(sums + given.update_bias[:, None, None])
    own, constant = given.zeta[:, None, None, None], given.nu[:, None, None, None]
    before = torch.cat([given.h0.unsqueeze(1), states[:, :-1]], 1)
    of_gate = (before - own * g) * z * (1.0 - z)
    of_update = (own * (1.0 - z) + constant) * (1.0 - g * g)

    d: list[Tensor] = []
    total: list[Tensor] = []
    passed: Tensor | None = None
    rows = (part.unbind(1) for part in (grad_states.to(states.dtype), z, of_gate + of_update))
    for grad, kept, slope in reversed([*zip(*rows, strict=True)]):
        G = grad if passed is None else grad + passed + matmul(d[-1].to(compute), weights).to(states.dtype)
        d.append((G * slope).to(given.inputs.dtype))
        total.append(G)
        passed = G * kept
    assert passed is not None
    G = torch.stack(total[::-1], 1)
    of_zeta, of_nu = (G * (1.0 - z) * g).sum((1, 2, 3)), (G * g).sum((1, 2, 3))
    return torch.stack(d[::-1], 1), passed, (G * of_gate).sum((1, 2)), (G * of_update).sum((1, 2)), of_zeta, of_nu
