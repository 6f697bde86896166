"""What a proof of contraction says, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lipschitz_rnn.stability.proof.norms import power
from lipschitz_rnn.stability.proof.rounding import Matrix


@dataclass(frozen=True)
class Refusal:
    """Why there is no certificate: ``cause`` for programs (see :class:`Certificate`), ``reason`` for people."""

    cause: str
    reason: str


@dataclass(frozen=True)
class Certificate:
    """The outcome of :func:`certify`.

    With ``parts`` it is about several recurrences. The layers of one module that all run in the same direction of time
    feed forward, so the stack forgets as its slowest part does. If some read the sequence from its end, only this is
    claimed: each part contracts along its own direction. A reverse part's first state acts at the end of the sequence,
    and reaches a forward part above it just before that one finishes. The same is claimed of a model with several such
    modules, as what it computes between them is not read: it may carry states along time, as attention does.

    Attributes:
        holds: True only if the claim was proved, checked again in float64 with a bound on all rounding of the check.
        rate: λ of ‖δ(t)‖_P ≤ e^{−λt} ‖δ(0)‖_P; where ``holds`` is False, the best rate that was reached, which is
            not proved and usually negative. Undefined (nan) for parts with different steps: each has its own unit
            of time.
        factor: ρ, the factor per step at the longest step; None in continuous time. For parts with different steps it
            is the largest factor per sample, None where that differs from sample to sample.
        method: how the metric was found, and ``multipliers`` or ``corners`` for what proves it.
        margin: the smallest amount by which the normalized matrix inequalities hold after subtracting rounding.
        reason: why there is no certificate; empty if there is one.
        cause: the same in one word: ``slopes`` (a slope pattern was found that does not decay), ``rate`` (one was found
            that decays more slowly than the rate asked for), ``open`` (no metric was found), ``rounding`` (a metric was
            found, but rounding leaves nothing of its margin), ``precision`` (a metric was found, but not for every
            matrix of that precision), ``time`` (the time limit passed) or ``eigenvalues`` (they cannot be computed).
            Parts that fail for different causes list all of them, separated by commas. Empty if there is a
            certificate.
        next_step: what to try then; empty if there is a certificate.
        dynamics: ``continuous``, the integrator's name, or ``map`` for units that are no step of a differential
            equation; a step of a map takes one unit of time.
        step_range: shortest and longest step covered; None in continuous time and for parts with different steps.
        substeps: fewest and most steps that ``max_step`` splits a sample into, with its input held; (1, 1) if none.
        alpha: the factor of A; nan for parts that differ in it.
        nonlinearity: its name; None where only a range of slopes was given.
        slopes: the range of slopes of the nonlinearity.
        precision: what A and W are rounded to where they run: ``exact`` for the numbers as given, ``float64``,
            ``float32``, ``high`` and ``medium`` (float32 with TF32 or bfloat16 products allowed), ``bfloat16`` or
            ``float16``. The claim is about every matrix that a kernel may hold at that precision. Parts that differ in
            it, in ``dynamics`` or in ``nonlinearity`` have all of them here, separated by commas.
        A, W: the matrices, rounded where the precision says exactly how; without alpha.
        map_matrices: F, G, C and E of such a map, h⁺ = F h + G σ(v) + …, v = C h + E σ(v) + …; it has no A and W.
        overshoot: √cond(P): in the Euclidean norm, ‖δ(t)‖ ≤ overshoot · e^{−λt} ‖δ(0)‖.
        upper_bound: a slope pattern decays at this rate only, by its computed eigenvalues, so no metric should prove
            more. Eigenvalues in float64 are no proof: of matrices far from normal they can be wrong.
        metric: P (N, N); None if there is none.
        multipliers: the diagonal of Λ for every inequality; empty for ``corners``.
        direction: if there is no certificate, the state direction (N,) in which the proof fails most.
        slope_pattern: slopes, one for each unit and stage, for which the linearized system is slowest or grows.
        complete: False if the time limit ended the search, so that a longer one may prove more, up to ``upper_bound``.
        name: which part of a model this is about.
        reverse: whether it reads the sequence from its end; for several parts, whether any of them does.
        parts: the certificates of all layers and directions, if there are several.
        cascade: whether the parts are known to feed forward only, as the layers of one module do.
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
    substeps: tuple[int, int] = (1, 1)
    reverse: bool = False
    cause: str = ""
    complete: bool = True
    map_matrices: tuple[Matrix, ...] = field(default=(), repr=False)
    cascade: bool = True

    @property
    def gap(self) -> float:
        """How much larger ``upper_bound`` is than the rate: no metric should prove a rate that exceeds it by more."""
        return max(self.upper_bound - self.rate, 0.0)

    def __bool__(self) -> bool:
        return self.holds

    def sentence(self) -> str:
        """What the certificate means, in one sentence."""
        subject = f"{self.name}: " if self.name else ""
        if not self.holds:
            return f"{subject}Not certified ({self._setting()}): {self.reason}.{self._shown_direction()}"
        if self.parts:
            late = [part.name for part in self.parts if not part.complete]
            ended = f" The time limit ended the search for {', '.join(late)}." if late else ""
            return f"{subject}{self._of_all_parts()} ({self._setting()}).{ended}"
        per_step = (
            ""
            if self.factor is None
            else f", that is by a factor of {self.factor:.6g} in a step of {self._longest():g}"
        )
        return (
            f"{subject}Any two trajectories under the same input approach each other at a rate of at least "
            f"{self.rate:.4g} per unit of time{per_step}, and on the way their distance never exceeds "
            f"{self.overshoot:.3g} times the first one ({self._setting()}).{self._what_is_left()}"
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
            "cause": self.cause,
            "reason": self.reason,
            "next_step": self.next_step,
            "dynamics": self.dynamics,
            "step_range": None if self.step_range is None else list(self.step_range),
            "substeps": list(self.substeps),
            "reverse": self.reverse,
            "alpha": _number(self.alpha),
            "nonlinearity": self.nonlinearity,
            "slopes": list(self.slopes),
            "precision": self.precision,
            "overshoot": _number(self.overshoot),
            "upper_bound": _number(self.upper_bound),
            "gap": _number(self.gap),
            "complete": self.complete,
            "cascade": self.cascade,
            "sentence": self.sentence(),
        }
        for key in ("A", "W", "metric", "direction", "slope_pattern"):
            array = getattr(self, key)
            plain[key] = None if array is None else array.tolist()
        plain["map_matrices"] = [matrix.tolist() for matrix in self.map_matrices]
        plain["multipliers"] = [multiplier.tolist() for multiplier in self.multipliers]
        if self.parts:
            plain["parts"] = [part.to_dict() for part in self.parts]
        return plain

    def _what_is_left(self) -> str:
        """How much a longer search could add."""
        if self.complete or not np.isfinite(self.upper_bound):
            return ""
        return (
            f" The time limit ended the search: a longer one can prove at most {self.upper_bound:.4g}, which is "
            f"{self.gap / self.rate:.0%} more."
        )

    def _longest(self) -> float:
        return self.step_range[1] if self.step_range is not None else float("nan")

    def _of_all_parts(self) -> str:
        """What is true of the whole if every part contracts."""
        count, speed = len(self.parts), "exponentially"
        if np.isfinite(self.rate):
            speed += f", at every rate below {self.rate:.4g} per unit of time"
        elif self.factor is not None:
            speed += f", by every factor above {self.factor:.6g} per sample"
        if self.cascade and len({part.reverse for part in self.parts}) == 1:
            return (
                f"Each of the {count} recurrent parts contracts, so that any two trajectories of the whole under the "
                f"same input approach each other {speed}"
            )
        each = (
            f"Each of the {count} recurrent parts contracts along its own direction of time: any two of its "
            f"trajectories under the same input of that part approach each other {speed}; "
        )
        if not self.cascade:
            return f"{each}nothing is claimed about the whole, as what is computed between the parts is not read"
        return (
            f"{each}what the first states of both directions leave in the whole fades with the distance from both ends "
            "of the sequence"
        )

    def _setting(self) -> str:
        if self.parts:
            return "; ".join(dict.fromkeys(part._setting() for part in self.parts))
        held = "matrices as given" if self.precision == "exact" else f"matrices in {_HELD[self.precision]}"
        if self.step_range is None:
            return f"continuous time, {held}"
        if self.dynamics == "map":
            return f"a map of its own, one step as the unit of time, {held}"
        shortest, longest = self.step_range
        steps = f"step {longest:g}" if shortest == longest else f"every step from {shortest:g} to {longest:g}"
        fewest, most = self.substeps
        if most > 1:
            steps += f", {most if fewest == most else f'{fewest} to {most}'} of them for each sample"
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


