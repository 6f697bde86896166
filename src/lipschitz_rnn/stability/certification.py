"""Contraction certificates: find a metric by any means, then prove it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from lipschitz_rnn.stability.proof.candidate import Candidate
from lipschitz_rnn.stability.proof.certificate import Certificate, Refusal, combine
from lipschitz_rnn.stability.proof.inequality import quadratic_form
from lipschitz_rnn.stability.proof.inputs import Subject, as_float, subjects
from lipschitz_rnn.stability.proof.issuing import Examiner, description, heun_from_euler
from lipschitz_rnn.stability.proof.modules import stating_modules
from lipschitz_rnn.stability.proof.precision import PRECISIONS
from lipschitz_rnn.stability.proof.proving import panels_of
from lipschitz_rnn.stability.proof.rates import rate_to_level
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search import advice
from lipschitz_rnn.stability.search.adversary import WorstSlopes, worst_slopes
from lipschitz_rnn.stability.search.candidates import candidates
from lipschitz_rnn.stability.search.clock import Clock, OutOfTime, Progress
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
    progress: Callable[[Progress], None] | None = None,
) -> Certificate:
    """Prove that any two trajectories under the same input approach each other, or say why that failed.

    Args:
        target: a pair (A, W) of arrays or tensors; a module that states its recurrence (LipschitzRNN, LipschitzRNNCell,
            ContractingPair, and the units listed in docs/stability.md) or contains such modules (every layer and
            direction is certified); or the path of a .safetensors, .npz or .pt file with entries A and W. A model with
            any other recurrent module is refused.
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
            interrupted. What was found until then is still proved; ``complete`` is then False, and ``upper_bound`` says
            how much more a longer search could find at most.
        progress: called with a :class:`Progress` whenever the search turns to something else or finds a better rate.

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
    if progress is not None and not callable(progress):
        raise ValueError(f"progress is {progress!r}; give a function that takes a Progress, or None")
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
    # The layers of one module feed forward. What a model computes between several modules is anybody's code.
    cascade = isinstance(target, nn.Module) and len(stating_modules(target)) == 1
    with one_blas_thread(), np.errstate(all="ignore"):
        parts = [
            _certify_one(item, rate, solver, accuracy, Clock.after(time_limit, item.name, progress)) for item in found
        ]
        return combine(parts, cascade=cascade)


def _certify_one(item: Subject, wanted: float | None, solver: str, accuracy: float, clock: Clock) -> Certificate:
    target = wanted or 0.0
    examiner = Examiner(item, panels=1)
    clock.tell("slopes that decay slowly")
    try:
        worst = worst_slopes(examiner.systems[-1], starts=5 if item.size > 64 else 8, clock=clock)
    except np.linalg.LinAlgError:
        unknown = Refusal("eigenvalues", "the eigenvalues of the linearized system cannot be computed")
        return _failure(item, None, None, -math.inf, unknown, target)
    if item.is_flat:
        return _failure(item, worst, worst.direction, min(worst.rate, 0.0), _identity(item), target)
    if worst.rate <= target:
        return _failure(item, worst, worst.direction, worst.rate, _disproof(worst, target), target)
    clock.upper_bound = worst.rate
    good_enough = worst.rate * (1 - accuracy) if wanted is None else wanted
    ranked: list[Candidate] = []
    in_time = True
    for panels in panels_of(item):
        examiner = Examiner(item, panels)
        ranked, in_time = _search(item, examiner.systems, worst.rate, target, good_enough, solver, accuracy, clock)
        if not in_time or (ranked and ranked[0].rate(examiner.systems, item.is_range) > target):
            break
    refusal: Refusal | None = None
    reached = -math.inf
    for place, candidate in enumerate(ranked):
        # The best candidate may be too close to singular for the check; the next one then still counts.
        rate = candidate.rate(examiner.systems, item.is_range)
        reached = max(reached, rate)
        if rate <= target or (place > 0 and clock.left == 0.0):
            break
        clock.tell("proof", rate)
        answer = examiner.issue(candidate, target, complete=in_time, **_observed(item, worst))
        if isinstance(answer, Certificate):
            return answer
        refusal = refusal or answer
    if item.integrator == "heun" and item.step_range is not None and in_time:
        by_euler = _by_euler_steps(item, wanted, solver, accuracy, clock)
        if by_euler.holds:
            return by_euler
    direction = _most_violated(examiner.systems, ranked[0], target) if ranked else None
    if refusal is None and not in_time:
        refusal = _out_of_time(reached, worst.rate, target)
    elif refusal is None and not ranked:
        refusal = Refusal("open", "no quadratic metric was found, so the question is open")
    refusal = refusal or _shortfall(reached, worst.rate, target)
    return _failure(item, worst, direction, reached, refusal, target)


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
    found: list[tuple[float, Candidate]] = []
    in_time = True
    try:
        clock.check()
        for candidate in candidates(item, systems, possible, target, solver, accuracy, clock):
            found.append((candidate.rate(systems, item.is_range), candidate))
            clock.tell(candidate.method, found[-1][0])
            if found[-1][0] > enough:
                break
        else:
            in_time = clock.left > 0
    except OutOfTime:
        in_time = False
    except (np.linalg.LinAlgError, ArithmeticError):
        pass  # numbers so extreme that a search breaks down; what it found before counts
    return [candidate for _, candidate in sorted(found, key=lambda pair: -pair[0])], in_time


