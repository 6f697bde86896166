"""Where metrics come from. Nothing here is trusted: a candidate counts only after its inequalities were checked."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lipschitz_rnn.stability.proof.candidate import Candidate
from lipschitz_rnn.stability.proof.corners import LARGEST
from lipschitz_rnn.stability.proof.inputs import Subject
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search import corners
from lipschitz_rnn.stability.search.clock import Clock
from lipschitz_rnn.stability.search.levels import best_level
from lipschitz_rnn.stability.search.multipliers import best_multiplier
from lipschitz_rnn.stability.search.riccati import Loop
from lipschitz_rnn.stability.search.scaling import best_scaling, scaling_at
from lipschitz_rnn.stability.search.semidefinite import common_metric

_GENERAL_SOLVER_SIZE = 30  # rows of the largest inequality for which ``auto`` tries a general solver

_SHARP_SIZE = 160  # units up to which a given metric gets its best multiplier to many digits

_CALMER = (0.8, 0.4)  # of the best rate: metrics that are kept in reserve

_SEVERAL_METRICS_SIZE = 40  # units up to which a range of steps tries the best metric of more than one step


def candidates(
    item: Subject,
    systems: list[System[Matrix]],
    possible: float,
    target: float,
    solver: str,
    accuracy: float,
    clock: Clock,
) -> Iterator[Candidate]:
    """Metrics with multipliers for all ``systems``, cheap ones first; none is sought beyond the rate ``possible``."""
    best = -math.inf
    for found in _structured(item, systems, accuracy, clock):
        best = max(best, found.rate(systems, len(systems) > 1))
        yield found
    unproved = best <= target
    small = max(system.size + system.channels for system in systems) <= _GENERAL_SOLVER_SIZE
    if solver in ("clarabel", "scs") or (solver == "auto" and len(systems) > 1 and small and unproved):
        for found in _with_common_metric(systems, target, possible, solver, accuracy, clock):
            unproved = False
            yield found
    if solver == "auto" and unproved and max(s.channels for s in systems) <= LARGEST:
        # Where a rate was asked for, the first metric that proves it is enough.
        metric = corners.best_corner_metric(systems, target, possible, clock, bisections=0 if target > 0 else 4)
        if metric is not None:
            levels = tuple(corners.best_level(system, metric) for system in systems)
            yield Candidate(metric, (), levels, "full metric, corners")


def _structured(item: Subject, systems: list[System[Matrix]], accuracy: float, clock: Clock) -> Iterator[Candidate]:
    """What needs no general solver: known metrics with their best multipliers, then metrics by Riccati equations."""
    best: Candidate | None = None
    for found in _known_metrics(item, systems, clock):
        if best is None or found.levels[-1] < best.levels[-1]:
            best = found
        yield found
    metrics = []
    for system in _representatives(systems):
        # The search goes on from the multiplier of the best known metric, so it can only get better.
        start = None if best is None or system is not systems[-1] else best.multipliers[-1]
        scaling, rate = best_scaling(system, start, accuracy, clock=clock)
        if scaling is None:
            continue
        if len(systems) == 1:
            # The metric of the best rate may be too close to singular for a coarse precision.
            shares = _CALMER if rate > 0 and system.size <= _SHARP_SIZE else ()
            calmer = (scaling_at(Loop.of(system), share * rate, scaling.multiplier) for share in shares)
            for one in (scaling, *calmer):
                if one is not None:
                    level = best_level(system, one.P, one.multiplier)
                    yield Candidate(one.P, (one.multiplier,), (level,), "full metric, multipliers")
        else:
            metrics.append(scaling.P / np.trace(scaling.P))
            yield from _with_multipliers(scaling.P, systems, "full metric", clock)
    if len(metrics) > 1:
        # The best metric of one system may be bad for another; the average often works for all.
        yield from _with_multipliers(np.mean(metrics, axis=0), systems, "full metric", clock)


def _known_metrics(item: Subject, systems: list[System[Matrix]], clock: Clock) -> Iterator[Candidate]:
    """The metric that a layer was built with, the Euclidean one and, for case (b) of the theorem, −W."""
    if item.hint is not None:
        known, multiplier = item.hint
        P = known if known.ndim == 2 else np.diag(known)
        if len(systems) == 1 and systems[0].channels == len(multiplier):
            yield Candidate(P, (multiplier,), (best_level(systems[0], P, multiplier),), "built-in metric, multipliers")
        yield from _with_multipliers(P, systems, "built-in metric", clock)
    yield from _with_multipliers(np.eye(item.size), systems, "Euclidean metric", clock)
    symmetric = 0.5 * (item.W + item.W.T)
    if item.feedback is None and np.linalg.eigvalsh(symmetric)[-1] < 0:
        yield from _with_multipliers(-symmetric, systems, "metric −W", clock)


def _representatives(systems: list[System[Matrix]]) -> list[System[Matrix]]:
    """The systems whose own best metrics are worth trying for all: the longest step's, and of small ones two more."""
    if systems[0].size > _SEVERAL_METRICS_SIZE:
        return [systems[-1]]
    return systems if len(systems) <= 3 else [systems[0], systems[len(systems) // 2], systems[-1]]


def _with_multipliers(P: Matrix, systems: list[System[Matrix]], name: str, clock: Clock) -> Iterator[Candidate]:
    clock.check()
    clock.tell(name)
    accuracy = 1e-9 if len(P) <= _SHARP_SIZE else 1e-4
    found = [best_multiplier(system, P, accuracy=accuracy, clock=clock) for system in systems]
    multipliers = tuple(multiplier for multiplier in found if multiplier is not None)
    if len(multipliers) == len(systems):
        levels = tuple(best_level(s, P, multiplier) for s, multiplier in zip(systems, multipliers, strict=True))
        yield Candidate(P, multipliers, levels, f"{name}, multipliers")


def _with_common_metric(
    systems: list[System[Matrix]], target: float, possible: float, solver: str, accuracy: float, clock: Clock
) -> Iterator[Candidate]:
    """Bisection of the rate with a general semidefinite solver; every success is a candidate."""
    low, high = target, possible
    rate = target + 0.01 * (possible - target)
    while high - low > accuracy * abs(high) and (low < rate < high or rate == target):
        found = common_metric(systems, rate, solver, clock)
        if found is None:
            high = rate
        else:
            low = rate
            P, multipliers = found
            levels = tuple(best_level(s, P, multiplier) for s, multiplier in zip(systems, multipliers, strict=True))
            yield Candidate(P, tuple(multipliers), levels, f"full metric by {solver}, multipliers")
        if low == target:
            return
        rate = 0.5 * (low + high)