def combine(parts: Sequence[Certificate], name: str = "", cascade: bool = True) -> Certificate:
    """One certificate for several recurrences: it holds if all parts do, and is as good as the worst of them."""
    if len(parts) == 1:
        return parts[0]
    failed = [part for part in parts if not part.holds]
    worst = min(failed or parts, key=lambda part: part.rate)
    one_clock = len({(part.step_range, part.substeps) for part in parts}) == 1
    return Certificate(
        holds=not failed,
        rate=worst.rate if one_clock or failed else math.nan,
        method=_listed(part.method for part in parts),
        margin=min(part.margin for part in parts),
        cause=_listed(part.cause for part in failed),
        reason="; ".join(f"{part.name}: {part.reason}" for part in failed),
        factor=_common_factor(parts, one_clock),
        dynamics=_listed(part.dynamics for part in parts),
        step_range=worst.step_range if one_clock else None,
        substeps=worst.substeps if one_clock else (1, 1),
        alpha=worst.alpha if len({part.alpha for part in parts}) == 1 else math.nan,
        nonlinearity=_listed(part.nonlinearity for part in parts if part.nonlinearity) or None,
        slopes=(min(part.slopes[0] for part in parts), max(part.slopes[1] for part in parts)),
        precision=_listed(part.precision for part in parts),
        upper_bound=min(part.upper_bound for part in parts) if one_clock else math.inf,
        direction=worst.direction,
        slope_pattern=worst.slope_pattern,
        name=name,
        parts=tuple(parts),
        next_step=worst.next_step,
        reverse=any(part.reverse for part in parts),
        complete=all(part.complete for part in parts),
        cascade=cascade,
    )


def _common_factor(parts: Sequence[Certificate], one_clock: bool) -> float | None:
    """The largest factor, per step if all parts take the same steps, else per sample."""
    factors = []
    for part in parts:
        if part.factor is None or part.step_range is None:
            return None
        if not one_clock and part.step_range[0] < part.step_range[1]:
            return None
        factors.append(part.factor if one_clock else power(part.factor, part.substeps[0]))
    return max(factors)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
