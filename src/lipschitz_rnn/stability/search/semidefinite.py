"""Semidefinite programs for small systems, written with cvxpy: what the structured search cannot do.

Two cases need a general solver: one metric for several systems at once (a range of step sizes), and the exact test over
all corners of the cube of slopes, which proves more than any diagonal multiplier but has 2^m inequalities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lipschitz_rnn.stability.proof.rates import rate_to_level
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System
from lipschitz_rnn.stability.search.clock import UNLIMITED, Clock


def _cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError as error:
        raise ImportError('this certificate needs cvxpy: pip install "lipschitz-rnn[stability]"') from error
    return cvxpy


def choose_solver(name: str, size: int) -> str:
    """``auto`` means Clarabel while the inequality is small enough for an interior point method, SCS beyond that."""
    if name == "auto":
        return "CLARABEL" if size <= 80 else "SCS"
    if name.upper() not in ("CLARABEL", "SCS"):
        raise ValueError(f"solver is {name!r}; choose auto, structured, clarabel or scs")
    return name.upper()


def common_metric(
    systems: Sequence[System[Matrix]], rate: float, solver: str, clock: Clock
) -> tuple[Matrix, list[Matrix]] | None:
    """P and one multiplier for each system, all at the given rate, or None where the solver finds none."""
    cp = _cvxpy()
    n = systems[0].size
    P = cp.Variable((n, n), symmetric=True)
    slack = cp.Variable()
    multipliers = [cp.Variable(system.channels) for system in systems]
    constraints = [P >> np.eye(n) * 1e-2, P << np.eye(n), slack <= 1]
    for system, multiplier in zip(systems, multipliers, strict=True):
        form = _form(cp, system, P, multiplier, rate_to_level(rate, system.step))
        constraints += [form << -slack * np.eye(n + system.channels) * (system.step or 1.0), multiplier >= 0]
    size = max(n + system.channels for system in systems)
    problem = cp.Problem(cp.Maximize(slack), constraints)
    if not _solve(cp, problem, choose_solver(solver, size), clock) or slack.value <= 0:
        return None
    return 0.5 * (P.value + P.value.T), [np.maximum(multiplier.value, 1e-12) for multiplier in multipliers]


def metric_for_jacobians(
    jacobians: Sequence[Matrix], at_level: Sequence[float], continuous: bool, clock: Clock | None = None
) -> Matrix | None:
    """P with which every Jacobian of every batch (K, N, N) keeps that batch's level; violated ones are added."""
    from lipschitz_rnn.stability.search.corners import levels

    cp = _cvxpy()
    n = jacobians[0].shape[1]
    active = {(batch, 0) for batch in range(len(jacobians))}
    for _ in range(40):
        P = cp.Variable((n, n), symmetric=True)
        slack = cp.Variable()
        constraints = [P >> np.eye(n) * 1e-3, P << np.eye(n), slack <= 1]
        for batch, index in active:
            J, level = jacobians[batch][index], at_level[batch]
            left = P @ J + J.T @ P if continuous else J.T @ P @ J
            form = left - level * P + slack * np.eye(n) * (1.0 if continuous else max(1e-6, abs(1 - level)))
            constraints.append(0.5 * (form + form.T) << 0)
        if not _solve(cp, cp.Problem(cp.Maximize(slack), constraints), "CLARABEL", clock) or slack.value <= 0:
            return None
        found = 0.5 * (P.value + P.value.T)
        new = set()
        for batch, (J, level) in enumerate(zip(jacobians, at_level, strict=True)):
            violation = levels(J, found, continuous) - level
            new |= {(batch, int(k)) for k in np.argsort(-violation)[:4] if violation[k] > 0}
        if not new - active:
            return found if not new else None
        active |= new
    return None


def _form(cp: Any, system: System[Matrix], P: Any, multiplier: Any, level: float) -> Any:
    L = cp.diag(multiplier)
    LC, LE = L @ system.C, L @ system.E
    corner = LE + LE.T - 2 * L
    if system.step is None:
        rows = [[P @ system.F + system.F.T @ P - level * P, P @ system.G + LC.T], [system.G.T @ P + LC, corner]]
    else:
        F, G = system.F, system.G
        rows = [[F.T @ P @ F - level * P, F.T @ P @ G + LC.T], [G.T @ P @ F + LC, G.T @ P @ G + corner]]
    form = cp.bmat(rows)
    return 0.5 * (form + form.T)


def _solve(cp: Any, problem: Any, solver: str, clock: Clock | None) -> bool:
    import warnings

    clock = clock or UNLIMITED
    clock.check()
    options: dict[str, Any] = {"eps": 1e-7, "max_iters": 5000} if solver == "SCS" else {}
    if clock.left < 1e9:
        options["time_limit_secs" if solver == "SCS" else "time_limit"] = max(clock.left, 1e-3)
    with warnings.catch_warnings():
        # An inaccurate answer is still a candidate: every certificate is checked afterwards without the solver.
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=solver, **options)
        except (cp.error.SolverError, ValueError, ArithmeticError):
            return False
    clock.check()
    return problem.status in ("optimal", "optimal_inaccurate")
