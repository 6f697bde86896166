"""Contraction certificates: find a metric by any means, then prove it."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from lipschitz_rnn.ops.integrators import get_integrator
from lipschitz_rnn.stability import corners
from lipschitz_rnn.stability.adversary import WorstSlopes, worst_slopes
from lipschitz_rnn.stability.candidates import Proof, candidates
from lipschitz_rnn.stability.certificate import Certificate, combine
from lipschitz_rnn.stability.inequality import level_to_rate, quadratic_form, rate_to_level, verified_margin
from lipschitz_rnn.stability.inputs import Recurrence, recurrences
from lipschitz_rnn.stability.programmes import choose_solver
from lipschitz_rnn.stability.rounding import UNIT, Ball, Matrix
from lipschitz_rnn.stability.systems import M, System, bezier_corner, continuous_system, runge_kutta_system, sector_form
from lipschitz_rnn.stability.threads import one_blas_thread


def certify(
    target: Any,
    *,
    step_size: float | tuple[float, float] | None = None,
    integrator: str | None = None,
    alpha: float | None = None,
    nonlinearity: Any = None,
    continuous: bool | None = None,
    rate: float | None = None,
    solver: str = "auto",
    accuracy: float = 1e-3,
    time_limit: float = 150.0,
) -> Certificate:
    """Prove that any two trajectories under the same input approach each other, or say why that failed.

    Args:
        target: a pair (A, W) of arrays or tensors; a module that is or contains Lipschitz RNN layers (every layer and
            direction is certified); or the path of a .safetensors, .npz or .pt file with entries A and W.
        step_size: a step, or (shortest, longest) for irregular samples. A layer's own step by default; for a pair
            without a step the statement is about continuous time.
        integrator, alpha, nonlinearity: as the layer's; for a pair ``euler``, 1 and ``tanh`` by default. A nonlinearity
            is a name or the range (smallest, largest) of its slopes.
        continuous: True for the differential equation, whatever step the layer runs with.
        rate: stop as soon as this rate is proved; the certificate does not hold below it. None: find the best rate.
        solver: ``auto``; ``structured`` never calls a general solver; ``clarabel`` or ``scs`` name the one to use.
        accuracy: relative accuracy of the best rate.
        time_limit: seconds after which no further search is begun, for each pair.

    Returns:
        A :class:`Certificate`. It holds only if P and the multipliers passed the check in float64 with rounding.
    """
    if solver != "structured":
        choose_solver(solver, 1)
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"rate is {rate}; ask for a positive, finite rate, or None for the best one")
    found = recurrences(
        target,
        step_size=step_size,
        integrator=integrator,
        alpha=alpha,
        nonlinearity=nonlinearity,
        continuous=continuous,
    )
    with one_blas_thread():
        return combine([_certify_one(item, rate, solver, accuracy, time.monotonic() + time_limit) for item in found])


def _certify_one(item: Recurrence, wanted: float | None, solver: str, accuracy: float, deadline: float) -> Certificate:
    target, linear = wanted or 0.0, _is_range(item)
    worst = worst_slopes(_systems(item, item.A, item.W, 1)[-1], starts=5 if len(item.A) > 64 else 8)
    if worst.rate <= target:
        return _failure(item, worst, worst.direction, worst.rate, _disproof(worst, target))
    good_enough = worst.rate * (1 - accuracy) if wanted is None else wanted
    proofs: list[Proof] = []
    systems, panels = _systems(item, item.A, item.W, 1), 1
    for panels in _panels(item):
        systems = _systems(item, item.A, item.W, panels)
        proofs = []
        for proof in candidates(item, systems, worst.rate, target, solver, accuracy, deadline):
            proofs.append(proof)
            if proof.rate(systems, linear) > good_enough:
                break
        proofs.sort(key=lambda proof: -proof.rate(systems, linear))
        if (proofs and proofs[0].rate(systems, linear) > target) or time.monotonic() > deadline:
            break
    failure: Certificate | None = None
    enclosed = _systems(item, Ball.exact(item.A), Ball.exact(item.W), panels)
    for proof in proofs:
        if proof.rate(systems, linear) <= target:
            break
        # The best candidate may be too close to singular for the check; the next one then still counts.
        certificate = _checked(item, proof, systems, enclosed, worst, target)
        if certificate.holds:
            return certificate
        failure = failure or certificate
    if item.integrator == "heun" and item.step_range is not None:
        by_euler = _by_euler_steps(item, wanted, solver, accuracy, deadline)
        if by_euler.holds:
            return by_euler
    if failure is not None:
        return failure
    if not proofs:
        return _failure(item, worst, None, -math.inf, "no quadratic metric was found, so that the question is open")
    reached = proofs[0].rate(systems, linear)
    direction = _most_violated(systems, proofs[0], target)
    return _failure(item, worst, direction, reached, _shortfall(reached, worst.rate, target))


def _systems(item: Recurrence, A: M, W: M, panels: int) -> list[System[M]]:
    """The systems that together stand for every step in the range (see docs/stability.md), the longest step last."""
    A, W = sector_form(A, W, item.alpha, item.slopes)
    if item.step_range is None:
        return [continuous_system(A, W)]
    shortest, longest = item.step_range
    tableau = get_integrator(item.integrator)
    if shortest == longest or tableau.name == "euler":
        return [runge_kutta_system(A, W, tableau, longest)]
    if len(tableau) > 2:
        raise ValueError(
            f"a range of steps can be certified for euler, midpoint and heun, not {tableau.name}; certify single steps"
        )
    edges = np.linspace(shortest, longest, panels + 1)
    edges[0], edges[-1] = shortest, longest
    result: list[System[M]] = []
    for low, high in itertools.pairwise(edges):
        if low > 0:
            result.append(runge_kutta_system(A, W, tableau, float(low)))
        result.append(bezier_corner(A, W, tableau, float(low), float(high)))
    result.append(runge_kutta_system(A, W, tableau, longest))
    return result


def _panels(item: Recurrence) -> tuple[int, ...]:
    several = item.step_range is not None and item.step_range[0] < item.step_range[1] and item.integrator != "euler"
    return (1, 2, 4) if several else (1,)


def _checked(
    item: Recurrence,
    proof: Proof,
    systems: list[System[Matrix]],
    enclosed: list[System[Ball]],
    worst: WorstSlopes,
    target: float,
) -> Certificate:
    """Turn a candidate into a certificate by checking every inequality with rounding, giving away little."""
    linear = _is_range(item)
    verified, margins = [], []
    for index, (system, level) in enumerate(zip(systems, proof.levels, strict=True)):
        room = rate_to_level(target, system.step, linear) - level
        for share in (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5):
            tried = level + share * room
            if proof.multipliers:
                margin = verified_margin(enclosed[index], proof.P, proof.multipliers[index], tried)
            else:
                margin = corners.verified_margin(enclosed[index], proof.P, tried)
            if margin > 0:
                verified.append(tried)
                margins.append(margin)
                break
        else:
            reason = "a metric was found, but the inequality holds by less than the rounding of its check"
            return _failure(item, worst, _most_violated(systems, proof, target), proof.rate(systems, linear), reason)
    proved = min(level_to_rate(level, system.step, linear) for level, system in zip(verified, systems, strict=True))
    if proved <= target:
        reason = f"the proved rate {proved:.4g} does not exceed {target:.4g} once rounding is subtracted"
        return _failure(item, worst, _most_violated(systems, proof, target), proved, reason)
    return Certificate(
        holds=True,
        rate=proved,
        factor=None if item.step_range is None else math.sqrt(verified[-1]) * (1 + 4 * UNIT),
        method=proof.method,
        margin=min(margins),
        dynamics="continuous" if item.step_range is None else item.integrator,
        step_range=item.step_range,
        slopes=item.slopes,
        overshoot=math.sqrt(float(np.linalg.cond(proof.P))),
        upper_bound=worst.rate,
        metric=proof.P,
        multipliers=proof.multipliers,
        slope_pattern=_slopes(item, worst),
        name=item.name,
    )


def _failure(item: Recurrence, worst: WorstSlopes, direction: Matrix | None, rate: float, reason: str) -> Certificate:
    return Certificate(
        holds=False,
        rate=rate,
        method="none",
        margin=-math.inf,
        reason=reason,
        dynamics="continuous" if item.step_range is None else item.integrator,
        step_range=item.step_range,
        slopes=item.slopes,
        upper_bound=worst.rate,
        direction=direction,
        slope_pattern=_slopes(item, worst),
        name=item.name,
    )


def _by_euler_steps(
    item: Recurrence, wanted: float | None, solver: str, accuracy: float, deadline: float
) -> Certificate:
    """Heun's map is ½ id + ½ E∘E with the Euler map E of the same step, so a factor c of E gives ½ + ½c²."""
    assert item.step_range is not None  # the caller asks about maps only
    longest = item.step_range[1]
    euler_rate = None
    if wanted is not None:
        factor = 1.0 - wanted * longest if _is_range(item) else math.exp(-wanted * longest)
        # Below ½ no c will do; then a rate that no Euler map of this step has leads to a failure with its reason.
        euler_rate = -math.log(max(2 * factor - 1, 1e-300)) / (2 * longest)
    euler = replace(item, integrator="euler", step_range=(longest, longest))
    found = _certify_one(euler, euler_rate, solver, accuracy, deadline)
    if not found.holds or found.factor is None:
        return found
    reached = 0.5 + 0.5 * found.factor**2 * (1 + 4 * UNIT)
    return replace(
        found,
        factor=reached,
        rate=level_to_rate(reached**2, longest, _is_range(item)),
        method=f"{found.method}, by Euler steps",
        dynamics="heun",
        step_range=item.step_range,
        upper_bound=math.inf,
    )


