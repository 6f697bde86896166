"""The best rate over metric and multiplier together, for one system of any size.

With the metric eliminated (see ``riccati``), what is left is convex in x = log Λ: all Λ^½ H(s) Λ^{−½} on the contour
must be shorter than one. The method of centres keeps x in the middle of that set, in the sense of
−Σ log det(I − M*M) over a few points of the contour, and pushes the contour outwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lipschitz_rnn.stability.proof.rates import rate_to_level
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search.clock import UNLIMITED, Clock, OutOfTime
from lipschitz_rnn.stability.search.riccati import Loop, examine, metric

_POINTS, _POINTS_OF_LARGE, _LARGE = 14, 8, 160  # of the contour; for so many channels fewer points do
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
    if low is None and start is not None:
        return best_scaling(system, None, accuracy, enough, clock)
    if low is None:
        return None, -np.inf
    limit = low
    try:
        for better in _centres(loop, x, low, scale, accuracy, clock):
            x, limit = better
            clock.tell("full metric", limit)
            if enough is not None and limit > enough:
                break
    except OutOfTime:
        pass
    for fraction in (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 0.5):
        scaling = scaling_at(loop, limit - fraction * max(abs(limit), 1e-3 * scale), np.exp(x))
        if scaling is not None:
            return scaling, limit
    return None, limit


def scaling_at(loop: Loop, rate: float, multiplier: Matrix) -> Scaling | None:
    """The metric of a multiplier at a rate below its largest one: it proves less, but is further from singular."""
    P = metric(loop, rate, multiplier)
    if P is None:
        return None
    return Scaling(P, 2.0 * rate_to_level(rate, loop.step) ** (loop.step is not None) * multiplier)


def _centres(
    loop: Loop, x: Matrix, low: float, scale: float, accuracy: float, clock: Clock
) -> Iterator[tuple[Matrix, float]]:
    """Multipliers (their logarithms) with a rate of each, every one better than the last."""
    tolerance = accuracy * 1e-3 * scale
    limit, critical = _push(loop, x, low, 0.1 * scale, tolerance, clock)
    yield x, limit
    gap = min(max(limit - low, 0.1 * scale), scale)
    angles = _grid(loop, scale)
    for _ in range(_ROUNDS):
        fine = max(accuracy * abs(limit), tolerance)
        if gap < fine:
            return
        rate = limit - gap
        angles = _keep(loop, x, rate, np.union1d(angles, critical))
        trial = _recentre(loop, x, rate, angles, clock)
        reached, critical = _push(loop, trial, limit, gap, max(0.1 * gap, 0.2 * fine), clock)
        gap *= 0.9 if reached > limit + 0.3 * gap else 0.4
        if reached > limit:
            x, limit = trial, reached
            yield x, limit


def _feasible_rate(loop: Loop, x: Matrix, scale: float, clock: Clock) -> float | None:
    rate = loop.decay - 1e-3 * scale
    for distance in 2.0 ** np.arange(-6, 12):
        clock.check()
        if examine(loop, rate - distance * scale, np.exp(x)).exists:
            return float(rate - distance * scale)
    return None


def _push(loop: Loop, x: Matrix, low: float, stride: float, tolerance: float, clock: Clock) -> tuple[float, Matrix]:
    """A rate from ``low`` up for a fixed multiplier, within ``tolerance`` of the largest one, and the critical angles.

    First in growing strides, then by bisection. Every rate that is tried costs the spectrum of a Hamiltonian.
    """
    multiplier, high = np.exp(x), loop.decay
    angles = np.zeros(0)
    bracketed = False
    while high - low > tolerance:
        clock.check()
        rate = 0.5 * (low + high) if bracketed else min(low + 0.3 * stride, 0.5 * (low + high))
        if not low < rate < high:
            break
        verdict = examine(loop, rate, multiplier)
        if verdict.exists:
            low, stride = rate, 3.0 * stride
        else:
            high, angles, bracketed = rate, verdict.angles, True
    return low, angles


def _grid(loop: Loop, scale: float) -> Matrix:
    if loop.step is None:
        return np.concatenate(([0.0], np.geomspace(1e-2 * scale, 3 * scale, 12)))
    return np.concatenate(([0.0], np.geomspace(min(1e-2 * scale * loop.step, 0.1), np.pi, 12)))


def _scaled(loop: Loop, x: Matrix, rate: float, angles: Matrix) -> Matrix:
    half = np.exp(0.5 * x)
    return half[:, None] * loop.response(loop.contour(rate, angles)) / half


def _keep(loop: Loop, x: Matrix, rate: float, angles: Matrix) -> Matrix:
    """The angles where M is longest; the others do not shape the centre."""
    count = _POINTS if len(x) <= _LARGE else _POINTS_OF_LARGE
    if len(angles) <= count:
        return angles
    M = _scaled(loop, x, rate, angles)
    lengths = _power_iteration(M)
    return np.sort(angles[np.argsort(-lengths)[:count]])


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
