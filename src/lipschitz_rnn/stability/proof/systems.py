"""The layer's dynamics with the nonlinearity cut out: a linear system and slopes that may be anything allowed.

Two trajectories under the same input differ by δ, and σ(a) − σ(b) = d · (a − b) with a slope d in σ's range. So

    continuous   δ̇  = F δ + G w        v = C δ + E w        w = D v,   D = diag(d), 0 ≤ d ≤ 1
    discrete     δ⁺ = F δ + G w

where every stage of a Runge–Kutta step has its own block of w and v. Slopes in [l, u] are brought to [0, 1] by
A ← αA + l W and W ← (u − l) W. Nothing else in this package writes these formulas down.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from lipschitz_rnn.ops.lipschitz.integrators import Tableau
from lipschitz_rnn.stability.proof.rounding import UNIT, Ball, Matrix, block

M = TypeVar("M", Matrix, Ball)


@dataclass(frozen=True)
class System(Generic[M]):
    """F (N, N), G (N, m), C (m, N), E (m, m) as above; ``time`` is what one step takes, None if continuous.

    ``stages`` and ``weights`` are the tableau's coefficients times the step, empty if continuous or not a tableau's.
    ``depth`` says after how many factors E vanishes: E^(depth + 1) = 0.
    """

    F: M
    G: M
    C: M
    E: M
    time: Fraction | None
    stages: tuple[tuple[Fraction, ...], ...] = ()
    weights: tuple[Fraction, ...] = ()
    depth: int = 0

    @cached_property
    def step(self) -> float | None:
        """The time of one step as a float, for a search."""
        return None if self.time is None else float(self.time)

    @property
    def size(self) -> int:
        return int(self.F.shape[0])

    @property
    def channels(self) -> int:
        return int(self.G.shape[1])


def sector_form(A: M, W: M, slopes: tuple[float, float]) -> tuple[M, M]:
    """(αA, W) of the same system with slopes in [0, 1], from αA and W."""
    low, high = (Fraction(slope) for slope in slopes)
    return A + _number(A, low) * W, _number(A, high - low) * W


def continuous_system(A: M, W: M) -> System[M]:
    """ḣ = A h + σ(W h + u) with slopes in [0, 1]."""
    identity, zero = _constant(A, 1.0), _constant(A, 0.0)
    return System(A, identity, W, zero, None)


def runge_kutta_system(A: M, W: M, tableau: Tableau, step: float | Fraction) -> System[M]:
    """One step of an explicit method, exactly: stage states δᵢ = δ + ε Σⱼ aᵢⱼ kⱼ, kⱼ = A δⱼ + wⱼ, vᵢ = W δᵢ."""
    time = Fraction(step)
    stages = tuple(tuple(time * Fraction(a) for a in row) for row in tableau.stages)
    return _staged_system(A, W, stages, tuple(time * Fraction(b) for b in tableau.weights), time, _inexact(tableau))


def bezier_corner(A: M, W: M, tableau: Tableau, shortest: float | Fraction, longest: float | Fraction) -> System[M]:
    """The middle Bézier point of a two-stage method's map over the steps between ``shortest`` and ``longest``.

    J(ε) = I + ε(b₁K₁ + b₂K₂) + ε² b₂a K₂K₁ is a parabola in ε. Over [s, t] it lies in the convex hull of J(s), J(t) and
    I + τ(b₁K₁ + b₂K₂) + st·b₂a K₂K₁ with τ = (s + t)/2, which is again a two-stage step, with a·st/τ for a.
    """
    first, last = Fraction(shortest), Fraction(longest)
    time = (first + last) / 2
    stages = ((), (Fraction(tableau.stages[1][0]) * first * last / time,))
    return _staged_system(A, W, stages, tuple(time * Fraction(b) for b in tableau.weights), time, _inexact(tableau))


def _inexact(tableau: Tableau) -> float:
    """Room for coefficients such as 1/6, whose float is not the number that is meant; relative."""
    coefficients = [*tableau.weights, *(a for row in tableau.stages for a in row)]
    return 0.0 if all(Fraction(number).denominator <= 1024 for number in coefficients) else 2 * UNIT


def _staged_system(
    A: M,
    W: M,
    stages: tuple[tuple[Fraction, ...], ...],
    weights: tuple[Fraction, ...],
    time: Fraction,
    inexact: float,
) -> System[M]:
    count = len(weights)
    identity, zero = _constant(A, 1.0), _constant(A, 0.0)
    # Every signal is a row of count + 1 blocks: what multiplies δ, w₁, …, w_count.
    slopes: list[list[M]] = []
    states: list[list[M]] = []
    for stage in range(count):
        state = [identity] + [zero] * count
        for coefficient, slope in zip(stages[stage], slopes, strict=True):
            if coefficient != 0:
                number = _number(A, coefficient, inexact)
                state = [s + number * k for s, k in zip(state, slope, strict=True)]
        states.append(state)
        slope = [A @ s for s in state]
        slope[stage + 1] = slope[stage + 1] + identity
        slopes.append(slope)
    result = [identity] + [zero] * count
    for weight, slope in zip(weights, slopes, strict=True):
        if weight != 0:
            number = _number(A, weight, inexact)
            result = [r + number * k for r, k in zip(result, slope, strict=True)]
    outputs = [[W @ block for block in state] for state in states]
    return System(
        F=result[0],
        G=_assemble([result[1:]]),
        C=_assemble([[row[0]] for row in outputs]),
        E=_assemble([row[1:] for row in outputs]),
        time=time,
        stages=stages,
        weights=weights,
        depth=count - 1,
    )


def jacobian(system: System[Matrix], slopes: Matrix) -> Matrix:
    """δ ↦ δ̇ or δ⁺ for given slopes (m,): F + G (I − D E)⁻¹ D C. Explicit stages make the inverse exist."""
    D = slopes[:, None]
    return system.F + system.G @ np.linalg.solve(np.eye(system.channels) - D * system.E, D * system.C)


def enclosed_jacobians(system: System[Ball], corners: Matrix) -> Ball:
    """The Jacobians at slopes (K, m), with their rounding: w = D(C + E w) settles after as many rounds as E has."""
    D = Ball.exact(corners[:, :, None] * np.eye(system.channels))
    response = D @ system.C
    for _ in range(system.depth):
        response = D @ (system.C + system.E @ response)
    return system.F + system.G @ response


def _number(like: Any, value: Fraction, inexact: float = 0.0) -> Any:
    """A coefficient for matrices: a float; for balls: a ball that holds it."""
    return Ball.number(value, inexact) if isinstance(like, Ball) else float(value)


def _constant(like: M, value: float) -> M:
    matrix = value * np.eye(like.shape[0])
    return Ball.exact(matrix) if isinstance(like, Ball) else matrix  # type: ignore[return-value]


def _assemble(rows: list[list[M]]) -> M:
    if isinstance(rows[0][0], Ball):
        return block(rows)  # type: ignore[arg-type, return-value]
    return np.block(rows)  # type: ignore[arg-type, return-value]
