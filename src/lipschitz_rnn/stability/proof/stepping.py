"""What one computed step can be off by, entry by entry: the local error of the running network.

For a state ĥ the kernels compute ĥ⁺ where exact arithmetic gives Φ(ĥ). Here |ĥ⁺ − Φ(ĥ)| ≤ r in every entry, from
magnitudes of the state and of the input alone. The derivation is in docs/theory.md, "The rounding of a trajectory".

All numbers are non-negative upper bounds in float64, and every function here is monotone in its arguments. Their own
rounding is far below a part in 10⁹, which callers add once (``OWN``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lipschitz_rnn.ops.lipschitz.integrators import Tableau
from lipschitz_rnn.stability.proof.arithmetic import Arithmetic
from lipschitz_rnn.stability.proof.rounding import Matrix

OWN = 1.0 + 1e-9

_BOUNDED = {"tanh": 1.0, "sigmoid": 1.0}
_SPAN = {"tanh": 2.0, "sigmoid": 1.0}  # by which two values of σ differ at most


@dataclass(frozen=True)
class Feed:
    """|U x| + |b| of a sample, and by how much the computed U x + b is off: both (…, N)."""

    size: Matrix
    error: Matrix

    @staticmethod
    def none(units: int) -> Feed:
        return Feed(np.zeros((1, units)), np.zeros((1, units)))


@dataclass(frozen=True)
class StepModel:
    """The step of one recurrence as the kernels of one precision compute it.

    Attributes:
        A, W: |αA| and |W| of exact arithmetic.
        A_off, W_off: by how much a kernel's entries differ from those.
        slope: the largest slope of σ; ``sigma`` its name.
        terms: the longest sum of products, with those of the input.
        scalars: relative error of ε and of ε times a coefficient.
    """

    A: Matrix
    W: Matrix
    A_off: Matrix
    W_off: Matrix
    slope: float
    sigma: str | None
    tableau: Tableau
    terms: int
    scalars: float
    arithmetic: Arithmetic

    @property
    def sigma_error(self) -> float:
        """Of σ, relative to its value; none where σ is a comparison or nothing at all."""
        return 0.0 if self.sigma in ("relu", "identity") else self.arithmetic.sigma

    def feed(self, x: Matrix, U: Matrix, U_off: Matrix, bias: Matrix, inputs: Arithmetic) -> Feed:
        """From |x| (…, p): the products with U are taken as ``inputs`` says."""
        size = x @ U.T + bias
        relative = inputs.product(self.terms) + inputs.received + 2 * self.arithmetic.unit
        lost = inputs.smallest * (self.terms + U.sum(1) + x.sum(-1, keepdims=True))
        error = x @ U_off.T + relative * (size + x @ U_off.T) + lost
        # Inputs that a cast makes infinite are no numbers behind it.
        return Feed(size, np.where(x.max(-1, keepdims=True, initial=0.0) < inputs.largest, error, np.inf))

    def drive(self, u: Matrix) -> Feed:
        """From |u| (…, N) that is given as it is."""
        error = self.arithmetic.received * u + self.arithmetic.smallest
        return Feed(u, np.where(u < self.arithmetic.largest, error, np.inf))

    def local(self, state: Matrix, feed: Feed, steps: Matrix) -> tuple[Matrix, Matrix]:
        """r for states of magnitude ``state`` (K, N) and steps (K, 1), and a bound on |Φ(h) − h|: both (K, N).

        A step of length zero changes nothing, in any kernel. Where something may overflow, r is infinite.
        """
        stages, largest = self._stages(state, feed, steps)
        reach, error = self._advanced(state, self.tableau.weights, stages, steps)
        largest = np.maximum(largest, reach.max(-1, keepdims=True))
        fits = (largest < self.arithmetic.largest) & np.isfinite(feed.error).all(-1, keepdims=True)
        error = np.where(fits, error, np.inf)
        error = np.where(np.isnan(error), np.inf, error)
        moved = steps * sum(abs(b) * size for b, (size, _) in zip(self.tableau.weights, stages, strict=True))
        return np.where(steps > 0.0, error * OWN, 0.0), np.where(steps > 0.0, moved * OWN, 0.0)

    def apart(self, state: Matrix, feed: Feed, steps: Matrix, between: float = 0.0) -> tuple[Matrix, Matrix]:
        """For Euler steps, what is off within σ and what is off outside: ĥ⁺ = ĥ + ε(αA ĥ + σ(z + η)) + ω.

        Bounds on |η| and |ω|, (K, N) each, for magnitudes as in ``local``; infinite where something may overflow. A new
        state that is rounded once more, relative to its size, has ``between``.
        """
        argument, argument_error = self._argument(state, feed)
        size, off = self._summed(state, self._value(argument + argument_error), 0.0)
        slope = size + off
        reach, error = self._advanced(state, self.tableau.weights, [(slope, off)], steps)
        largest = np.maximum(np.maximum(argument + argument_error, slope), reach).max(-1, keepdims=True)
        fits = (largest < self.arithmetic.largest) & np.isfinite(feed.error).all(-1, keepdims=True)
        return np.where(fits, argument_error * OWN, np.inf), np.where(fits, (error + between * reach) * OWN, np.inf)

    def growth_apart(self, between: float = 0.0) -> tuple[Matrix, Matrix, float]:
        """By how much both grow with |ĥ|: |η| by the first matrix times it, |ω| by ε times the second and by the number
        times it. Sums, products and minima again, so that bounds of both parts of a magnitude may be added.
        """
        model, nothing, eye = _without_constants(self), Feed.none(len(self.A)), np.eye(len(self.A))
        inside, outside = model.apart(eye, nothing, np.ones((1, 1)), between)
        kept = model.apart(eye, nothing, np.zeros((1, 1)), between)[1]
        return inside.T, outside.T, float(kept.max())

    def growth_fed(self, feed: Feed) -> tuple[float, float]:
        """The same for what a larger input feeds: of |η|, and of L|η| + |ω|/ε, where |U x| grows by one in each row."""
        model, still = _without_constants(self), np.zeros((1, len(self.A)))
        inside, outside = model.apart(still, feed, np.ones((1, 1)))
        return float(inside.max()), float((self.slope * inside + outside).max()) * OWN

    def growth(self, state: Matrix, steps: float, feed: Feed | None = None) -> Matrix:
        """By how much r grows at most when the magnitude of the state grows by ``state`` (N,), and that of the input by
        what ``feed`` says: (N,).

        r is made of sums, products with constants and minima with constants, so r(m + δ) ≤ r(m) + r₀(δ), where r₀ is r
        without its constant terms.
        """
        model = _without_constants(self)
        return model.local(state[None], feed or Feed.none(len(state)), np.full((1, 1), steps))[0][0]

    def growth_of_sizes(self, state: Matrix, steps: float, feed: Feed | None = None) -> float:
        """By how much the largest number of a step grows at most, for the same changes."""
        model, lengths = _without_constants(self), np.full((1, 1), steps)
        stages, largest = model._stages(state[None], feed or Feed.none(len(state)), lengths)
        reach, _ = model._advanced(state[None], self.tableau.weights, stages, lengths)
        return float(max(largest[0, 0], reach.max())) * OWN

    def _stages(self, state: Matrix, feed: Feed, steps: Matrix) -> tuple[list[tuple[Matrix, Matrix]], Matrix]:
        """|k̂ᵢ| and |k̂ᵢ − kᵢ| of every stage, (K, N) each, and the largest number on the way to them, (K, 1)."""
        stages: list[tuple[Matrix, Matrix]] = []
        largest: Matrix = np.zeros((len(state), 1))
        for row in self.tableau.stages:
            point, off = self._advanced(state, row, stages, steps) if any(row) else (state, None)
            slope, error, argument = self._slope(point, off, feed)
            stages.append((slope, error))
            for each in (point, slope, argument):
                largest = np.maximum(largest, each.max(-1, keepdims=True))
        return stages, largest

    def _slope(self, point: Matrix, off: Matrix | None, feed: Feed) -> tuple[Matrix, Matrix, Matrix]:
        """|k̂|, |k̂ − k| and the magnitude of σ's argument for a stage whose operand has this magnitude.

        It is off by ``off``, or by nothing.
        """
        argument, argument_error = self._argument(point, feed)
        size, error = self._summed(point, self._value(argument), self._passed(argument_error))
        if off is not None:
            error = error + off @ (self.A + self.slope * self.W).T
        return size + error, error, argument

    def _argument(self, point: Matrix, feed: Feed) -> tuple[Matrix, Matrix]:
        """The magnitude of σ's argument, and by how much it is off."""
        a = self.arithmetic
        inner, held = point @ self.W.T, point @ self.W_off.T
        size = inner + feed.size
        error = held + a.product(self.terms) * (inner + held) + a.smallest * (self.terms + self.W.sum(1)) + feed.error
        return size, error + (a.stored + 2 * a.unit) * (size + error)

    def _passed(self, argument_error: Matrix) -> Matrix:
        """By how much σ is off for that."""
        return np.minimum(self.slope * argument_error, _SPAN.get(self.sigma or "", np.inf))

    def _summed(self, point: Matrix, value: Matrix, value_error: Matrix | float) -> tuple[Matrix, Matrix]:
        """|αA ĥ + σ|, and by how much it is off, where |σ| ≤ value and its argument's error is counted already."""
        a = self.arithmetic
        linear, held = point @ self.A.T, point @ self.A_off.T
        linear_error = held + a.product(self.terms) * (linear + held) + a.smallest * (self.terms + self.A.sum(1))
        value_error = value_error + self.sigma_error * (value + value_error) + self._absolute()
        size = linear + value
        error = linear_error + value_error
        return size, error + (a.stored + 2 * a.unit) * (size + error)

    def _advanced(
        self, state: Matrix, coefficients: tuple[float, ...], stages: list[tuple[Matrix, Matrix]], steps: Matrix
    ) -> tuple[Matrix, Matrix]:
        """|ĥ + ε Σ cⱼk̂ⱼ| and by how much it is off."""
        a = self.arithmetic
        used = [(abs(c), *stage) for c, stage in zip(coefficients, stages, strict=False) if c != 0.0]
        added = sum((c * steps * size for c, size, _ in used), start=np.zeros_like(state))
        passed = sum((c * steps * error for c, _, error in used), start=np.zeros_like(state))
        reach = state + added * (1.0 + 2.0 * self.scalars)
        rounding = 1.01 * len(used) * a.unit * reach + (self.scalars + (len(used) + 1) * a.unit) * added
        return reach, passed * (1.0 + 2.0 * self.scalars) + rounding + a.smallest

    def _value(self, argument: Matrix) -> Matrix:
        bound = _BOUNDED.get(self.sigma or "")
        if self.sigma == "sigmoid" and bound is not None:
            return np.full_like(argument, bound)
        if bound is not None:
            return np.minimum(argument, bound)
        return self.slope * argument

    def _absolute(self) -> float:
        a = self.arithmetic
        return (a.sigma_absolute if self.sigma in _BOUNDED else 0.0) + a.smallest


def _without_constants(model: StepModel) -> StepModel:
    plain = replace(model.arithmetic, smallest=0.0, sigma_absolute=0.0, largest=np.inf, sigma=model.sigma_error)
    return replace(model, arithmetic=plain, sigma=None)
