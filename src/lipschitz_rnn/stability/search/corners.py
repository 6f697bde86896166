"""A metric for all corners of the cube of slopes, and its level up to rounding: a search for small systems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lipschitz_rnn.stability.proof.corners import cube
from lipschitz_rnn.stability.proof.rates import rate_to_level
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System, jacobian
from lipschitz_rnn.stability.search.clock import Clock
from lipschitz_rnn.stability.search.semidefinite import metric_for_jacobians


def levels(jacobians: Matrix, P: Matrix, continuous: bool) -> Matrix:
    """The level of every Jacobian (K, N, N) in the metric P, up to rounding."""
    root = np.linalg.cholesky(P)
    # Lᵀ J L⁻ᵀ = (L⁻¹ (Lᵀ J)ᵀ)ᵀ
    normal = np.swapaxes(np.linalg.solve(root, np.swapaxes(root.T @ jacobians, 1, 2)), 1, 2)
    if continuous:
        return np.linalg.eigvalsh(normal + np.swapaxes(normal, 1, 2))[:, -1]
    return np.linalg.norm(normal, 2, axis=(1, 2)) ** 2


def best_corner_metric(
    systems: Sequence[System[Matrix]], low: float, high: float, clock: Clock, bisections: int = 4
) -> Matrix | None:
    """A metric that keeps a rate just above ``low``, and then, by bisections towards ``high``, a better one."""
    continuous = systems[0].step is None
    jacobians = [np.stack([jacobian(system, corner) for corner in cube(system.channels)]) for system in systems]
    best, rate = None, low + 0.002 * (high - low)
    for _ in range(1 + bisections):
        wanted = [rate_to_level(rate, system.step) for system in systems]
        P = metric_for_jacobians(jacobians, wanted, continuous, clock)
        if P is None:
            high = rate
        else:
            best, low = P, rate
        if best is None:
            return None
        rate = 0.5 * (low + high)
    return best


def best_level(system: System[Matrix], P: Matrix) -> float:
    """The smallest level in the metric P over all corners, up to rounding."""
    jacobians = np.stack([jacobian(system, corner) for corner in cube(system.channels)])
    return float(levels(jacobians, P, system.step is None).max())
