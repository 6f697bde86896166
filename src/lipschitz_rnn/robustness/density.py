"""Where the eigenvalues of a Hessian lie, from a few Lanczos runs."""

from __future__ import annotations

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

    nodes: np.ndarray  # where the masses sit
    weights: np.ndarray  # their sizes, 1 in all
    width: float
    grid: np.ndarray
    values: np.ndarray  # the smooth density on the grid, of integral 1

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

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("nodes", "weights", "grid", "values")}
        return {"width": self.width, **arrays}


def tridiagonal(hessian: LossHessian, start: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Lanczos from `start`, (n,): diagonal (m,) and off-diagonal (m − 1,) of T = Qᵀ H Q, with m ≤ steps.

    Every new vector is made orthogonal to all before it, twice: in floating point the short recurrence alone would
    find the outer eigenvalues again and again.
    """
    basis = (start / start.norm()).unsqueeze(0)
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(steps, hessian.size)):
        image = (hessian @ basis[-1:])[0]
        scale = image.norm().item()
        diagonal.append((image @ basis[-1]).item())
        for _ in range(2):
            image = image - (basis @ image) @ basis
        size = image.norm().item()
        if size <= 10 * torch.finfo(image.dtype).eps * scale:
            break  # an invariant subspace: what has been found is exact
        beside.append(size)
        basis = torch.cat((basis, image.unsqueeze(0) / size))
    return np.array(diagonal), np.array(beside[: len(diagonal) - 1])


def quadrature(diagonal: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss quadrature for the density: nodes are the eigenvalues of T, weights the squares of the first entries of
    its eigenvectors."""
    from scipy.linalg import eigh_tridiagonal

    values, vectors = eigh_tridiagonal(diagonal, beside)
    return values, vectors[0] ** 2
