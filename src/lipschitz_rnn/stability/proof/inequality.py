"""The incremental matrix inequality, which every certificate relies on.

For w = D v with slopes in [0, 1], every wᵢ(vᵢ − wᵢ) ≥ 0. If P ≻ 0 and a diagonal Λ ≥ 0 make

    d/dt ‖δ‖²_P − t ‖δ‖²_P + 2 wᵀΛ(v − w) ≤ 0        (continuous,  t = −2λ)
    ‖δ⁺‖²_P     − t ‖δ‖²_P + 2 wᵀΛ(v − w) ≤ 0        (discrete,    t = ρ²)

for all δ and w, then the norm ‖·‖_P of the difference decays at the rate λ, or by the factor ρ in every step. The
number t is called *level* here; smaller is better.
"""

from __future__ import annotations

import math

import numpy as np

from lipschitz_rnn.stability.proof.rounding import Ball, Matrix, block, largest_eigenvalue_bound
from lipschitz_rnn.stability.proof.systems import M, System


def quadratic_form(system: System[M], P: M, multiplier: M) -> M:
    """The matrix of the left side at level 0, (N + m, N + m); ``multiplier`` is the diagonal matrix Λ (m, m)."""
    LC, LE = multiplier @ system.C, multiplier @ system.E
    corner = LE + LE.T - (multiplier + multiplier)
    PF, PG = P @ system.F, P @ system.G
    if system.step is None:
        rows = [[PF + PF.T, PG + LC.T], [PG.T + LC, corner]]
    else:
        cross = system.F.T @ PG
        rows = [[system.F.T @ PF, cross + LC.T], [cross.T + LC, system.G.T @ PG + corner]]
    return block(rows) if isinstance(P, Ball) else np.block(rows)  # type: ignore[arg-type, return-value]


def verified_margin(system: System[Ball], P: Matrix, multiplier: Matrix, level: float) -> float:
    """By how much the inequality holds at this level after subtracting all rounding; positive means proved.

    The form is brought to a scale where P and 2Λ are the identity by a congruence with a nonsingular triangular matrix;
    whatever rounding that matrix carries, it is the matrix used, so the sign of the result is not touched by it.
    """
    if not (np.all(np.isfinite(P)) and np.all(multiplier > 0) and np.all(np.isfinite(multiplier))):
        return -math.inf
    if not np.array_equal(P, P.T):
        return -math.inf
    try:
        root = np.linalg.cholesky(P)
    except np.linalg.LinAlgError:
        return -math.inf
    n, m = system.size, system.channels
    change = np.zeros((n + m, n + m))
    change[:n, :n] = np.triu(np.linalg.solve(root, np.eye(n)).T)
    change[n:, n:] = np.diag(1.0 / np.sqrt(2.0 * multiplier))
    if not (np.all(np.isfinite(change)) and np.all(np.diag(change) > 0)):
        return -math.inf
    T, metric = Ball.exact(change), Ball.exact(P)
    corner = Ball.exact(change[:n, :n])
    if largest_eigenvalue_bound(-(corner.T @ metric @ corner)) >= 0.0:
        return -math.inf
    form = quadratic_form(system, metric, Ball.exact(np.diag(multiplier))) - level * _padded(metric, m)
    return -largest_eigenvalue_bound(T.T @ form @ T)


def _padded(P: Ball, m: int) -> Ball:
    return Ball(np.pad(P.mid, (0, m)), np.pad(P.rad, (0, m)))
