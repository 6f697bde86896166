"""Contraction certificates: find a metric by any means, then prove it."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from lipschitz_rnn.stability.proof.candidate import Candidate
from lipschitz_rnn.stability.proof.certificate import Certificate, combine
from lipschitz_rnn.stability.proof.inequality import quadratic_form
from lipschitz_rnn.stability.proof.inputs import Subject, as_float, subjects
from lipschitz_rnn.stability.proof.precision import PRECISIONS
from lipschitz_rnn.stability.proof.proving import (
    heun_level,
    panels_of,
    systems_of,
    verified_levels,
    verified_overshoot,
    verified_rate,
)
from lipschitz_rnn.stability.proof.rates import proved_factor, proved_rate, rate_to_level
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search import advice
from lipschitz_rnn.stability.search.adversary import WorstSlopes, worst_slopes
from lipschitz_rnn.stability.search.candidates import candidates
from lipschitz_rnn.stability.search.clock import Clock, OutOfTime
from lipschitz_rnn.stability.search.semidefinite import choose_solver
from lipschitz_rnn.stability.threads import one_blas_thread


def certify(
    target: Any,
    *,
    step_size: float | tuple[float, float] | None = None,
    integrator: str | None = None,
    alpha: float | None = None,
    nonlinearity: Any = None,
    continuous: bool | None = None,
    precision: str | None = None,
    rate: float | None = None,
    solver: str = "auto",
    accuracy: float = 1e-3,
    time_limit: float = 150.0,
) -> Certificate:
    """Prove that any two trajectories under the same input approach each other, or say why that failed.

    Args:
        target: a pair (A, W) of arrays or tensors; a module that states its recurrence (LipschitzRNN, LipschitzRNNCell,
            ContractingPair) or contains such modules (every layer and direction is certified); or the path of a
            .safetensors, .npz or .pt file with entries A and W. A model with any other recurrent module is refused.
        step_size: a step, or (shortest, longest) for irregular samples. A layer's own step by default; for a pair
            without a step the statement is about continuous time.
        integrator, alpha, nonlinearity: as the layer's; for a pair ``euler``, 1 and ``tanh`` by default. A nonlinearity
            is a name or the range (smallest, largest) of its slopes.
        continuous: True for the differential equation, whatever step the layer runs with.
        precision: what the kernels round A and W to: ``float64``, ``float32``, ``high`` (TF32 allowed), ``medium``
            (bfloat16 products allowed), ``bfloat16`` or ``float16``. None: for a module what is in force here, by its
            dtype, autocast and ``torch.get_float32_matmul_precision()``; for a pair the numbers as they are given.
        rate: stop as soon as this rate is proved; the certificate does not hold below it. None: find the best rate.
        solver: ``auto``; ``structured`` never calls a general solver; ``clarabel`` or ``scs`` name the one to use.
        accuracy: relative accuracy of the best rate, above 0 and below 1.
        time_limit: seconds of search for each pair, at least 0; may be infinite. A single factorization is not
            interrupted.

    Returns:
        A :class:`Certificate`. It holds only if P and the multipliers passed the check in float64 with rounding.
    """
    if not isinstance(solver, str):
        raise ValueError(f"solver is {solver!r}; choose auto, structured, clarabel or scs")
    if solver != "structured":
        choose_solver(solver, 1)
    if rate is not None and as_float("rate", rate) <= 0:
        raise ValueError(f"rate is {rate}; ask for a positive, finite rate, or None for the best one")
    if not 0 < as_float("accuracy", accuracy) < 1:
        raise ValueError(f"accuracy is {accuracy}; give a relative accuracy above 0 and below 1, for example 0.001")
    if time_limit != math.inf and as_float("time_limit", time_limit) < 0:
        raise ValueError(f"time_limit is {time_limit}; give the seconds that a search may take, at least 0")
    if continuous and step_size is not None:
        raise ValueError("continuous=True has no step; leave out either continuous or step_size")
    found = subjects(
        target,
        precision,
        step_size=step_size,
        integrator=integrator,
        alpha=alpha,
        nonlinearity=nonlinearity,
        continuous=continuous,
    )
    with one_blas_thread(), np.errstate(all="ignore"):
        return combine([_certify_one(item, rate, solver, accuracy, Clock.after(time_limit)) for item in found])


def _certify_one(item: Subject, wanted: float | None, solver: str, accuracy: float, clock: Clock) -> Certificate:
    target = wanted or 0.0
    A, W = (ball.mid for ball in item.nominal)
    systems, panels = systems_of(item, A, W, 1), 1
    proofs: list[Candidate] = []
    try:
        worst = worst_slopes(systems[-1], starts=5 if len(A) > 64 else 8, clock=clock)
    except np.linalg.LinAlgError:
        return _failure(item, None, None, -math.inf, "the eigenvalues of the linearized system cannot be computed")
    if worst.rate <= target:
        return _failure(item, worst, worst.direction, worst.rate, _disproof(worst, target))
    good_enough = worst.rate * (1 - accuracy) if wanted is None else wanted
    in_time = True
    for panels in panels_of(item):
        systems = systems_of(item, A, W, panels)
        proofs, in_time = _search(item, systems, worst.rate, target, good_enough, solver, accuracy, clock)
        if not in_time or (proofs and proofs[0].rate(systems, item.is_range) > target):
            break
    reason, reached = "", -math.inf
    enclosed = systems_of(item, *item.nominal, panels)
    for place, proof in enumerate(proofs):
        # The best candidate may be too close to singular for the check; the next one then still counts.
        reached = max(reached, proof.rate(systems, item.is_range))
        if proof.rate(systems, item.is_range) <= target or (place > 0 and clock.left == 0.0):
            break
        certificate = _checked(item, proof, systems, enclosed, worst, target)
        if isinstance(certificate, Certificate):
            return certificate
        reason = reason or certificate
    if item.integrator == "heun" and item.step_range is not None and in_time:
        by_euler = _by_euler_steps(item, wanted, solver, accuracy, clock)
        if by_euler.holds:
            return by_euler
    direction = _most_violated(systems, proofs[0], target) if proofs else None
    if not reason and not in_time:
        reason = "the time limit passed before a proof was found, so the question is open"
    elif not reason and not proofs:
        reason = "no quadratic metric was found, so the question is open"
    return _failure(item, worst, direction, reached, reason or _shortfall(reached, worst.rate, target))


def _search(
    item: Subject,
    systems: list[System[Matrix]],
    possible: float,
    target: float,
    enough: float,
    solver: str,
    accuracy: float,
    clock: Clock,
) -> tuple[list[Candidate], bool]:
    """Candidates, the best one first, and whether the search came to its end in time."""
    proofs: list[Candidate] = []
    in_time = True
    try:
        clock.check()
        for proof in candidates(item, systems, possible, target, solver, accuracy, clock):
            proofs.append(proof)
            if proof.rate(systems, item.is_range) > enough:
                break
    except OutOfTime:
        in_time = False
    except (np.linalg.LinAlgError, ArithmeticError):
        pass  # numbers so extreme that a search breaks down; what it found before counts
    return sorted(proofs, key=lambda proof: -proof.rate(systems, item.is_range)), in_time


def _checked(
    item: Subject,
    proof: Candidate,
    systems: list[System[Matrix]],
    enclosed: list[System[Ball]],
    worst: WorstSlopes,
    target: float,
) -> Certificate | str:
    """Turn a candidate into a certificate by checking every inequality with rounding, or say why that failed."""
    verified = verified_levels(item, proof, systems, enclosed, target)
    if verified is None:
        if item.precision.name in ("exact", "float64"):
            return "a metric was found, but the inequality holds by less than the rounding of its check"
        return f"a metric was found, but not for every matrix that {item.precision.name} may round A and W to"
    levels, margins = verified
    proved = verified_rate(item, levels, systems)
    if proved <= target:
        return f"the proved rate {proved:.4g} does not exceed {target:.4g} once rounding is subtracted"
    return Certificate(
        holds=True,
        rate=proved,
        factor=None if item.step_range is None else proved_factor(levels[-1]),
        method=proof.method,
        margin=min(margins),
        overshoot=verified_overshoot(proof.P),
        metric=proof.P,
        multipliers=proof.multipliers,
        **_common(item, worst),
    )


def _failure(
    item: Subject, worst: WorstSlopes | None, direction: Matrix | None, rate: float, reason: str
) -> Certificate:
    return Certificate(
        holds=False,
        rate=rate,
        method="none",
        margin=-math.inf,
        reason=reason,
        direction=direction,
        next_step=advice.next_step(item, worst, reason),
        **_common(item, worst),
    )


def _common(item: Subject, worst: WorstSlopes | None) -> dict[str, Any]:
    """What a certificate carries whether it holds or not: all that the claim is about."""
    low, high = item.slopes
    return {
        "dynamics": "continuous" if item.step_range is None else item.integrator,
        "step_range": item.step_range,
        "substeps": item.substeps,
        "reverse": item.reverse,
        "alpha": item.alpha,
        "nonlinearity": item.nonlinearity,
        "slopes": item.slopes,
        "precision": item.precision.name,
        "A": item.A,
        "W": item.W,
        "upper_bound": math.inf if worst is None else worst.rate,
        "slope_pattern": None if worst is None else low + (high - low) * worst.slopes,
        "name": item.name,
    }


def _by_euler_steps(item: Subject, wanted: float | None, solver: str, accuracy: float, clock: Clock) -> Certificate:
    """Heun's map is ½ id + ½ E∘E with the Euler map E of the same step, so a factor c of E gives ½ + ½c²."""
    assert item.step_range is not None  # the caller asks about maps only
    longest = item.step_range[1]
    euler_rate = None
    if wanted is not None:
        factor = 1.0 - wanted * longest if item.is_range else math.exp(-wanted * longest)
        # Below ½ no c will do; then a rate that no Euler map of this step has leads to a failure with its reason.
        euler_rate = -math.log(max(2 * factor - 1, 1e-300)) / (2 * longest)
    exact = replace(item, integrator="euler", step_range=(longest, longest), precision=PRECISIONS["exact"])
    found = _certify_one(exact, euler_rate, solver, accuracy, clock)
    if not found.holds or found.factor is None or found.metric is None:
        return found
    level = heun_level(item, found.factor, found.metric)
    proved = proved_rate(level, Fraction(longest), item.is_range) if math.isfinite(level) else -math.inf
    return replace(
        found,
        holds=proved > (wanted or 0.0),
        factor=proved_factor(level),
        rate=proved,
        method=f"{found.method}, by Euler steps",
        dynamics="heun",
        step_range=item.step_range,
        precision=item.precision.name,
        upper_bound=math.inf,
    )


