"""What the rounding of the matrices, of α and of the step adds to the norm of a step.

The inequality is proved for αA, W and ε of exact arithmetic. A kernel holds αA + ΔA, W + ΔW and coefficients that are
off by a relative s. With K = αA + D W, stage states Sᵢ = I + Σⱼ cᵢⱼ Kⱼ Sⱼ and J = I + Σᵢ cᵢ Kᵢ Sᵢ, each deviation
follows from the earlier ones by the triangle inequality, in the norm of the metric and for all slopes at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lipschitz_rnn.stability.proof.inputs import Subject
from lipschitz_rnn.stability.proof.norms import MetricNorms, product, root, total
from lipschitz_rnn.stability.proof.rates import round_up
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System


@dataclass(frozen=True)
class HeldMatrices:
    """‖K‖ ≤ slope and ‖ΔK‖ ≤ change in the metric for all slopes; ``spread`` is s.

    A map that is no Runge–Kutta step has a ‖ΔJ‖ of its own, ``jacobian``.
    """

    slope: float
    change: float
    spread: float
    jacobian: float = 0.0

    @staticmethod
    def of(item: Subject, P: Matrix) -> HeldMatrices | None:
        """None if the metric is too close to singular for proved norms."""
        if item.precision.name == "exact":
            return HeldMatrices(0.0, 0.0, 0.0)
        try:
            metric = MetricNorms(P)
        except ValueError:
            return None
        if item.feedback is not None:
            return HeldMatrices(0.0, 0.0, 0.0, metric.entrywise(item.feedback.deviation(item.slopes, item.precision)))
        (A, W), (held_A, held_W) = item.nominal, item.held
        steepest = max(abs(slope) for slope in item.slopes)
        # The middles are the same; the difference of two members is at most the sum of the radii.
        radius = (held_A - A).upper_magnitude() + steepest * (held_W - W).upper_magnitude()
        radius *= 1 + 1e-12
        return HeldMatrices(metric.slope(A, W, item.slopes), metric.entrywise(radius), item.precision.scalars)

    def level(self, system: System[Matrix], proved: float) -> float:
        """The level of every map that a kernel may run, from the level of the exact one."""
        if self.change == self.spread == self.jacobian == 0.0:
            return proved
        if system.step is None:
            return round_up(Fraction(proved) + 2 * Fraction(self.change)) if math.isfinite(self.change) else math.inf
        factor = total(root(proved), self.step_change(system))
        return product(factor, factor)

    def step_change(self, system: System[Matrix]) -> float:
        """An upper bound of ‖ΔJ‖."""
        sizes: list[float] = []
        changes: list[float] = []
        for row in system.stages:
            size, change = self._combined(row, sizes, changes)
            sizes.append(total(1.0, size))
            changes.append(change)
        return total(self.jacobian, self._combined(system.weights, sizes, changes)[1])

    def _combined(
        self, coefficients: Sequence[Fraction], sizes: Sequence[float], changes: Sequence[float]
    ) -> tuple[float, float]:
        """Σ cⱼ Kⱼ Sⱼ: its norm, and that of its deviation, Σ c′(K′ΔS + ΔK S) + Δc K S."""
        norms, deviations = [], []
        for coefficient, size, change in zip(coefficients, sizes, changes, strict=True):
            c = round_up(abs(coefficient))
            moved = product(c, 1.0 + 2.0 * self.spread)
            norms.append(product(c, self.slope, size))
            deviations += [
                product(moved, total(self.slope, self.change), change),
                product(moved, self.change, size),
                product(c, self.spread, self.slope, size),
            ]
        return total(*norms), total(*deviations)
