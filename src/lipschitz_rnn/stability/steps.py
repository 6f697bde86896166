"""How long a step may be before the map stops contracting."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.stability.certification import certify
from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.inputs import as_float, subjects


def largest_contracting_step(
    target: Any,
    *,
    integrator: str | None = None,
    alpha: float | None = None,
    nonlinearity: Any = None,
    longest: float = 100.0,
    accuracy: float = 0.01,
    solver: str = "auto",
    precision: str | None = None,
    time_limit: float = 150.0,
) -> tuple[float, Certificate | None]:
    """The largest step found for which every step up to it is certified, with that certificate; (0, None) if none is.

    Bisection on the certificate for the range (0, step]: what holds for a range holds for every shorter one, so the
    answer does not depend on luck with single steps. The relative accuracy is ``accuracy``; steps beyond ``longest``
    are not tried. For ``rk4``, which has no certificate for ranges, the statement is about the single step.
    ``precision`` and ``time_limit``, for each step that is tried, are those of :func:`certify`.
    """
    if not as_float("longest", longest) > 0:
        raise ValueError(f"longest is {longest}; give a positive step")
    if not 0 < as_float("accuracy", accuracy) < 1:
        raise ValueError(f"accuracy is {accuracy}; give a relative accuracy between 0 and 1")
    maps = subjects(target, precision, step_size=longest, integrator=integrator, alpha=alpha, nonlinearity=nonlinearity)
    single = any(len(get_integrator(item.integrator)) > 2 for item in maps)

    def attempt(step: float) -> Certificate:
        steps = step if single else (0.0, step)
        return certify(
            target,
            step_size=steps,
            integrator=integrator,
            alpha=alpha,
            nonlinearity=nonlinearity,
            rate=1e-9,
            solver=solver,
            precision=precision,
            time_limit=time_limit,
        )

    low, best = 0.0, None
    high = min(1.0, longest)
    while (certificate := attempt(high)).holds:
        low, best = high, certificate
        if high == longest:
            return low, best
        high = min(2 * high, longest)
    while high - low > accuracy * high and high > 1e-9:
        middle = 0.5 * (low + high) if low > 0 else 0.25 * high
        certificate = attempt(middle)
        if certificate.holds:
            low, best = middle, certificate
        else:
            high = middle
    return low, best
