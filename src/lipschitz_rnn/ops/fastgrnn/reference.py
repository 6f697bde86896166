"""The plain loop of the FastGRNN scan: what its kernels and its hand-written backward pass must agree with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul


class FastGRNN(NamedTuple):
    """What a scan reads; the tensors of S networks have one more axis in front, (S, …).

    Attributes:
        inputs: u, (T, B, N).
        W: (N, N).
        gate_bias, update_bias: b_z and b_g, (N,).
        zeta, nu: ζ and ν, without axes.
        h0: (B, N).
    """

    inputs: Tensor
    W: Tensor
    gate_bias: Tensor
    update_bias: Tensor
    zeta: Tensor
    nu: Tensor
    h0: Tensor


def reference(given: FastGRNN, compute: torch.dtype, kept: list[Tensor] | None = None) -> Tensor:
    """The states of all steps, (…, T, B, N), differentiable any number of times.

    ``kept`` collects s = W h + u of every step.
    """
    h, W_t = given.h0, given.W.mT.to(compute)
    of_gate, of_update = given.gate_bias.unsqueeze(-2), given.update_bias.unsqueeze(-2)
    zeta, nu = given.zeta[..., None, None], given.nu[..., None, None]
    states = []
    for u in given.inputs.unbind(-3):
        s = (h @ W_t if compute == h.dtype else matmul(h.to(compute), W_t).to(h.dtype)) + u
        z = torch.sigmoid(s + of_gate)
        h = (zeta * (1.0 - z) + nu) * torch.tanh(s + of_update) + z * h
        states.append(h)
        if kept is not None:
            kept.append(s)
    return torch.stack(states, dim=-3)
