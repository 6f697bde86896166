"""Room for the input in a contracting pair, so that its gain does not grow with the length of the sequence.

A contracting Euler map keeps ‖Fδ‖² + ‖ρGδ‖² ≤ ρ²‖δ‖² (``construction.py``), and the input acts beside G. If G gives
up the part KKᵀ of its norm, an input change Δ finds room there: ‖δ⁺‖² ≤ ρ²‖δ‖² + γ²‖Δ‖² in the metric, for all slopes.
Summed over a sequence, the energy of what the input changed bounds that of the state, however long it is.
``docs/theory.md`` has the proof.

All matrices are (…, N, N), input weights (…, N, p) and vectors (…, N). Everything is computed in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.units.lipschitz.construction import Numbers

# Of the norm of G that the input may take: at 1 the root of I − KᵀK has no gradient, and at 0 γ is infinite.
_SMALLEST_SHARE, _LARGEST_SHARE = 1e-6, 0.999


class Intake(NamedTuple):
    """How the input enters, in the metric and beside G."""

    K: Tensor  # (…, N, p), with ‖K‖_F² the share of the input
    gain: Tensor  # γ, (…)
    rows: Tensor  # t/r: what turns an entry of εσ(·) into one beside G


def intake(numbers: Numbers, U: Tensor, restoring: Tensor, stretch: Tensor, share: Tensor) -> Intake:
    """K and γ with K γ = diag(t/r) ε s U for slopes up to s, r² = εω(2 − εω), and ‖K‖_F² = share."""
    rows = stretch / (restoring * (2.0 - restoring)).sqrt()
    U = U.double()
    # So that no product and no square leaves the range of float64; the gain alone may.
    largest = _largest(U)
    k = (numbers.step * numbers.slopes[1]) * rows.unsqueeze(-1) * (U / largest)
    top = _largest(k)
    k = k / top
    length = (k.square().sum((-2, -1), keepdim=True) + 1e-30).sqrt()
    free = torch.sigmoid(share.double())
    taken = (_SMALLEST_SHARE + (_LARGEST_SHARE - _SMALLEST_SHARE) * free).sqrt().unsqueeze(-1)  # (…, 1, 1)
    return Intake(k * (taken / length), (length * top / taken * largest).squeeze(-1).squeeze(-1), rows)


def _largest(matrix: Tensor) -> Tensor:
    """The largest magnitude of its entries, a constant to autograd."""
    return matrix.detach().abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def make_room(numbers: Numbers, A: Tensor, W: Tensor, restoring: Tensor, entering: Intake) -> Tensor:
    """W with LG in place of G, LLᵀ = I − KKᵀ; A and W in float64, for slopes from 0.

    L = I − K(I + C)⁻¹Kᵀ with the Cholesky factor C of I − KᵀK: then LLᵀ = I − K(M + Mᵀ − M KᵀK Mᵀ)Kᵀ for M = (I + C)⁻¹,
    and the bracket is I because (I + C)(I + Cᵀ) = (I + C) + (I + Cᵀ) − KᵀK.
    """
    K, _, rows = entering
    slope = numbers.step * numbers.slopes[1]
    # εW = −diag(εω)(I + εA) + Z, and Z is ρG between diag(r/t) and diag(t).
    Z = slope * W + (restoring * numbers.step * numbers.alpha).unsqueeze(-1) * A
    Z.diagonal(dim1=-2, dim2=-1).add_(restoring)
    met = K.mT @ (rows.unsqueeze(-1) * Z)  # (…, p, N)
    gram = K.mT @ K
    if K.shape[-1] == 1:
        found = met / (1.0 + (1.0 - gram).sqrt())
    else:
        eye = torch.eye(K.shape[-1], device=K.device, dtype=K.dtype)
        C = torch.linalg.cholesky_ex(eye - gram)[0]
        found = torch.linalg.solve_triangular(eye + C, met, upper=False)
    return W - (K / (slope * rows.unsqueeze(-1))) @ found
