"""Certificates that hold are made here and nowhere else, from candidates whose every inequality was checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from lipschitz_rnn.stability.proof.candidate import Candidate
from lipschitz_rnn.stability.proof.certificate import Certificate, Refusal
from lipschitz_rnn.stability.proof.inputs import Subject
from lipschitz_rnn.stability.proof.proving import (
    heun_level,
    systems_of,
    verified_levels,
    verified_overshoot,
    verified_rate,
)
from lipschitz_rnn.stability.proof.rates import proved_factor, proved_rate
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix
from lipschitz_rnn.stability.proof.systems import System


@dataclass(frozen=True)
class Examiner:
    """Checks candidates for one map; a range of steps is cut into ``panels`` parts."""

    item: Subject
    panels: int

    @cached_property
    def systems(self) -> list[System[Matrix]]:
        """The systems that together stand for the map, in floating point: for searches."""
        if self.item.feedback is not None:
            return [self.item.feedback.system(self.item.slopes)]
        A, W = self.item.nominal
        return systems_of(self.item, A.mid, W.mid, self.panels)

    @cached_property
    def enclosed(self) -> list[System[Ball]]:
        """The same systems with all rounding enclosed: for proofs."""
        if self.item.feedback is not None:
            return [self.item.feedback.enclosed(self.item.slopes)]
        return systems_of(self.item, *self.item.nominal, self.panels)

    def issue(self, candidate: Candidate, target: float, **observed: Any) -> Certificate | Refusal:
        """A certificate for a rate above ``target`` if all inequalities hold after rounding, or why they do not.

        ``observed`` are fields of the certificate that are not part of its claim, such as ``upper_bound``.
        """
        item = self.item
        verified = verified_levels(item, candidate, self.systems, self.enclosed, target)
        if verified is None:
            if item.precision.name in ("exact", "float64"):
                return Refusal(
                    "rounding", "a metric was found, but the inequality holds by less than the rounding of its check"
                )
            return Refusal(
                "precision",
                f"a metric was found, but not for every matrix that {item.precision.name} may round A and W to",
            )
        levels, margins = verified
        proved = verified_rate(item, levels, self.systems)
        if proved <= target:
            return Refusal(
                "rounding", f"the proved rate {proved:.4g} does not exceed {target:.4g} once rounding is subtracted"
            )
        return Certificate(
            holds=True,
            rate=proved,
            factor=None if item.step_range is None else proved_factor(levels[-1]),
            method=candidate.method,
            margin=min(margins),
            overshoot=verified_overshoot(candidate.P),
            metric=candidate.P,
            multipliers=candidate.multipliers,
            **description(item),
            **observed,
        )


def description(item: Subject) -> dict[str, Any]:
    """The fields of a certificate that say what it is about, whether it holds or not."""
    return {
        "dynamics": "continuous" if item.step_range is None else item.integrator,
        "step_range": item.step_range,
        "substeps": item.substeps,
        "reverse": item.reverse,
        "alpha": item.alpha,
        "nonlinearity": item.nonlinearity,
        "slopes": item.slopes,
        "precision": item.precision.name,
        "A": item.A if item.feedback is None else None,
        "W": item.W if item.feedback is None else None,
        "map_matrices": () if item.feedback is None else item.feedback.matrices,
        "name": item.name,
    }


def heun_from_euler(item: Subject, euler: Certificate, wanted: float | None) -> Certificate:
    """What a certificate for the Euler map of the longest step says about Heun's map of ``item``.

    Heun's map is ½ id + ½ E∘E with the Euler map E of the same step, so a factor c of E gives ½ + ½c².
    """
    if not euler.holds or euler.factor is None or euler.metric is None or item.step_range is None:
        return euler
    level = heun_level(item, euler.factor, euler.metric)
    longest = Fraction(item.step_range[1])
    proved = proved_rate(level, longest, item.is_range) if math.isfinite(level) else -math.inf
    return replace(
        euler,
        holds=proved > (wanted or 0.0),
        factor=proved_factor(level),
        rate=proved,
        method=f"{euler.method}, by Euler steps",
        dynamics="heun",
        step_range=item.step_range,
        precision=item.precision.name,
        upper_bound=math.inf,
    )
