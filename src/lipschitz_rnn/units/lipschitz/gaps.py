"""Long gaps: warn once if a timespan is too long for one stable step of the integrator, and suggest a max_step.

Where σ saturates, a large state follows ḣ = αA h. A step of length s multiplies its component along an eigenvector of
αA with eigenvalue λ by R(sλ), where R is the method's stability polynomial; the exact factor is e^{sλ}. A step is
called unstable if the largest |R| exceeds both 1 and the largest exact factor by more than five percent. relu and
identity do not saturate, so αA + W is checked as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.deprecation import warn_user
from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.ops.lipschitz.integrators import Tableau, get_integrator

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell

ALLOWED = 1.05
_SLOPES_OF_LARGE_STATES = {"tanh": (0.0,), "sigmoid": (0.0,), "relu": (0.0, 1.0), "identity": (1.0,)}


@dataclass
class WarnedOnce:
    """Whether the warning was issued; shared by all cells of a layer and by its streams."""

    warned: bool = False


Told = WarnedOnce  # its name in modules that an earlier version pickled


@dataclass
class GapWatch:
    """Checks the times passed to a unit.

    The spectrum is computed when a time is longer than all before, and otherwise only when the number of calls has
    doubled since the last time: parameters change slowly, and 100,000 training steps then cost 17 spectra.
    """

    shared: WarnedOnce = field(default_factory=WarnedOnce)
    stable_up_to: float = 0.0
    calls: int = 0
    next_check: int = 1
    scheme: tuple[object, ...] = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, of an earlier version too, which had other names for some fields."""
        self.shared = state.get("shared") or state.get("told") or WarnedOnce()
        self.scheme = state.get("scheme", ())
        self.reset()

    def reset(self) -> None:
        """Forget earlier checks, because the parameters have changed."""
        self.stable_up_to, self.calls, self.next_check = 0.0, 0, 1

    def check(self, cell: LipschitzRNNCell, time: float, matrices: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Warn if a step of ``time``, or of the unit's ``max_step`` if that is shorter, is unstable.

        Args:
            matrices: returns αA and W; called only if they are needed.
        """
        if self.shared.warned or isinstance(cell.step_size, Tensor):  # a tensor in an ensemble
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
        if time <= self.stable_up_to and self.calls < self.next_check:
            return
        linear, W = matrices()
        if not has_values(linear):
            return
        self.next_check = 2 * self.calls
        found = find_instability(linear.detach(), W.detach(), time, get_integrator(cell.integrator), cell.nonlinearity)
        if found is None:
            self.stable_up_to = time
            return
        self.shared.warned = True
        warn_user(
            f"{which}, too long for one {cell.integrator} step of this unit: one step multiplies a large state by up "
            f"to {found.factor:.3g}, and only steps up to {found.longest:.3g} are stable. Set "
            f"max_step={found.suggested:g} to split longer times into several steps, or rescale time"
        )


@dataclass(frozen=True)
class Instability:
    """An unstable step: its growth factor, the longest stable step, and a max_step that avoids it."""

    factor: float
    longest: float
    suggested: float


def find_instability(linear: Tensor, W: Tensor, time: float, tableau: Tableau, nonlinearity: str) -> Instability | None:
    """None if a step of ``time`` is stable. ``linear`` is αA, (N, N)."""
    matrices = [linear if slope == 0.0 else linear + slope * W for slope in _SLOPES_OF_LARGE_STATES[nonlinearity]]
    matrices = [matrix.double().cpu() for matrix in matrices]
    coefficients = stability_polynomial(tableau)
    if all(_certainly_stable(matrix, time, coefficients) for matrix in matrices):
        return None
    if not all(bool(matrix.isfinite().all()) for matrix in matrices):
        return None  # NaN will show in the result
    eigenvalues = torch.cat([torch.linalg.eigvals(matrix) for matrix in matrices])

    def factor(span: float) -> float:
        return float(_evaluate(coefficients, span * eigenvalues).abs().max())

    def stable(span: float) -> bool:
        return factor(span) <= ALLOWED * max(1.0, float((span * eigenvalues.real).max().exp()))

    # Search from below: if the exact solution grows, much longer steps may pass the test again.
    start = 0.1 / max(float(eigenvalues.abs().max()), 0.1 / time)  # every method is stable here
    doublings = range(1, 1 + math.ceil(math.log2(time / start)))
    bad = next((span for span in (min(time, start * 2.0**n) for n in doublings) if not stable(span)), None)
    if bad is None:
        return None
    longest = _bisect(0.5 * bad, bad, stable)
    horizon = min(time, 8.0 * longest)

    def stable_over_many(size: float) -> bool:
        """Whether many steps of this size are stable together, for each eigenvalue separately."""
        of_steps = _evaluate(coefficients, size * eigenvalues).abs() ** (horizon / size)
        return bool((of_steps <= ALLOWED * (horizon * eigenvalues.real).exp().clamp(min=1.0)).all())

    size = next((size for size in (longest / 2**power for power in range(40)) if stable_over_many(size)), longest)
    return Instability(factor(time), longest, _rounded_down(_bisect(size, min(2.0 * size, longest), stable_over_many)))


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


def _certainly_stable(matrix: Tensor, time: float, coefficients: list[float]) -> bool:
    """A test without eigenvalues: |R(z) − e^z| ≤ Σ |cₙ − 1/n!| rⁿ for |z| ≤ r, and √(‖·‖₁‖·‖_∞) bounds all |λ|."""
    columns, rows = (float(matrix.abs().sum(dim).max()) for dim in (0, 1))
    radius = time * math.sqrt(columns * rows)
    if not radius < 3.0:
        return False
    known = [radius**n / math.factorial(n) for n in range(len(coefficients))]
    off = sum(abs(c * radius**n - term) for n, (c, term) in enumerate(zip(coefficients, known, strict=True)))
    return off + math.exp(radius) - sum(known) <= ALLOWED - 1.0


def _bisect(good: float, bad: float, holds: Callable[[float], bool]) -> float:
    """The largest value between ``good`` and ``bad`` for which ``holds``, to three digits."""
    while bad - good > 1e-3 * good:
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _rounded_down(value: float) -> float:
    """Rounded down to two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / unit) * unit:.2g}")
