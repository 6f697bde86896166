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
        holds: True only if the claim was proved, checked again in float64 with all rounding accounted for.
        rate: λ of ‖δ(t)‖_P ≤ e^{−λt} ‖δ(0)‖_P; where ``holds`` is False, the best rate that was reached, which is
            not proved and usually negative.
        factor: ρ, the factor per step at the longest step; None in continuous time.
        method: how the metric was found, and ``multipliers`` or ``corners`` for what proves it.
        margin: the smallest amount by which the normalized matrix inequalities hold after subtracting rounding.
        reason: why there is no certificate; empty if there is one.
        dynamics: ``continuous`` or the integrator's name.
        step_range: shortest and longest step covered; None in continuous time.
        slopes: the range of slopes of the nonlinearity.
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
    slopes: tuple[float, float] = (0.0, 1.0)
    overshoot: float = float("nan")
    upper_bound: float = float("inf")
    metric: Matrix | None = field(default=None, repr=False)
    multipliers: tuple[Matrix, ...] = field(default=(), repr=False)
    direction: Matrix | None = field(default=None, repr=False)
    slope_pattern: Matrix | None = field(default=None, repr=False)
    name: str = ""
    parts: tuple[Certificate, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return self.holds

    def sentence(self) -> str:
        """What the certificate means, in one sentence."""
        subject = f"{self.name}: " if self.name else ""
        if not self.holds:
            return f"{subject}Not certified ({self._setting()}): {self.reason}"
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
            "dynamics": self.dynamics,
            "step_range": None if self.step_range is None else list(self.step_range),
            "slopes": list(self.slopes),
            "overshoot": _number(self.overshoot),
            "upper_bound": _number(self.upper_bound),
            "direction": None if self.direction is None else self.direction.tolist(),
            "slope_pattern": None if self.slope_pattern is None else self.slope_pattern.tolist(),
            "sentence": self.sentence(),
        }
        if self.parts:
            plain["parts"] = [part.to_dict() for part in self.parts]
        return plain

    def _longest(self) -> float:
        return self.step_range[1] if self.step_range is not None else float("nan")

    def _setting(self) -> str:
        if self.step_range is None:
            return "continuous time"
        shortest, longest = self.step_range
        steps = f"step {longest:g}" if shortest == longest else f"every step from {shortest:g} to {longest:g}"
        return f"{self.dynamics} map, {steps}"


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
        slopes=worst.slopes,
        upper_bound=min(part.upper_bound for part in parts),
        direction=worst.direction,
        slope_pattern=worst.slope_pattern,
        name=name,
        parts=tuple(parts),
    )


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
