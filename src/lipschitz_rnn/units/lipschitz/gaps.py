"""Long gaps: a time that is too long for one step of the integrator is told once, with the number and the remedy.

Where σ saturates, a large state follows ḣ = αA h alone. One step of time s then multiplies the part of it that belongs
to an eigenvalue λ of αA by R(sλ), with the method's stability polynomial R, and the equation itself by e^{sλ}. A step
is out of range where the largest |R| exceeds both 1 and what the equation does, by more than five percent. relu and
identity keep a slope for large states, so that αA + W is looked at too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.ops.lipschitz.integrators import Tableau, get_integrator
from lipschitz_rnn.units.arguments import warn_user

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell

ALLOWED = 1.05
_SLOPES_OF_LARGE_STATES = {"tanh": (0.0,), "sigmoid": (0.0,), "relu": (0.0, 1.0), "identity": (1.0,)}


@dataclass
class Told:
    """Whether the user knows; shared by all units of a layer and by its streams."""

    already: bool = False


@dataclass
class GapWatch:
    """Looks at the times that a unit is given.

    A spectrum is computed for a time longer than all before, and otherwise only at every call whose number is twice
    that of the last one it was computed at: parameters move slowly, and a hundred thousand training steps cost 17.
    """

    told: Told = field(default_factory=Told)
    fine_up_to: float = 0.0
    calls: int = 0
    next_check: int = 1
    scheme: tuple[object, ...] = ()

    def reset(self) -> None:
        """Other parameters: what was fine need not be."""
        self.fine_up_to, self.calls, self.next_check = 0.0, 0, 1

    def look(self, cell: LipschitzRNNCell, time: float, matrices: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Warn where a step of ``time``, or of the unit's ``max_step`` if that is shorter, is out of range.

        Args:
            matrices: gives αA and W; asked only where they are needed.
        """
        if self.told.already or isinstance(cell.step_size, Tensor):  # a tensor in an ensemble
            return
        if time <= cell.step_size or cell.stability is not None:
            return
        which = f"timespans reaches {time:g}"
        if cell.max_step is not None and time > cell.max_step:
            time, which = cell.max_step, f"max_step is {cell.max_step:g}"
        scheme = (cell.integrator, cell.nonlinearity)
        if scheme != self.scheme:
            self.reset()
            self.scheme = scheme
        self.calls += 1
        if time <= self.fine_up_to and self.calls < self.next_check:
            return
        linear, W = matrices()
        if not has_values(linear):
            return
        self.next_check = 2 * self.calls
        verdict = judge(linear.detach(), W.detach(), time, get_integrator(cell.integrator), cell.nonlinearity)
        if verdict is None:
            self.fine_up_to = time
            return
        self.told.already = True
        warn_user(
            f"{which}, too long for one {cell.integrator} step of this unit: such a step multiplies a large state by "
            f"up to {verdict.factor:.3g}, and only steps up to {verdict.longest:.3g} are stable. Set "
            f"max_step={verdict.suggested:g} to take longer times in several steps, or scale time down"
        )


@dataclass(frozen=True)
class Verdict:
    """On a step that is out of range: its factor, the longest step in range, and a max_step for such times."""

    factor: float
    longest: float
    suggested: float


def judge(linear: Tensor, W: Tensor, time: float, tableau: Tableau, nonlinearity: str) -> Verdict | None:
    """None where a step of ``time`` is in range. ``linear`` is αA, (N, N)."""
    matrices = [linear if slope == 0.0 else linear + slope * W for slope in _SLOPES_OF_LARGE_STATES[nonlinearity]]
    matrices = [matrix.double().cpu() for matrix in matrices]
    coefficients = stability_polynomial(tableau)
    if all(_surely_fine(matrix, time, coefficients) for matrix in matrices):
        return None
    if not all(bool(matrix.isfinite().all()) for matrix in matrices):
        return None  # NaN shows in the result
    eigenvalues = torch.cat([torch.linalg.eigvals(matrix) for matrix in matrices])

    def factor(span: float) -> float:
        return float(_evaluate(coefficients, span * eigenvalues).abs().max())

    def in_range(span: float) -> bool:
        return factor(span) <= ALLOWED * max(1.0, float((span * eigenvalues.real).max().exp()))

    # From below: where the equation itself grows, much longer steps may seem to be in range again.
    start = 0.1 / max(float(eigenvalues.abs().max()), 0.1 / time)  # where every method is in range
    doublings = range(1, 1 + math.ceil(math.log2(time / start)))
    bad = next((span for span in (min(time, start * 2.0**n) for n in doublings) if not in_range(span)), None)
    if bad is None:
        return None
    longest = _bisect(0.5 * bad, bad, in_range)
    horizon = min(time, 8.0 * longest)

    def together_in_range(size: float) -> bool:
        """Whether steps of this size are so over many of them, and for each eigenvalue alone."""
        of_steps = _evaluate(coefficients, size * eigenvalues).abs() ** (horizon / size)
        return bool((of_steps <= ALLOWED * (horizon * eigenvalues.real).exp().clamp(min=1.0)).all())

    size = next((size for size in (longest / 2**power for power in range(40)) if together_in_range(size)), longest)
    return Verdict(factor(time), longest, _rounded_down(_bisect(size, min(2.0 * size, longest), together_in_range)))


def stability_polynomial(tableau: Tableau) -> list[float]:
    """Coefficients c₀ … cₛ of R(z) = 1 + Σ cₙ zⁿ, cₙ = bᵀ Aⁿ⁻¹ 1 of the method's tableau."""
    coefficients, powers = [1.0], [1.0] * len(tableau)
    for _ in tableau.weights:
        coefficients.append(sum(b * p for b, p in zip(tableau.weights, powers, strict=True)))
        powers = [sum(a * p for a, p in zip(row, powers, strict=False)) for row in tableau.stages]
    return coefficients


def _evaluate(coefficients: list[float], z: Tensor) -> Tensor:
    value = torch.zeros_like(z)
    for coefficient in reversed(coefficients):
        value = value * z + coefficient
    return value


def _surely_fine(matrix: Tensor, time: float, coefficients: list[float]) -> bool:
    """Without eigenvalues: |R(z) − e^z| ≤ Σ |cₙ − 1/n!| rⁿ for all |z| ≤ r, and √(‖·‖₁‖·‖_∞) bounds them all."""
    columns, rows = (float(matrix.abs().sum(dim).max()) for dim in (0, 1))
    radius = time * math.sqrt(columns * rows)
    if not radius < 3.0:
        return False
    known = [radius**n / math.factorial(n) for n in range(len(coefficients))]
    off = sum(abs(c * radius**n - term) for n, (c, term) in enumerate(zip(coefficients, known, strict=True)))
    return off + math.exp(radius) - sum(known) <= ALLOWED - 1.0


def _bisect(good: float, bad: float, holds: Callable[[float], bool]) -> float:
    """The largest value from ``good`` up to ``bad`` that holds, to three digits."""
    while bad - good > 1e-3 * good:
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _rounded_down(value: float) -> float:
    """To two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / unit) * unit:.2g}")
