"""Where the eigenvalues of a Hessian lie, from a few Lanczos runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.robustness.curvature import LossHessian

_REACH = 6.0  # widths of a Gaussian beyond which nothing of it is left
_POINTS = 1001


@dataclass(frozen=True)
class Density:
    """The distribution of the eigenvalues: point masses, and the same smoothed by a Gaussian of the given width."""

    nodes: np.ndarray  # positions of the point masses
    weights: np.ndarray  # their sizes, which sum to 1
    width: float
    grid: np.ndarray
    values: np.ndarray  # the smoothed density on the grid, with integral 1

    @classmethod
    def of(cls, nodes: np.ndarray, weights: np.ndarray, width: float | None = None) -> Density:
        """`width`: by default a hundredth of the distance between the outermost nodes."""
        order = np.argsort(nodes)
        nodes, weights = nodes[order], weights[order]
        extent = nodes[-1] - nodes[0] or abs(nodes[0]) or 1.0
        sigma = float(0.01 * extent if width is None else width)
        grid = np.linspace(nodes[0] - _REACH * sigma, nodes[-1] + _REACH * sigma, _POINTS)
        bells = np.exp(-0.5 * ((grid[:, None] - nodes) / sigma) ** 2) / (sigma * np.sqrt(2.0 * np.pi))
        return cls(nodes, weights, sigma, grid, bells @ weights)

    @classmethod
    def of_runs(cls, found: Eigenpairs, runs: Sequence[Lanczos], size: int) -> Density:
        """The eigenvalues found before, each with weight 1/n, and Gauss quadrature for the rest: nodes are the
        eigenvalues of each run's T, weights the squares of the first entries of its eigenvectors."""
        from scipy.linalg import eigh_tridiagonal

        pairs = [eigh_tridiagonal(run.diagonal, run.off_diagonal) for run in runs]
        rest = (size - len(found.values)) / (size * max(1, len(runs)))
        nodes = np.concatenate([found.values, *(values for values, _ in pairs)])
        known = np.full(len(found.values), 1.0 / size)
        return cls.of(nodes, np.concatenate([known, *(rest * vectors[0] ** 2 for _, vectors in pairs)]))

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("nodes", "weights", "grid", "values")}
        return {"width": self.width, **arrays}


@dataclass(frozen=True)
class Eigenpairs:
    values: np.ndarray  # (k,)
    vectors: Tensor  # rows, (k, n)


@dataclass(frozen=True)
class Lanczos:
    """QᵀHQ = T, tridiagonal, and what is left of H outside: H Q = Q T + residual · (a vector) at the last column."""

    diagonal: np.ndarray  # (m,)
    off_diagonal: np.ndarray  # (m − 1,)
    basis: Tensor  # Qᵀ, (m, n)
    residual: float

    def converged(self, tolerance: float = 1e-3) -> Eigenpairs:
        """Eigenvectors y of T give Q y with ‖H Q y − θ Q y‖ = residual · |last entry of y|: those where it is small."""
        from scipy.linalg import eigh_tridiagonal

        values, vectors = eigh_tridiagonal(self.diagonal, self.off_diagonal)
        near = self.residual * np.abs(vectors[-1]) <= tolerance * np.abs(values)
        chosen = torch.from_numpy(vectors[:, near].T.copy()).to(self.basis)
        return Eigenpairs(values[near], chosen @ self.basis)


def outside(vector: Tensor, rows: Tensor) -> Tensor:
    """The part of a vector that is orthogonal to orthonormal rows; done twice, since once leaves rounding errors."""
    for _ in range(2):
        vector = vector - (rows @ vector) @ rows
    return vector


def tridiagonal(
    hessian: LossHessian,
    start: Tensor,
    steps: int,
    excluded: Tensor | None = None,
    note: Callable[[], None] = lambda: None,
) -> Lanczos:
    """Lanczos from `start`, (n,), for m ≤ steps products, in the space orthogonal to the rows of `excluded`.

    Every new vector is made orthogonal to all before it: in floating point the short recurrence alone would find the
    outer eigenvalues again and again.
    """
    known = start.new_zeros(0, len(start)) if excluded is None else excluded
    first = outside(start, known)
    basis = torch.cat((known, (first / first.norm()).unsqueeze(0)))
    most = min(steps, hessian.size - len(known))
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    while True:
        image = (hessian @ basis[-1:])[0]
        note()
        scale = image.norm().item()
        diagonal.append((image @ basis[-1]).item())
        image = outside(image, basis)
        size = image.norm().item()
        # No size left means an invariant subspace: what has been found is exact.
        if len(diagonal) == most or size <= 10 * torch.finfo(image.dtype).eps * scale:
            return Lanczos(np.array(diagonal), np.array(off_diagonal), basis[len(known) :], size)
        off_diagonal.append(size)
        basis = torch.cat((basis, image.unsqueeze(0) / size))
