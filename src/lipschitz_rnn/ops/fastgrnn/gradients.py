"""The backward pass of the FastGRNN scan by hand, in plain PyTorch or with its kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.matrix_gradient import matrix_gradient


def gradients(
    needs: Sequence[bool],
    inputs: Tensor,
    W: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    h0: Tensor,
    states: Tensor,
    sums: Tensor,
    grad_states: Tensor,
    compute: torch.dtype,
    backend: str,
) -> tuple[Tensor | None, ...]:
    """In the order of the tensors: ∂u = d = ∂loss/∂s, ∂W = Σ d hᵀ with the h before a step, ∂b_z, ∂b_g, ∂ζ, ∂ν, ∂h0.

    ∂W and ∂h0 only where needed. ``sums`` are s = W h + u of all steps.
    """
    tensors = (sums, states, grad_states, W, gate_bias, update_bias, zeta, nu, h0)
    if backend == "triton":
        from lipschitz_rnn.ops.fastgrnn.triton import kernels as kernels

        d, passed, *of_parameters = kernels.scan_backward(*tensors, compute, inputs.dtype)
    else:
        d, passed, *of_parameters = scan_backward(*tensors, compute, inputs.dtype)
    grad_W = grad_h0 = None
    if needs[1]:
        before = torch.empty(states.shape, dtype=compute, device=states.device)
        before[:, 0] = h0
        before[:, 1:] = states[:, :-1]
        grad_W = matrix_gradient(d, before, W.dtype)
    if needs[6]:
        grad_h0 = passed + matmul(d[:, 0].to(compute), W.to(compute)).to(W.dtype)
    return d, grad_W, *of_parameters, grad_h0


def scan_backward(
    sums: Tensor,
    states: Tensor,
    grad_states: Tensor,
    W: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    h0: Tensor,
    compute: torch.dtype,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """d of every step in ``dtype``, (S, T, B, N); G z of the first, (S, B, N); ∂b_z, ∂b_g, (S, N); ∂ζ, ∂ν, (S,).

    G = ∂loss/∂h⁺ is what the output's gradient, z ⊙ h and W h of the next step pass back. d is G times the sum of the
    slopes along both gates, which are known for all steps at once.
    """
    weights = W.to(compute)
    z = torch.sigmoid(sums + gate_bias[:, None, None])
    g = torch.tanh(sums + update_bias[:, None, None])
    own, constant = zeta[:, None, None, None], nu[:, None, None, None]
    before = torch.cat([h0.unsqueeze(1), states[:, :-1]], 1)
    of_gate = (before - own * g) * z * (1.0 - z)
    of_update = (own * (1.0 - z) + constant) * (1.0 - g * g)

    d = torch.empty(states.shape, dtype=dtype, device=states.device)
    total = torch.empty_like(states)
    later = passed = None
    rows = (part.unbind(1) for part in (grad_states, z, of_gate + of_update, total, d))
    for grad, kept, slope, G, now in reversed([*zip(*rows, strict=True)]):
        G.copy_(grad)
        if later is not None:
            G += passed
            G += matmul(later.to(compute), weights)
        later, passed = now.copy_(G * slope), G * kept
    assert passed is not None
    of_zeta, of_nu = (total * (1.0 - z) * g).sum((1, 2, 3)), (total * g).sum((1, 2, 3))
    return d, passed, (total * of_gate).sum((1, 2)), (total * of_update).sum((1, 2)), of_zeta, of_nu
