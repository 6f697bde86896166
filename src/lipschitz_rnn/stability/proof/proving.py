"""From a candidate to a certificate: every inequality is checked again, with all rounding of the check enclosed."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.stability.proof import corners
from lipschitz_rnn.stability.proof.candidate import Candidate
from lipschitz_rnn.stability.proof.inequality import verified_margin
from lipschitz_rnn.stability.proof.inputs import Subject
from lipschitz_rnn.stability.proof.perturbation import HeldMatrices
from lipschitz_rnn.stability.proof.rates import proved_rate, rate_to_level, round_up
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix, largest_eigenvalue_bound, smallest_eigenvalue_bound
from lipschitz_rnn.stability.proof.systems import (
    M,
    System,
    bezier_corner,
    continuous_system,
    runge_kutta_system,
    sector_form,
)

# Of the distance from the candidate's level to the target's, tried in this order.
_FRACTIONS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)


def systems_of(item: Subject, A: M, W: M, panels: int) -> list[System[M]]:
    """The systems that together stand for every step in the range (see docs/stability.md), the longest step last."""
    A, W = sector_form(A, W, item.slopes)
    if item.step_range is None:
        return [continuous_system(A, W)]
    shortest, longest = item.step_range
    tableau = get_integrator(item.integrator)
    if shortest == longest or len(tableau) == 1:
        return [runge_kutta_system(A, W, tableau, longest)]
    if len(tableau) > 2:
        raise ValueError(
            f"a range of steps can be certified for euler, midpoint and heun, not {tableau.name}; certify single steps"
        )
    edges = [float(edge) for edge in np.linspace(shortest, longest, panels + 1)]
    edges[0], edges[-1] = shortest, longest
    result: list[System[M]] = []
    for low, high in itertools.pairwise(edges):
        if low > 0:
            result.append(runge_kutta_system(A, W, tableau, low))
        result.append(bezier_corner(A, W, tableau, low, high))
    result.append(runge_kutta_system(A, W, tableau, longest))
    return result


def panels_of(item: Subject) -> tuple[int, ...]:
    """Into how many parts a range of steps is cut: each number is tried in this order."""
    return (1, 2, 4) if item.is_range and len(get_integrator(item.integrator)) > 1 else (1,)  # a map is no range


def verified_levels(
    item: Subject, candidate: Candidate, systems: list[System[Matrix]], enclosed: list[System[Ball]], target: float
) -> tuple[list[float], list[float]] | None:
    """Proved levels close to those of the candidate, with their margins; None where rounding leaves too little.

    The inequality proves a level for the matrices and the step of exact arithmetic. What the kernels hold instead adds
    to it.
    """
    levels, margins = [], []
    change = HeldMatrices.of(item, candidate.P)
    if change is None:
        return None
    for index, (system, level) in enumerate(zip(systems, candidate.levels, strict=True)):
        limit = rate_to_level(target, system.step, item.is_range)
        for fraction in _FRACTIONS:
            tried = level + fraction * (limit - level)
            if candidate.multipliers:
                margin = verified_margin(enclosed[index], candidate.P, candidate.multipliers[index], tried)
            else:
                margin = corners.verified_margin(enclosed[index], candidate.P, tried)
            if margin > 0:
                levels.append(change.level(system, tried))
                margins.append(margin)
                break
        else:
            return None
    return levels, margins


def verified_rate(item: Subject, levels: list[float], systems: list[System[Matrix]]) -> float:
    return min(proved_rate(t, system.time, item.is_range) for t, system in zip(levels, systems, strict=True))


def verified_overshoot(P: Matrix) -> float:
    """An upper bound of √cond(P)."""
    largest, smallest = largest_eigenvalue_bound(Ball.exact(P)), smallest_eigenvalue_bound(Ball.exact(P))
    if not (smallest > 0 and math.isfinite(largest)):
        return math.inf
    return math.nextafter(math.sqrt(math.nextafter(largest / smallest, math.inf)), math.inf)


def heun_level(item: Subject, euler: float, P: Matrix) -> float:
    """The level of Heun's map at the longest step, from the factor c of the Euler map of that step.

    In exact arithmetic Heun's map is ½ id + ½ E∘E, so its factor is at most ½ + ½c². What the kernels hold instead adds
    a polynomial of the step without a constant term, so for shorter steps it is at most proportional to the step.
    """
    assert item.step_range is not None
    change = HeldMatrices.of(item, P)
    if change is None:
        return math.inf
    A, W = sector_form(item.nominal[0].mid, item.nominal[1].mid, item.slopes)
    system = runge_kutta_system(A, W, get_integrator("heun"), item.step_range[1])
    return change.level(system, round_up(((1 + Fraction(euler) ** 2) / 2) ** 2))
