"""Counterexamples: slopes for which the system does not contract in any metric, and directions that stretch.

A slope pattern D whose Jacobian has an eigenvalue outside the contour of a rate rules that rate out for every metric,
quadratic or not, because the slopes may stay at D. The search follows the eigenvalue's gradient to corners of the cube
of slopes, from several starts. It can miss the worst pattern, and its eigenvalues are computed in float64: close to the
contour, or for matrices far from normal, they can be on the wrong side. So what it finds ends a search, but does not
prove that no metric exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System, jacobian
from lipschitz_rnn.stability.search.clock import UNLIMITED, Clock


@dataclass(frozen=True)
class WorstSlopes:
    """Slopes (m,) in [0, 1], their Jacobian's rate of decay (negative: it grows) and its slowest direction (N,)."""

    slopes: Matrix
    rate: float
    direction: Matrix


def worst_slopes(
    system: System[Matrix], starts: int = 6, sweeps: int = 12, seed: int = 0, clock: Clock = UNLIMITED
) -> WorstSlopes:
    """Search for the slopes with the slowest decay (or the fastest growth); out of time, the worst ones so far."""
    rng = np.random.default_rng(seed)
    m = system.channels
    first = [np.ones(m), np.zeros(m), np.full(m, 0.5)]
    patterns = first + [rng.integers(0, 2, m).astype(float) for _ in range(max(0, starts - 3))]
    best: WorstSlopes | None = None
    for pattern in patterns:
        if best is not None and clock.left == 0.0:
            break
        found = _climb(system, pattern, sweeps, clock)
        if best is None or found.rate < best.rate:
            best = found
    assert best is not None  # patterns is never empty
    return best


def _climb(system: System[Matrix], slopes: Matrix, sweeps: int, clock: Clock) -> WorstSlopes:
    current, gradient = _evaluate(system, slopes)
    for _ in range(sweeps):
        if clock.left == 0.0:
            break
        corner = (gradient > 0).astype(float)
        # All at once often overshoots, as the eigenvector turns; then only the entries that promise most are moved.
        promise = np.abs(gradient) * np.abs(corner - current.slopes)
        order = np.argsort(-promise)
        for fraction in (1.0, 0.5, 0.2, 0.05, 0.0):
            count = max(1, int(fraction * len(order)))
            trial = current.slopes.copy()
            trial[order[:count]] = corner[order[:count]]
            candidate, slope = _evaluate(system, trial)
            if candidate.rate < current.rate - 1e-12 * abs(current.rate):
                current, gradient = candidate, slope
                break
        else:
            break
    return current


def _evaluate(system: System[Matrix], slopes: Matrix) -> tuple[WorstSlopes, Matrix]:
    """The pattern's rate, and the gradient of its growth with respect to the slopes."""
    J = jacobian(system, slopes)
    eigenvalues, right = np.linalg.eig(J)
    magnitude = eigenvalues.real if system.step is None else np.abs(eigenvalues)
    index = int(np.argmax(magnitude))
    value, x = eigenvalues[index], right[:, index]
    # The left eigenvector is a row of the inverse of the right ones; a solve is enough for one row.
    unit = np.zeros(len(J), dtype=complex)
    unit[index] = 1.0
    try:
        y = np.linalg.solve(right.T, unit)
    except np.linalg.LinAlgError:
        y = x.conj()
    m = system.channels
    into = np.linalg.solve((np.eye(m) - slopes[:, None] * system.E).T, system.G.T @ y)
    out = np.linalg.solve(np.eye(m) - system.E * slopes, system.C @ x)
    sensitivity = into * out
    if system.step is not None:
        sensitivity = sensitivity * np.conj(value) / max(abs(value), 1e-300)
    rate = (
        -float(magnitude[index]) if system.step is None else -float(np.log(max(magnitude[index], 1e-300))) / system.step
    )
    direction = x.real if np.linalg.norm(x.real) >= np.linalg.norm(x.imag) else x.imag
    return WorstSlopes(slopes, rate, direction / max(float(np.linalg.norm(direction)), 1e-300)), sensitivity.real