def _disproof(worst: WorstSlopes, target: float) -> str:
    if target == 0.0:
        return (
            f"the computed eigenvalues say that no metric can exist: for one pattern of slopes that the nonlinearity "
            f"allows, the linearized system {'grows' if worst.rate < 0 else 'does not decay'} (rate {worst.rate:.4g})"
        )
    return (
        f"the computed eigenvalues say that no metric can prove a rate of {target:.4g}: one pattern of slopes decays "
        f"at the rate {worst.rate:.4g} only"
    )


def _shortfall(reached: float, possible: float, target: float) -> str:
    return (
        f"the best rate found for a quadratic metric is {reached:.4g}, which does not exceed {target:.4g}; "
        f"the slowest slope pattern found decays at {possible:.4g}, so the question is open"
    )


def _most_violated(systems: list[System[Matrix]], proof: Candidate, target: float) -> Matrix | None:
    """The state part of the eigenvector along which the worst inequality fails most at the target rate."""
    if not proof.multipliers:
        return None
    index = int(
        np.argmax([level - rate_to_level(target, s.step) for level, s in zip(proof.levels, systems, strict=True)])
    )
    system, n = systems[index], systems[index].size
    form = quadratic_form(system, proof.P, np.diag(proof.multipliers[index]))
    form[:n, :n] -= rate_to_level(target, system.step) * proof.P
    try:
        direction = np.linalg.eigh(form)[1][:n, -1]
    except np.linalg.LinAlgError:
        return None
    return direction / max(float(np.linalg.norm(direction)), 1e-300)
