"""The best rate over metric and multiplier together, for one system of any size.

With the metric eliminated (see ``riccati``), what is left is convex in x = log Λ: all Λ^½ H(s) Λ^{−½} on the contour
must be shorter than one. The method of centres keeps x in the middle of that set, in the sense of
−Σ log det(I − M*M) over a few points of the contour, and pushes the contour outwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lipschitz_rnn.stability.proof.rates import rate_to_level
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search.clock import UNLIMITED, Clock, OutOfTime
from lipschitz_rnn.stability.search.riccati import Loop, critical_angles, metric, metric_exists

_POINTS = 14
_ROUNDS = 40


@dataclass(frozen=True)
class Scaling:
    """A metric (N, N) with a multiplier (m,), for someone else to check."""

    P: Matrix
    multiplier: Matrix


def best_scaling(
    system: System[Matrix],
    start: Matrix | None = None,
    accuracy: float = 1e-3,
    enough: float | None = None,
    clock: Clock = UNLIMITED,
) -> tuple[Scaling | None, float]:
    """The candidate with the best rate and that rate, which may be negative: then nothing is proved.

    Stops early once the rate reaches ``enough``. Out of time, the best multiplier until then counts.
    """
    loop = Loop.of(system)
    x = np.zeros(system.channels) if start is None else np.log(start) - np.mean(np.log(start))
    scale = max(float(np.linalg.norm(system.F - (0 if system.step is None else np.eye(system.size)), 2)), 1e-6)
    scale /= system.step or 1.0
    low = _feasible_rate(loop, x, scale, clock)
    if low is None:
        return None, -np.inf
    angles = _grid(loop, scale)
    tolerance = accuracy * 1e-3 * scale
    limit = _largest_rate(loop, x, low, tolerance, accuracy, clock)
    gap = min(max(limit - low, 0.1 * scale), scale)
    for _ in range(_ROUNDS):
        enough_gap = gap < max(accuracy * abs(limit), tolerance)
        if enough_gap or (enough is not None and limit > enough) or clock.left == 0.0:
            break
        rate = limit - gap
        angles = _keep(loop, x, rate, np.union1d(angles, critical_angles(loop, limit + 0.01 * gap, np.exp(x))))
        try:
            trial = _recentre(loop, x, rate, angles, clock)
            exists = metric_exists(loop, rate, np.exp(trial))
            reached = _largest_rate(loop, trial, rate, tolerance, accuracy, clock) if exists else rate
        except OutOfTime:
            break
        gap *= 0.9 if reached > limit + 0.3 * gap else 0.4
        if reached > limit:
            x, limit = trial, reached
    multiplier = np.exp(x)
    for fraction in (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 0.5):
        rate = limit - fraction * max(abs(limit), 1e-3 * scale)
        P = metric(loop, rate, multiplier)
        if P is not None:
            return Scaling(P, 2.0 * rate_to_level(rate, system.step) ** (system.step is not None) * multiplier), limit
    return None, limit


def _feasible_rate(loop: Loop, x: Matrix, scale: float, clock: Clock) -> float | None:
    rate = loop.decay - 1e-3 * scale
    for distance in 2.0 ** np.arange(-6, 12):
        clock.check()
        if metric_exists(loop, rate - distance * scale, np.exp(x)):
            return float(rate - distance * scale)
    return None


def _largest_rate(loop: Loop, x: Matrix, low: float, tolerance: float, accuracy: float, clock: Clock) -> float:
    """The largest rate for a fixed multiplier, by bisection from a rate that is possible."""
    multiplier, high = np.exp(x), loop.decay
    while high - low > max(tolerance, 0.2 * accuracy * abs(low)):
        clock.check()
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if metric_exists(loop, middle, multiplier):
            low = middle
        else:
            high = middle
    return low


def _grid(loop: Loop, scale: float) -> Matrix:
    if loop.step is None:
        return np.concatenate(([0.0], np.geomspace(1e-2 * scale, 3 * scale, 12)))
    return np.concatenate(([0.0], np.geomspace(min(1e-2 * scale * loop.step, 0.1), np.pi, 12)))


def _scaled(loop: Loop, x: Matrix, rate: float, angles: Matrix) -> Matrix:
    half = np.exp(0.5 * x)
    return half[:, None] * loop.response(loop.contour(rate, angles)) / half


def _keep(loop: Loop, x: Matrix, rate: float, angles: Matrix) -> Matrix:
    """The angles where M is longest; the others do not shape the centre."""
    if len(angles) <= _POINTS:
        return angles
    M = _scaled(loop, x, rate, angles)
    lengths = _power_iteration(M)
    return np.sort(angles[np.argsort(-lengths)[:_POINTS]])


def _power_iteration(M: Matrix) -> Matrix:
    """Lower estimates of ‖M_k‖ for a batch (K, m, m)."""
    vectors = np.ones((M.shape[0], M.shape[2], 1), dtype=complex)
    for _ in range(12):
        vectors = np.conj(np.swapaxes(M, 1, 2)) @ (M @ vectors)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-300
    return np.linalg.norm(M @ vectors, axis=(1, 2))


def _recentre(loop: Loop, x: Matrix, rate: float, angles: Matrix, clock: Clock) -> Matrix:
    """Newton steps on −Σ log det(I − M*M), which is convex in x and does not change when x is shifted."""
    H = loop.response(loop.contour(rate, angles))
    value, gradient, hessian = _potential(H, x)
    for _ in range(4):
        clock.check()
        if not np.trace(hessian) > 0:
            break  # H = 0: every multiplier is as good
        # The all-ones direction has no curvature; one unit there keeps the mean of x where it is.
        regular = hessian + np.ones_like(hessian) / len(x) * np.trace(hessian) / len(x)
        regular[np.diag_indices(len(x))] += 1e-9 * np.trace(hessian) / len(x)
        direction = -np.linalg.solve(regular, gradient)
        decrement = float(-gradient @ direction)
        if decrement < 1e-3:
            break
        length = 1.0 / (1.0 + np.sqrt(decrement)) if decrement > 0.25 else 1.0
        while length > 1e-6:
            trial = _potential(H, x + length * direction)
            if trial[0] < value:
                break
            length *= 0.5
        else:
            break
        x = x + length * direction
        value, gradient, hessian = trial
    return x - np.mean(x)


def _potential(H: Matrix, x: Matrix) -> tuple[float, Matrix, Matrix]:
    half = np.exp(0.5 * x)
    m = len(x)
    value, gradient, hessian = 0.0, np.zeros(m), np.zeros((m, m))
    for H_k in H:
        M = half[:, None] * H_k / half
        try:
            root = np.linalg.cholesky(np.eye(m) - M.conj().T @ M)
        except np.linalg.LinAlgError:
            return np.inf, gradient, hessian
        value -= 2.0 * float(np.sum(np.log(np.diag(root).real)))
        inverse = np.linalg.inv(root)
        S = inverse.conj().T @ inverse
        MS = M @ S
        MSM = MS @ M.conj().T
        trace = np.diag(S).real - np.diag(MSM).real
        gradient += 1.0 - trace
        hessian += _squares(S) - _squares(MS) - _squares(MS).T + _squares(MSM) - np.diag(trace)
    return value, gradient, hessian


def _squares(Z: Matrix) -> Matrix:
    return Z.real**2 + Z.imag**2