def _is_range(item: Recurrence) -> bool:
    return item.step_range is not None and item.step_range[0] < item.step_range[1]


def _slopes(item: Recurrence, worst: WorstSlopes) -> Matrix:
    low, high = item.slopes
    return low + (high - low) * worst.slopes


def _disproof(worst: WorstSlopes, target: float) -> str:
    if target == 0.0:
        return (
            f"no metric can exist: for one pattern of slopes that the nonlinearity allows, the linearized system "
            f"{'grows' if worst.rate < 0 else 'does not decay'} (rate {worst.rate:.4g}) along the given direction"
        )
    return f"no metric can prove a rate of {target:.4g}: one pattern of slopes decays at the rate {worst.rate:.4g} only"


def _shortfall(reached: float, possible: float, target: float) -> str:
    return (
        f"the best rate found for a quadratic metric is {reached:.4g}, which does not exceed {target:.4g}; "
        f"the slowest slope pattern found decays at {possible:.4g}, so that the question is open"
    )


def _most_violated(systems: list[System[Matrix]], proof: Proof, target: float) -> Matrix | None:
    """The state part of the eigenvector along which the worst inequality fails most at the target rate."""
    index = int(
        np.argmax([level - rate_to_level(target, s.step) for level, s in zip(proof.levels, systems, strict=True)])
    )
    if not proof.multipliers:
        return None
    system, n = systems[index], systems[index].size
    form = quadratic_form(system, proof.P, np.diag(proof.multipliers[index]))
    form[:n, :n] -= rate_to_level(target, system.step) * proof.P
    direction = np.linalg.eigh(form)[1][:n, -1]
    return direction / max(float(np.linalg.norm(direction)), 1e-300)
