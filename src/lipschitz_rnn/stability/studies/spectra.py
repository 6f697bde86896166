"""Eigenvalues, symmetric parts, logarithmic norms, and the bound of Proposition 1 as it should read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lipschitz_rnn.stability.proof.inputs import as_matrix
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.units.lipschitz import LipschitzRNN, LipschitzRNNCell


def symmetric_part(matrix: Any) -> Matrix:
    """(S + Sᵀ)/2; its eigenvalues enclose the real parts of those of S."""
    S = as_matrix(matrix, "matrix")
    return 0.5 * (S + S.T)


@dataclass(frozen=True)
class Spectrum:
    """The real parts of the eigenvalues of a matrix and the eigenvalues of its symmetric part, smallest and largest."""

    real_min: float
    real_max: float
    symmetric_min: float
    symmetric_max: float


def spectrum(matrix: Any) -> Spectrum:
    """Extreme real parts of the eigenvalues of S, and extreme eigenvalues of its symmetric part."""
    S = as_matrix(matrix, "matrix")
    real = np.linalg.eigvals(S).real
    symmetric = np.linalg.eigvalsh(symmetric_part(S))
    return Spectrum(float(real.min()), float(real.max()), float(symmetric[0]), float(symmetric[-1]))


def log_norm(matrix: Any, order: int | float = 2, metric: Any = None) -> float:
    """The logarithmic norm μ(S) = lim (‖I + hS‖ − 1)/h as h ↓ 0, so that ẋ = S x grows at most like e^{μt}.

    Args:
        matrix: S (N, N).
        order: 1, 2 or infinity (``math.inf``).
        metric: a weight for the norm: P ≻ 0 (N, N) for order 2, in ‖x‖² = xᵀPx; a positive vector p (N,) for order 1,
            in ‖x‖ = Σ pᵢ|xᵢ|, and for infinity, in ‖x‖ = max pᵢ|xᵢ|.
    """
    S = as_matrix(matrix, "matrix")
    if order == 2:
        if metric is None:
            return float(np.linalg.eigvalsh(symmetric_part(S))[-1])
        P = as_matrix(metric, "metric")
        if P.shape != S.shape or not np.allclose(P, P.T) or np.linalg.eigvalsh(P)[0] <= 0:
            raise ValueError(f"metric must be symmetric, positive definite and of shape {S.shape}, as order is 2")
        root = np.linalg.cholesky(P)
        S = np.linalg.solve(root, (root.T @ S).T).T
        return float(np.linalg.eigvalsh(0.5 * (S + S.T))[-1])
    if order not in (1, np.inf):
        raise ValueError(f"order is {order}; choose 1, 2 or infinity (math.inf)")
    weights = np.ones(len(S)) if metric is None else np.asarray(metric, dtype=np.float64)
    if weights.shape != (len(S),) or not np.all(weights > 0):
        raise ValueError(f"metric must be a positive vector of {len(S)} weights, as order is {order}")
    S = weights[:, None] * S / weights
    off_diagonal = np.abs(S) - np.diag(np.abs(np.diag(S)))
    return float((np.diag(S) + off_diagonal.sum(axis=0 if order == 1 else 1)).max())


def proposition1_bounds(M: Any, beta: float, gamma: float) -> tuple[float, float]:
    """The interval of Proposition 1 for S = (1−β)(M + Mᵀ) + β(M − Mᵀ) − γI.

    The symmetric part of S is 2(1−β) M_sym − γI. So the real parts of the eigenvalues of S lie between
    2(1−β) λ_min(M_sym) − γ and 2(1−β) λ_max(M_sym) − γ. The paper prints the interval without the factor 2, and in one
    place without −γ.
    """
    eigenvalues = np.linalg.eigvalsh(symmetric_part(M))
    ends = (2 * (1 - beta) * float(eigenvalues[0]) - gamma, 2 * (1 - beta) * float(eigenvalues[-1]) - gamma)
    return min(ends), max(ends)


def track(model: nn.Module) -> dict[str, float]:
    """The spectra of every layer and direction of a model, as plain numbers for a training log.

    Keys are ``A.real_max``, ``A.symmetric_min``, ``A.symmetric_max`` and the same for W, after the name of the part
    and a slash where the model has more than one part. A model without a Lipschitz RNN gives an empty dictionary.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; give the module whose spectra to track")
    found: dict[str, float] = {}
    for name, cell in _cells(model):
        with torch.no_grad():
            pair = cell.hidden_matrices()
        for letter, matrix in zip("AW", pair, strict=True):
            values = spectrum(matrix)
            for key in ("real_max", "symmetric_min", "symmetric_max"):
                found[f"{name}/{letter}.{key}" if name else f"{letter}.{key}"] = getattr(values, key)
    return found


def _cells(model: nn.Module) -> Iterator[tuple[str, LipschitzRNNCell]]:
    """Every Lipschitz unit of a model, with the name of its layer and, where there are several, which one it is."""
    inside: set[int] = set()
    for prefix, module in model.named_modules():
        if isinstance(module, LipschitzRNN):
            several = len(module.cells) > 1
            for layer in range(module.num_layers):
                for direction in range(module.num_directions):
                    cell = module.cell(layer, direction)
                    inside.add(id(cell))
                    part = f"layer {layer}" + (", reverse" if direction else "") if several else ""
                    yield " ".join(filter(None, (prefix, part))), cell
        elif isinstance(module, LipschitzRNNCell) and id(module) not in inside:
            yield prefix, module
