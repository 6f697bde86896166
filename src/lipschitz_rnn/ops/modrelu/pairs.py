"""The backward scan of a state in pairs (Re h, Im h), by hand and in plain PyTorch.

With r = |z|, modReLU maps z = r n to f(r) n, f(r) = r (r + b) / (r + ε) where r + b > 0, and to 0 elsewhere. Its slope
along n is f′(r) = (r² + 2εr + εb) / (r + ε)², and across it f(r) / r = (r + b) / (r + ε). Both are sums of positive
terms for b ≥ 0, while the derivative of z times a function of |z|, as it stands, is a difference of numbers that grow
like b / r. At z = 0 both slopes are taken as 0, as those of a real state are. The formulas are in ``slopes`` and, for
kernels, in the function of that name in ``triton.pairs``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.modrelu.reference import GUARD, gain, modrelu_of_pairs, modulus_of_pairs


def scan_backward(
    z: Tensor,
    bias: Tensor,
    grad_states: Tensor,
    W: Tensor,
    compute: torch.dtype,
    dtype: torch.dtype,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """d = ∂loss/∂z of every step in ``dtype``, (S, T, B, 2N), and ∂b, (S, N); ``before`` gets h of all but the last.

    d = J (∂loss/∂h⁺ + Wᵀ (d one step on)), J = (slope along n) n nᵀ + (slope across) (1 − n nᵀ).
    """
    b = bias[:, None, None]
    modulus = modulus_of_pairs(z)
    along, across, of_bias = slopes(modulus, b)
    x, y = (part / modulus.masked_fill(modulus == 0.0, 1.0) for part in z.chunk(2, -1))
    diagonal = torch.cat([along * x * x + across * y * y, along * y * y + across * x * x], -1)
    mixed = ((along - across) * x * y).repeat(1, 1, 1, 2)

    weights, N = W.to(compute), bias.shape[-1]
    steps: list[Tensor] = []
    for own, other, grad in reversed([*zip(diagonal.unbind(1), mixed.unbind(1), grad_states.unbind(1), strict=True)]):
        total = arriving(grad, steps[-1] if steps else None, weights, W.dtype)
        steps.append(torch.addcmul(own * total, other, total.roll(N, -1)).to(dtype))
    d = torch.stack(steps[::-1], 1)
    real, imaginary = d.to(z.dtype).chunk(2, -1)
    grad_bias = (of_bias * (x * real + y * imaginary)).sum((1, 2))
    if before is not None:
        before[:, 1:] = modrelu_of_pairs(z[:, :-1], b)
    return d, grad_bias


def slopes(modulus: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f′(r), f(r) / r, and what n·d is multiplied by for ∂b; all are 0 where modReLU is.

    ∂h⁺/∂b = n r / (r + ε), and n·d is f′(r) times n·(what arrived).
    """
    dead, divisor = (modulus + bias <= 0.0) | (modulus == 0.0), modulus + GUARD
    share = modulus / divisor
    # Divided first, so that this is not rounded to 0 where |z| is subnormal: ∂b divides by it.
    along = torch.where(dead, 0.0, share * share + (2.0 * modulus + bias) / divisor * (GUARD / divisor))
    return along, gain(modulus, bias), torch.where(dead, 0.0, share / along)


def arriving(grad: Tensor, later: Tensor | None, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """∂loss/∂h⁺ of a step, of its own output and of all later steps: grad + Wᵀ d; weights are W as products take it."""
    if later is None:
        return grad
    if weights.dtype == dtype:
        return torch.baddbmm(grad, later, weights)
    return grad + matmul(later.to(weights.dtype), weights)
