"""The best diagonal multiplier for a given metric: a small semidefinite program with its own barrier method.

Every multiplier enters through a matrix of rank two, so one Newton step costs a few products of the inequality's
size. A general solver would need minutes where this needs a second.
"""

from __future__ import annotations

import numpy as np

from lipschitz_rnn.stability.proof.inequality import quadratic_form
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search.clock import UNLIMITED, Clock
from lipschitz_rnn.stability.search.levels import best_level

_NEWTON_STEPS = 120


def feasible_multiplier(system: System[Matrix], P: Matrix, clock: Clock = UNLIMITED) -> Matrix | None:
    """Some Λ for which the inequality has a level at all, or None.

    Tried are multiples of the identity and of ‖column of G‖ / ‖row of C‖ in the metric, which puts what a unit sends
    and what it receives on one scale. Later stages may get smaller entries, which tames E.
    """
    stages = max(len(system.weights), 1)
    root = np.linalg.cholesky(P)
    sent = np.linalg.norm(root.T @ system.G, axis=0)
    received = np.linalg.norm(np.linalg.solve(root, system.C.T), axis=0)
    typical = float(np.median(sent)) * max(float(np.median(sent)), 1e-6) / max(float(np.median(received)), 1e-6)
    balanced = np.clip(sent, 1e-9, None) / np.clip(received, 1e-9, None)
    best, found = np.inf, None
    for shape in (np.full(system.channels, max(typical, 1e-9)), balanced):
        for ratio in (1.0, 0.3, 0.1, 0.01) if stages > 1 else (1.0,):
            staged = shape * np.repeat(ratio ** (np.arange(stages) - (stages - 1)), system.channels // stages)
            for factor in 4.0 ** np.arange(-5, 8):
                clock.check()
                level = best_level(system, P, factor * staged)
                if level < best:
                    best, found = level, factor * staged
    return found


def best_multiplier(
    system: System[Matrix], P: Matrix, start: Matrix | None = None, accuracy: float = 1e-9, clock: Clock = UNLIMITED
) -> Matrix | None:
    """argmin over Λ of the level for the metric P, by a barrier method from ``start``; None if no start is feasible."""
    if start is None or not np.isfinite(best_level(system, P, start)):
        start = feasible_multiplier(system, P, clock)
    if start is None:
        return None
    n, m = system.size, system.channels
    root = np.linalg.cholesky(P)
    inverse = np.linalg.solve(root, np.eye(n)).T
    change = np.eye(n + m)
    change[:n, :n] = inverse
    fixed = change.T @ quadratic_form(system, P, np.zeros((m, m))) @ change
    # Multiplier i enters as aᵢbᵢᵀ + bᵢaᵢᵀ, aᵢ = the unit vector of wᵢ, bᵢ = the row that gives vᵢ − wᵢ.
    rows = np.hstack((system.C @ inverse, system.E - np.eye(m)))
    corner = np.zeros(n + m)
    corner[:n] = 1.0

    def slack(level: float, multiplier: Matrix) -> Matrix:
        weighted = multiplier[:, None] * rows
        result = -fixed + np.diag(level * corner)
        result[n:] -= weighted
        result[:, n:] -= weighted.T
        return result

    multiplier = start.copy()
    first = best_level(system, P, multiplier)
    spread = max(abs(first), 1e-3)
    level, weight = first + 0.1 * spread, (n + m) / spread
    for _ in range(_NEWTON_STEPS):
        if clock.left == 0.0:
            break
        try:
            Q = np.linalg.inv(slack(level, multiplier))
        except np.linalg.LinAlgError:
            break
        Qr = Q @ rows.T
        aQa, aQb, bQb = Q[n:, n:], Qr[n:], rows @ Qr
        gradient = np.append(2.0 * np.diag(aQb) - 1.0 / multiplier, weight - np.trace(Q[:n, :n]))
        hessian = np.empty((m + 1, m + 1))
        hessian[:m, :m] = 2.0 * (aQa * bQb + aQb * aQb.T) + np.diag(multiplier**-2.0)
        hessian[m, :m] = hessian[:m, m] = -2.0 * np.einsum("ki,ki->i", Q[:n, n:], Qr[:n])
        hessian[m, m] = np.sum(Q[:n, :n] ** 2)
        # Multipliers may differ by many orders of magnitude; a unit diagonal keeps the system well conditioned.
        if not np.all(np.diag(hessian) > 0):
            break
        unit = 1.0 / np.sqrt(np.diag(hessian))
        try:
            direction = -unit * np.linalg.solve(unit[:, None] * hessian * unit + 1e-13 * np.eye(m + 1), unit * gradient)
        except np.linalg.LinAlgError:
            break
        decrement = float(-gradient @ direction)
        length = 1.0
        while length > 1e-8 and not _inside(slack, level + length * direction[m], multiplier + length * direction[:m]):
            length *= 0.5
        if length <= 1e-8:
            break
        length *= 1.0 if length == 1.0 else 0.8
        level, multiplier = level + length * float(direction[m]), multiplier + length * direction[:m]
        if decrement < 0.5:
            if (n + m) / weight < accuracy * max(abs(level), 1e-3):
                break
            weight *= 6.0
    return multiplier if best_level(system, P, multiplier) <= first else start


def _inside(slack, level: float, multiplier: Matrix) -> bool:  # type: ignore[no-untyped-def]
    if np.any(multiplier <= 0):
        return False
    try:
        np.linalg.cholesky(slack(level, multiplier))
    except np.linalg.LinAlgError:
        return False
    return True
