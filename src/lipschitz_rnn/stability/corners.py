"""The exact test for small systems: one metric for all corners of the cube of slopes.

The Jacobian is affine in the slopes of each stage and the level is a convex function of the Jacobian, so its maximum
over the cube is attained at a corner. No multiplier is needed, at the price of 2^m inequalities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from lipschitz_rnn.stability.clock import Clock
from lipschitz_rnn.stability.programmes import metric_for_jacobians
from lipschitz_rnn.stability.rates import rate_to_level
from lipschitz_rnn.stability.rounding import Ball, Matrix, largest_eigenvalue_bound
from lipschitz_rnn.stability.systems import System, enclosed_jacobians, jacobian

LARGEST = 10  # channels: 1,024 corners


def cube(channels: int) -> Matrix:
    """All patterns of slopes 0 and 1: (2^m, m)."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=channels)))


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


def verified_margin(system: System[Ball], P: Matrix, level: float) -> float:
    """By how much all corners keep the level in the metric P after subtracting all rounding; positive means proved."""
    try:
        if not np.array_equal(P, P.T):
            return -math.inf
        root = np.linalg.cholesky(P)
    except np.linalg.LinAlgError:
        return -math.inf
    change = Ball.exact(np.triu(np.linalg.solve(root, np.eye(len(P))).T))
    metric = Ball.exact(P)
    if not np.all(np.isfinite(change.mid)) or largest_eigenvalue_bound(-(change.T @ metric @ change)) >= 0.0:
        return -math.inf
    J = enclosed_jacobians(system, cube(system.channels))
    PJ = metric @ J
    form = PJ + PJ.T if system.step is None else J.T @ PJ
    return -largest_eigenvalue_bound(change.T @ (form - level * metric) @ change)
