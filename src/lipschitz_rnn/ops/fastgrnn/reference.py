"""The plain loop of the FastGRNN scan: what its kernels and its hand-written backward pass must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul


def reference(
    inputs: Tensor,
    W: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    h0: Tensor,
    compute: torch.dtype,
    kept: list[Tensor] | None = None,
) -> Tensor:
    """The plain loop, differentiable any number of times: inputs (…, T, B, N), W (…, N, N), biases (…, N), ζ and ν (…).

    ``kept`` collects s = W h + u of every step.
    """
    h, W_t = h0, W.mT.to(compute)
    of_gate, of_update = gate_bias.unsqueeze(-2), update_bias.unsqueeze(-2)
    zeta, nu = zeta[..., None, None], nu[..., None, None]
    states = []
    for u in inputs.unbind(-3):
        s = (h @ W_t if compute == h0.dtype else matmul(h.to(compute), W_t).to(h0.dtype)) + u
        z = torch.sigmoid(s + of_gate)
        h = (zeta * (1.0 - z) + nu) * torch.tanh(s + of_update) + z * h
        states.append(h)
        if kept is not None:
            kept.append(s)
    return torch.stack(states, dim=-3)
