"""Systems to certify, an attacker that knows nothing of how certificates are made, and who should be certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lipschitz_rnn.stability.proof.rates import rate_to_level
from lipschitz_rnn.stability.search.corners import levels
from lipschitz_rnn.stability.search.semidefinite import metric_for_jacobians

# The counterexample to case (b) as printed: its inequalities hold, yet the Jacobian at SLOPES grows.
COUNTEREXAMPLE_A = np.array(
    [
        [-0.009, -0.625, 1.293, -8.468],
        [0.626, -0.006, -1.352, -4.195],
        [-1.294, 1.353, -0.006, 3.567],
        [8.467, 4.194, -3.567, -0.006],
    ]
)
COUNTEREXAMPLE_W = np.array(
    [
        [-0.016, -1.471, -0.330, -10.827],
        [1.473, -0.011, -2.734, -5.859],
        [0.329, 2.735, -0.011, 5.313],
        [10.826, 5.858, -5.312, -0.010],
    ]
)
COUNTEREXAMPLE_SLOPES = np.array([0.00134, 0.335, 0.517, 0.898])


@dataclass(frozen=True)
class Setting:
    """How a pair runs: continuous time (steps None), or an integrator with shortest and longest step."""

    integrator: str
    steps: tuple[float, float] | None

    def keywords(self) -> dict[str, object]:
        if self.steps is None:
            return {}
        shortest, longest = self.steps
        return {"integrator": self.integrator, "step_size": longest if shortest == longest else self.steps}


def random_pair(rng: np.random.Generator, n: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A pair of one of the kinds in KINDS."""
    X, Y = rng.normal(size=(2, n, n)) / np.sqrt(n)
    skew, identity = X - X.T, np.eye(n)
    if kind == "easy":
        return rng.uniform(0.3, 2) * skew - rng.uniform(0.5, 2) * identity, rng.uniform(0.1, 0.8) * Y - 0.3 * identity
    if kind == "borderline":
        A, W = skew - 0.5 * identity, rng.uniform(0.5, 1.5) * Y - 0.5 * identity
        return A - (worst_growth(A, W, Setting("", None), rng) + rng.normal(0.0, 0.05)) * identity, W
    if kind == "unstable":
        return X - 0.2 * identity, 2.0 * Y
    if kind == "nonnormal":
        return -rng.uniform(0.5, 2) * identity + 3 * np.triu(X, 1), rng.uniform(0.1, 0.6) * Y
    if kind == "symmetric":
        root = Y + 0.3 * identity
        W = -(root @ root.T) - 0.01 * identity
        dissipation = X @ X.T + rng.uniform(0.02, 0.3) * identity
        # AᵀW + WA is positive definite by construction: A = −W⁻¹(dissipation + skew) with the sign that W < 0 asks for.
        return np.linalg.solve(W, dissipation + rng.uniform(0, 1) * skew), W
    if kind == "relative":
        noise = 10.0 ** rng.uniform(-4, -0.5)
        scale, shift = rng.uniform(0.1, 1.2), rng.uniform(0.0, 0.8)
        A = COUNTEREXAMPLE_A + noise * rng.normal(size=(4, 4)) - shift * np.eye(4)
        return scale * A, scale * (COUNTEREXAMPLE_W + noise * rng.normal(size=(4, 4)))
    raise ValueError(kind)


KINDS = ("easy", "borderline", "unstable", "nonnormal", "symmetric", "relative")