def _failure(
    item: Subject, worst: WorstSlopes | None, direction: Matrix | None, rate: float, refusal: Refusal, target: float
) -> Certificate:
    return Certificate(
        holds=False,
        rate=rate,
        method="none",
        margin=-math.inf,
        cause=refusal.cause,
        reason=refusal.reason,
        direction=direction,
        next_step=advice.next_step(item, worst, refusal.cause, target),
        complete=refusal.cause != "time",
        **description(item),
        **_observed(item, worst),
    )


def _observed(item: Subject, worst: WorstSlopes | None) -> dict[str, Any]:
    """What the search for bad slopes saw; a certificate carries it, but claims nothing about it."""
    if worst is None:
        return {"upper_bound": math.inf, "slope_pattern": None}
    low, high = item.slopes
    return {"upper_bound": worst.rate, "slope_pattern": low + (high - low) * worst.slopes}


def _by_euler_steps(item: Subject, wanted: float | None, solver: str, accuracy: float, clock: Clock) -> Certificate:
    """Heun's map through the Euler map of its longest step, whose certificate is easier to find."""
    assert item.step_range is not None  # the caller asks about maps only
    longest = item.step_range[1]
    euler_rate = None
    if wanted is not None:
        factor = 1.0 - wanted * longest if item.is_range else math.exp(-wanted * longest)
        # Below ½ no factor of the Euler map is enough; asking for an impossible rate then fails with a reason.
        euler_rate = -math.log(max(2 * factor - 1, 1e-300)) / (2 * longest)
    exact = replace(item, integrator="euler", step_range=(longest, longest), precision=PRECISIONS["exact"])
    return heun_from_euler(item, _certify_one(exact, euler_rate, solver, accuracy, clock), wanted)


def _disproof(worst: WorstSlopes, target: float) -> Refusal:
    if target == 0.0:
        fate = f"grows at {-worst.rate:.2g} per unit of time" if worst.rate < 0 else "does not decay"
        return Refusal(
            "slopes",
            f"the computed eigenvalues say that no metric can exist: for one pattern of slopes that the nonlinearity "
            f"allows, the linearized system {fate}",
        )
    return Refusal(
        "rate",
        f"the computed eigenvalues say that no metric can prove a rate of {target:.4g}: for one pattern of slopes the "
        f"linearized system decays only at the rate {worst.rate:.4g}",
    )


def _identity(item: Subject) -> Refusal:
    return Refusal(
        "slopes",
        "the recurrence has no linear term: h⁺ = h + ε σ(W h + …), as in nais, antisymmetric, residual and neural-ode. "
        f"Where the slope of {item.nonlinearity or 'σ'} vanishes its Jacobian is the identity, so two states need not "
        "approach each other there, and the factor is 1 at best",
    )


def _out_of_time(reached: float, possible: float, target: float) -> Refusal:
    so_far = "no metric" if math.isinf(reached) else f"a rate of {reached:.4g}"
    return Refusal(
        "time",
        f"the time limit ended the search with {so_far}, where more than {target:.4g} is needed; the slowest slope "
        f"pattern found decays at {possible:.4g}, so the question is open",
    )


def _shortfall(reached: float, possible: float, target: float) -> Refusal:
    return Refusal(
        "open",
        f"the best rate found for a quadratic metric is {reached:.4g}, which does not exceed {target:.4g}; "
        f"the slowest slope pattern found decays at {possible:.4g}, so the question is open",
    )


def _most_violated(systems: list[System[Matrix]], candidate: Candidate, target: float) -> Matrix | None:
    """The state part of the eigenvector along which the worst inequality fails most at the target rate."""
    if not candidate.multipliers:
        return None
    index = int(
        np.argmax([level - rate_to_level(target, s.step) for level, s in zip(candidate.levels, systems, strict=True)])
    )
    system, n = systems[index], systems[index].size
    form = quadratic_form(system, candidate.P, np.diag(candidate.multipliers[index]))
    form[:n, :n] -= rate_to_level(target, system.step) * candidate.P
    try:
        direction = np.linalg.eigh(form)[1][:n, -1]
    except np.linalg.LinAlgError:
        return None
    return direction / max(float(np.linalg.norm(direction)), 1e-300)
