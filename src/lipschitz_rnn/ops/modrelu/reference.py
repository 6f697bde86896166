"""The plain loop of the modReLU scan: what its kernels and its hand-written backward pass must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul, state_dtype

GUARD = 1e-5  # added to the modulus that divides, as in the code of the first unitary RNN


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """sign(z) relu(|z| + b) for real z; 0 at z = 0."""
    return torch.sign(z) * torch.relu(z.abs() + bias)


def gain(modulus: Tensor, bias: Tensor) -> Tensor:
    """relu(|z| + b) / (|z| + 10⁻⁵), by which modReLU multiplies a complex z.

    The guard is there because the derivative of z / |z| grows like 1 / |z|; with it modReLU is continuous at 0. At 0
    itself the gain is 0, not b · 10⁵: a state that is still 0, before the first input, would have that slope at every
    step, and gradients would overflow after a few.
    """
    return torch.where(modulus == 0.0, 0.0, torch.relu(modulus + bias) / (modulus + GUARD))


def modulus_of_pairs(z: Tensor) -> Tensor:
    """|z| of complex numbers given as (Re z, Im z): (…, 2N) -> (…, N); its derivatives at 0 are 0."""
    real, imaginary = z.to(state_dtype(z.dtype)).chunk(2, -1)
    return torch.complex(real.contiguous(), imaginary.contiguous()).abs().to(z.dtype)


def modrelu_of_pairs(z: Tensor, bias: Tensor) -> Tensor:
    """modReLU of complex numbers given as (Re z, Im z): z (…, 2N), one b for each of the N."""
    factor = gain(modulus_of_pairs(z), bias)
    return torch.cat([part * factor for part in z.chunk(2, -1)], -1)


def in_pairs(W: Tensor) -> bool:
    """Whether the state is (Re h, Im h): W is then (Re W, Im W), one above the other, (2N, N)."""
    return W.shape[-2] != W.shape[-1]


def real_matrix(W: Tensor) -> Tensor:
    """By what the whole state is multiplied: W itself, or [[Re W, −Im W], [Im W, Re W]] of (Re W, Im W)."""
    if not in_pairs(W):
        return W
    real, imaginary = W.chunk(2, -2)
    return torch.cat([W, torch.cat([-imaginary, real], -2)], -1)


def reference(
    inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, compute: torch.dtype, kept: list[Tensor] | None = None
) -> Tensor:
    """The plain loop, differentiable any number of times: inputs (…, T, B, N), W (…, N, N), bias (…, N).

    Of a state in pairs: inputs (…, T, B, 2N), W (…, 2N, N). ``kept`` collects z of every step.
    """
    h, W_t, b = h0, real_matrix(W).mT.to(compute), bias.unsqueeze(-2)
    sigma = modrelu_of_pairs if in_pairs(W) else modrelu
    states = []
    for u in inputs.unbind(-3):
        z = (h @ W_t if compute == h0.dtype else matmul(h.to(compute), W_t).to(h0.dtype)) + u
        h = sigma(z, b)
        states.append(h)
        if kept is not None:
            kept.append(z)
    return torch.stack(states, dim=-3)
