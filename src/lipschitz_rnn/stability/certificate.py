"""What a proof of contraction says, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lipschitz_rnn.stability.rounding import Matrix


@dataclass(frozen=True)
class Certificate:
    """The outcome of :func:`certify`.

    Attributes:
        holds: True only if the claim was proved, checked again in float64 with a bound on all rounding of the check.
        rate: λ of ‖δ(t)‖_P ≤ e^{−λt} ‖δ(0)‖_P; where ``holds`` is False, the best rate that was reached, which is
            not proved and usually negative.
        factor: ρ, the factor per step at the longest step; None in continuous time.
        method: how the metric was found, and ``multipliers`` or ``corners`` for what proves it.
        margin: the smallest amount by which the normalized matrix inequalities hold after subtracting rounding.
        reason: why there is no certificate; empty if there is one.
        next_step: what to try then; empty if there is a certificate.
        dynamics: ``continuous`` or the integrator's name.
        step_range: shortest and longest step covered; None in continuous time.
        alpha: the factor of A.
        nonlinearity: its name; None where only a range of slopes was given.
        slopes: the range of slopes of the nonlinearity.
        precision: what A and W are rounded to where they run: ``exact`` for the numbers as given, ``float64``,
            ``float32``, ``high`` and ``medium`` (float32 with TF32 or bfloat16 products allowed), ``bfloat16`` or
            ``float16``. The claim is about every matrix that a kernel may hold at that precision.
        A, W: the matrices, rounded where the precision says exactly how; without alpha.
        overshoot: √cond(P): in the Euclidean norm, ‖δ(t)‖ ≤ overshoot · e^{−λt} ‖δ(0)‖.
        upper_bound: no metric can prove a rate beyond this one (a slope pattern decays that slowly).
        metric: P (N, N); None if there is none.
        multipliers: the diagonal of Λ for every inequality; empty for ``corners``.
        direction: if there is no certificate, the state direction (N,) in which the proof fails most.
        slope_pattern: slopes, one for each unit and stage, for which the linearized system is slowest or grows.
        name: which part of a model this is about.
        parts: the certificates of all layers and directions, if there are several.
    """

    holds: bool
    rate: float
    method: str
    margin: float
    reason: str = ""
    factor: float | None = None
    dynamics: str = "continuous"
    step_range: tuple[float, float] | None = None
    alpha: float = 1.0
    nonlinearity: str | None = None
    slopes: tuple[float, float] = (0.0, 1.0)
    precision: str = "exact"
    overshoot: float = float("nan")
    upper_bound: float = float("inf")
    A: Matrix | None = field(default=None, repr=False)
    W: Matrix | None = field(default=None, repr=False)
    metric: Matrix | None = field(default=None, repr=False)
    multipliers: tuple[Matrix, ...] = field(default=(), repr=False)
    direction: Matrix | None = field(default=None, repr=False)
    slope_pattern: Matrix | None = field(default=None, repr=False)
    name: str = ""
    parts: tuple[Certificate, ...] = field(default=(), repr=False)
    next_step: str = ""

    def __bool__(self) -> bool:
        return self.holds

    def sentence(self) -> str:
        """What the certificate means, in one sentence."""
        subject = f"{self.name}: " if self.name else ""
        if not self.holds:
            return f"{subject}Not certified ({self._setting()}): {self.reason}.{self._shown_direction()}"
        if self.parts:
            count = len(self.parts)
            return (
                f"{subject}Each of the {count} recurrent parts contracts, so that any two trajectories of the whole "
                f"under the same input approach each other exponentially, at every rate below {self.rate:.4g} "
                f"per unit of time ({self._setting()})."
            )
        per_step = (
            ""
            if self.factor is None
            else f", that is by a factor of {self.factor:.6g} in a step of {self._longest():g}"
        )
        return (
            f"{subject}Any two trajectories under the same input approach each other at a rate of at least "
            f"{self.rate:.4g} per unit of time{per_step}, and on the way their distance never exceeds "
            f"{self.overshoot:.3g} times the first one ({self._setting()})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON; infinite or undefined numbers become None."""
        plain: dict[str, Any] = {
            "name": self.name,
            "holds": self.holds,
            "rate": _number(self.rate),
            "factor": _number(self.factor),
            "method": self.method,
            "margin": _number(self.margin),
            "reason": self.reason,
            "next_step": self.next_step,
            "dynamics": self.dynamics,
            "step_range": None if self.step_range is None else list(self.step_range),
            "alpha": self.alpha,
            "nonlinearity": self.nonlinearity,
            "slopes": list(self.slopes),
            "precision": self.precision,
            "overshoot": _number(self.overshoot),
            "upper_bound": _number(self.upper_bound),
            "sentence": self.sentence(),
        }
        for key in ("A", "W", "metric", "direction", "slope_pattern"):
            array = getattr(self, key)
            plain[key] = None if array is None else array.tolist()
        plain["multipliers"] = [multiplier.tolist() for multiplier in self.multipliers]
        if self.parts:
            plain["parts"] = [part.to_dict() for part in self.parts]
        return plain

    def _longest(self) -> float:
        return self.step_range[1] if self.step_range is not None else float("nan")

    def _setting(self) -> str:
        held = "matrices as given" if self.precision == "exact" else f"matrices in {_HELD[self.precision]}"
        if self.step_range is None:
            return f"continuous time, {held}"
        shortest, longest = self.step_range
        steps = f"step {longest:g}" if shortest == longest else f"every step from {shortest:g} to {longest:g}"
        return f"{self.dynamics} map, {steps}, {held}"

    def _shown_direction(self, most: int = 3) -> str:
        """The units that stand out in the direction in which the proof fails."""
        if self.direction is None or not np.all(np.isfinite(self.direction)):
            return ""
        weights = np.abs(self.direction)
        order = [
            int(unit) for unit in np.argsort(-weights, kind="stable")[:most] if weights[unit] > 0.1 * weights.max()
        ]
        units = ", ".join(f"{unit} ({self.direction[unit]:+.2f})" for unit in order)
        return f" In that direction of the state the largest entries are those of unit{'s' * (len(order) > 1)} {units}"


_HELD = {
    "float64": "float64",
    "float32": "float32",
    "high": "float32 with TF32 products allowed",
    "medium": "float32 with bfloat16 products allowed",
    "bfloat16": "bfloat16",
    "float16": "float16",
}


def combine(parts: Sequence[Certificate], name: str = "") -> Certificate:
    """One certificate for a stack: it holds if all parts do, and is as good as the worst of them."""
    if len(parts) == 1:
        return parts[0]
    failed = [part for part in parts if not part.holds]
    worst = min(failed or parts, key=lambda part: part.rate)
    factors = [part.factor for part in parts if part.factor is not None]
    return Certificate(
        holds=not failed,
        rate=worst.rate,
        method=", ".join(sorted({part.method for part in parts})),
        margin=min(part.margin for part in parts),
        reason="; ".join(f"{part.name}: {part.reason}" for part in failed),
        factor=max(factors) if len(factors) == len(parts) else None,
        dynamics=worst.dynamics,
        step_range=worst.step_range,
        alpha=worst.alpha,
        nonlinearity=worst.nonlinearity,
        slopes=worst.slopes,
        precision=worst.precision,
        upper_bound=min(part.upper_bound for part in parts),
        direction=worst.direction,
        slope_pattern=worst.slope_pattern,
        name=name,
        parts=tuple(parts),
        next_step=worst.next_step,
    )


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
