"""The exact test for small systems: one metric for all corners of the cube of slopes.

The Jacobian is affine in the slopes of each stage and the level is a convex function of the Jacobian, so its maximum
over the cube is attained at a corner. No multiplier is needed, at the price of 2^m inequalities.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from lipschitz_rnn.stability.proof.rounding import Ball, Matrix, largest_eigenvalue_bound
from lipschitz_rnn.stability.proof.systems import System, enclosed_jacobians

LARGEST = 10  # channels: 1,024 corners


def cube(channels: int) -> Matrix:
    """All patterns of slopes 0 and 1: (2^m, m)."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=channels)))


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
