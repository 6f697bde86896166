"""The smallest level of a metric with its multiplier, up to rounding: what a search compares."""

from __future__ import annotations

import math

import numpy as np

from lipschitz_rnn.stability.proof.inequality import quadratic_form
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System


def best_level(system: System[Matrix], P: Matrix, multiplier: Matrix) -> float:
    """The smallest level for given P (N, N) and diagonal of Λ (m,), up to rounding; infinity where there is none."""
    n = system.size
    form = quadratic_form(system, P, np.diag(multiplier))
    try:
        root = np.linalg.cholesky(P)
        tail = np.linalg.cholesky(-form[n:, n:])
    except np.linalg.LinAlgError:
        return math.inf
    half = np.linalg.solve(tail, form[n:, :n])
    inner = np.linalg.solve(root, form[:n, :n] + half.T @ half)
    normalized = np.linalg.solve(root, inner.T)
    return float(np.linalg.eigvalsh(0.5 * (normalized + normalized.T))[-1])
