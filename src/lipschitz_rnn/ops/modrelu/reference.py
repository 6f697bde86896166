"""The plain loop of the modReLU scan: what its kernels and its hand-written backward pass must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """sign(z) relu(|z| + b) for real z; 0 at z = 0."""
    return torch.sign(z) * torch.relu(z.abs() + bias)


def reference(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, compute: torch.dtype) -> Tensor:
    """The plain loop, differentiable any number of times: inputs (…, T, B, N), W (…, N, N), bias (…, N)."""
    h, W_t, b = h0, W.mT.to(compute), bias.unsqueeze(-2)
    states = []
    for u in inputs.unbind(-3):
        z = (h @ W_t if compute == h0.dtype else matmul(h.to(compute), W_t).to(h0.dtype)) + u
        h = modrelu(z, b)
        states.append(h)
    return torch.stack(states, dim=-3)