def random_systems(count: int, seed: int, largest: int = 32) -> Iterator[tuple[str, np.ndarray, np.ndarray, Setting]]:
    """Pairs of all kinds and sizes in all settings; every sixth is a relative of the counterexample."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        n = int(rng.integers(1, 9)) if rng.random() < 0.7 else int(rng.integers(9, largest + 1))
        A, W = random_pair(rng, n, kind)
        longest = float(10.0 ** rng.uniform(-2, 0))
        choice = int(rng.integers(0, 10))
        if choice < 3:
            setting = Setting("", None)
        elif choice < 8:
            setting = Setting(("euler", "midpoint", "heun", "rk4", "euler")[choice - 3], (longest, longest))
        else:
            setting = Setting(("euler", "midpoint")[choice - 8], (float(rng.choice([0.0, 0.3])) * longest, longest))
        yield kind, A, W, setting


def one_jacobian(A: np.ndarray, W: np.ndarray, integrator: str, step: float | None, slopes: np.ndarray) -> np.ndarray:
    """The Jacobian for slopes (stages, N), written out by hand for every method."""
    identity = np.eye(len(A))
    K = [A + d[:, None] * W for d in slopes]
    if step is None:
        return K[0]
    if integrator == "euler":
        return identity + step * K[0]
    if integrator == "midpoint":
        return identity + step * K[1] @ (identity + step / 2 * K[0])
    if integrator == "heun":
        return identity + step / 2 * (K[0] + K[1] @ (identity + step * K[0]))
    second = identity + step / 2 * K[0]
    third = identity + step / 2 * K[1] @ second
    fourth = identity + step * K[2] @ third
    return identity + step / 6 * (K[0] + 2 * K[1] @ second + 2 * K[2] @ third + K[3] @ fourth)


STAGES = {"": 1, "euler": 1, "midpoint": 2, "heun": 2, "rk4": 4}


def worst_growth(
    A: np.ndarray,
    W: np.ndarray,
    setting: Setting,
    rng: np.random.Generator,
    metric: np.ndarray | None = None,
    starts: int = 4,
) -> float:
    """The largest growth that an optimised slope pattern (and step) gives: λ of e^{λt}, or ln ‖·‖ of the map per step.

    Without a metric it is the spectral abscissa or log radius; with one, the logarithmic norm or log norm in that
    metric, which is what a certificate bounds. Coordinate ascent over the slopes, from corners and points inside.
    """
    n, stages = len(A), STAGES[setting.integrator]
    root = None if metric is None else np.linalg.cholesky(metric)

    def growth(slopes: np.ndarray, step: float | None) -> float:
        J = one_jacobian(A, W, setting.integrator, step, slopes)
        if root is not None:
            J = np.linalg.solve(root, (root.T @ J).T).T
            return (
                float(np.linalg.eigvalsh(0.5 * (J + J.T))[-1]) if step is None else float(np.log(np.linalg.norm(J, 2)))
            )
        eigenvalues = np.linalg.eigvals(J)
        return float(eigenvalues.real.max()) if step is None else float(np.log(np.abs(eigenvalues).max() + 1e-300))

    best = -np.inf
    for start in range(starts):
        step = None
        if setting.steps is not None:
            shortest, longest = setting.steps
            step = longest if start % 2 == 0 else max(float(rng.uniform(shortest, longest)), 1e-3 * longest)
        slopes = rng.integers(0, 2, (stages, n)).astype(float) if start else rng.random((stages, n))
        value = growth(slopes, step)
        for _ in range(3):
            improved = False
            for stage, unit in rng.permutation([(s, u) for s in range(stages) for u in range(n)]):
                kept = slopes[stage, unit]
                for trial in (0.0, 1.0, rng.random()):
                    slopes[stage, unit] = trial
                    reached = growth(slopes, step)
                    if reached > value + 1e-14:
                        value, kept, improved = reached, trial, True
                slopes[stage, unit] = kept
            if not improved:
                break
        best = max(best, value)
    return best


def worst_jacobians_share_a_metric(
    A: np.ndarray, W: np.ndarray, setting: Setting, rate: float, rng: np.random.Generator, most: int = 100
) -> bool:
    """Whether a sample of at most ``most`` bad slope patterns of a one-stage system contracts in a common metric.

    The sample begins with random patterns and with those that have the largest spectral growth. Then, by turns, a
    metric for the sample is looked for, and patterns that stretch most in it join, until none is found that breaks it.
    All searches climb by bit flips from random corners; nothing here enumerates the corners.
    """
    n, step = len(A), None if setting.steps is None else setting.steps[1]
    level = rate_to_level(rate, step)

    def jacobians(patterns: np.ndarray) -> np.ndarray:
        return np.stack([one_jacobian(A, W, setting.integrator, step, pattern[None]) for pattern in patterns])

    def spectral_growth(pattern: np.ndarray) -> float:
        eigenvalues = np.linalg.eigvals(jacobians(pattern[None])[0])
        return float(2 * eigenvalues.real.max() if step is None else np.abs(eigenvalues).max() ** 2)

    met = _climb(spectral_growth, n, rng, restarts=10)
    if max(met.values()) > level:
        return False
    sample = [
        *rng.integers(0, 2, (most // 5, n)),
        *(np.array(key) for key in sorted(met, key=met.__getitem__)[-most // 5 :]),
    ]
    while True:
        metric = metric_for_jacobians([jacobians(np.array(sample))], [level], step is None)
        if metric is None:
            return False

        def stretch(pattern: np.ndarray, metric: np.ndarray = metric) -> float:
            return float(levels(jacobians(pattern[None]), metric, step is None)[0])

        met = _climb(stretch, n, rng, restarts=10)
        worst = [np.array(key) for key in sorted(met, key=lambda key: -met[key])[:8] if met[key] > level]
        if not worst or len(sample) + len(worst) > most:
            return True
        sample += worst


def _climb(
    growth: Callable[[np.ndarray], float], n: int, rng: np.random.Generator, restarts: int
) -> dict[tuple[int, ...], float]:
    """All patterns met on the way up from random corners, with their growth."""
    met: dict[tuple[int, ...], float] = {}

    def value(pattern: np.ndarray) -> float:
        key = tuple(int(slope) for slope in pattern)
        if key not in met:
            met[key] = growth(pattern.astype(float))
        return met[key]

    for _ in range(restarts):
        pattern = rng.integers(0, 2, n)
        while True:
            best = max((np.where(np.arange(n) == unit, 1 - pattern, pattern) for unit in range(n)), key=value)
            if value(best) <= value(pattern):
                break
            pattern = best
    return met


def simulate(
    A: np.ndarray, W: np.ndarray, setting: Setting, rng: np.random.Generator, steps: int = 60
) -> tuple[np.ndarray, np.ndarray]:
    """Differences (steps + 1, N) of two tanh trajectories under one random input, and the steps' lengths (steps,).

    Continuous time is followed by RK4 steps so short that their error does not matter.
    """
    n = len(A)
    h, other = rng.normal(size=(2, n)) * rng.choice([0.01, 1.0, 5.0])
    tiny = 0.01 / (1.0 + np.linalg.norm(A, 2) + np.linalg.norm(W, 2))
    differences, lengths = [h - other], []
    for _ in range(steps):
        u = 2 * rng.normal(size=n)
        step = tiny if setting.steps is None else float(rng.uniform(*setting.steps))
        integrator = "rk4" if setting.steps is None else setting.integrator
        h, other = (advance(A, W, x, u, integrator, step) for x in (h, other))
        differences.append(h - other)
        lengths.append(step)
    return np.array(differences), np.array(lengths)


def advance(A: np.ndarray, W: np.ndarray, h: np.ndarray, u: np.ndarray, integrator: str, step: float) -> np.ndarray:
    """One step of the tanh network from h with the drive u = U x + b."""

    def f(x: np.ndarray) -> np.ndarray:
        return A @ x + np.tanh(W @ x + u)

    if integrator == "euler":
        return h + step * f(h)
    if integrator == "midpoint":
        return h + step * f(h + step / 2 * f(h))
    k1 = f(h)
    if integrator == "heun":
        return h + step / 2 * (k1 + f(h + step * k1))
    k2 = f(h + step / 2 * k1)
    k3 = f(h + step / 2 * k2)
    return h + step / 6 * (k1 + 2 * k2 + 2 * k3 + f(h + step * k3))
