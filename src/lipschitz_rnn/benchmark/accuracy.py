"""Errors against float64, and how much of them rounding can explain.

A result R is computed from data (inputs, weights, the gradient of the loss) with unit roundoff u_o for the operands of
products and u_s for sums. By the usual backward error analysis, the computed result is the exact result for data with a
relative perturbation η. To first order its relative error is κ η, where κ is the condition number of R.

- η: every operand is rounded once, which gives u_o. A sum of n terms is rounded n times; these errors behave like
  independent ones and add up to about √n u_s (Higham and Mary, 2019). For a state, n counts the stages × T additions
  to the state and the N + p terms of its products; a gradient is summed over stages × T × B.
- κ is measured, not bounded. The float64 loop runs again on data with a random relative perturbation of up to 10⁻⁶ in
  every number, and the relative change of R is divided by that. So κ includes the effect of the sizes, the integrator,
  growth and cancellation, whereas norm bounds grow exponentially with T and are useless. κ is at least 1, so that data
  on which errors happen to cancel do not lower the limit.

The limit is ``SAFETY`` κ (u_o + √n u_s). Correct results stay at 70 % of it or less for all sizes in the tests (N from
1 to 256, T to 500, B to 64, every integrator). A coefficient that is off by 1 % is far above it in float32; in
bfloat16, where u_o is 0.4 %, only an error of a few percent is.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.benchmark.contestants import Contestant
from lipschitz_rnn.benchmark.jobs import Build, Job
from lipschitz_rnn.benchmark.precision import EXACT, SUMS, Precision
from lipschitz_rnn.benchmark.workload import Data
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator

SAFETY = 4.0
DRAWS = 3
SHIFT = 1e-6  # small enough for first order, large compared with float64 rounding


@dataclass(frozen=True)
class Errors:
    """Relative errors: the largest of any state, and that of the gradients (None: forward only)."""

    states: float
    gradients: float | None

    def within(self, limit: Errors) -> bool:
        """Whether both errors are within the limit; NaN never is."""
        pairs = [(self.states, limit.states)]
        if self.gradients is not None and limit.gradients is not None:
            pairs.append((self.gradients, limit.gradients))
        return all(found <= allowed for found, allowed in pairs)

    def __str__(self) -> str:
        text = f"{self.states:.1e} (states)"
        return text if self.gradients is None else f"{text} and {self.gradients:.1e} (gradients)"

    def to_dict(self) -> dict[str, float | None]:
        """As JSON, which has no NaN or infinity: None stands for them."""
        pair = {"states": self.states, "gradients": self.gradients}
        return {name: value if value is not None and math.isfinite(value) else None for name, value in pair.items()}


Result = tuple[Tensor, tuple[Tensor, ...]]


class Judge:
    """Compares results with float64 results, which it computes once per kind of contestant."""

    def __init__(self, data: Data, *, backward: bool) -> None:
        self._data, self._backward = data, backward
        self._exact: dict[Build, Result] = {}
        self._conditions: dict[Build, Errors] = {}

    def errors(self, contestant: Contestant, job: Job) -> Errors:
        with contestant.precision.active():
            found = self._run(job)
        return _compare(found, self._truth(contestant.exact))

    def limit(self, contestant: Contestant) -> Errors:
        """The largest errors that rounding can explain; see the top of this file."""
        condition = self._condition(contestant.exact)
        states, gradients = (_rounding(self._data, contestant.precision, summed) for summed in (False, True))
        of_gradients = None if condition.gradients is None else SAFETY * condition.gradients * gradients
        return Errors(SAFETY * condition.states * states, of_gradients)

    def _condition(self, truth: Build) -> Errors:
        """κ of the states and of the gradients, at least 1."""
        if truth not in self._conditions:
            moved = [self._exactly(truth, perturbed(self._data, seed)) for seed in range(DRAWS)]
            found = [_compare(each, self._truth(truth)) for each in moved]
            states = max(1.0, *(each.states / SHIFT for each in found))
            slopes = [each.gradients / SHIFT for each in found if each.gradients is not None]
            self._conditions[truth] = Errors(states, max(1.0, *slopes) if slopes else None)
        return self._conditions[truth]

    def _truth(self, truth: Build) -> Result:
        if truth not in self._exact:
            self._exact[truth] = self._exactly(truth, self._data)
        return self._exact[truth]

    def _exactly(self, build: Build, data: Data) -> Result:
        with EXACT.active():
            return self._run(build(data, EXACT.dtype))

    def _run(self, job: Job) -> Result:
        return job.training() if self._backward else (job.forward(), ())


def perturbed(data: Data, seed: int) -> Data:
    """The data with a random relative perturbation of up to ``SHIFT`` in every number."""
    generator = torch.Generator().manual_seed(seed)

    def move(values: Tensor) -> Tensor:
        draws = 2.0 * torch.rand(values.shape, generator=generator, dtype=torch.float64) - 1.0
        return values.double() * (1.0 + SHIFT * draws.to(values.device))

    return copy.copy(data).changed(move)


def _rounding(data: Data, precision: Precision, summed: bool) -> float:
    """η of the states, or of the gradients, which are ``summed`` over time and batch."""
    work = data.workload
    terms = len(get_integrator(work.integrator)) * work.length * (work.batch if summed else 1)
    return precision.rounding + SUMS * math.sqrt(terms + work.hidden + work.features)


def _compare(found: Result, exact: Result) -> Errors:
    pairs = zip(found[1], exact[1], strict=True)
    worst = max((_relative(one, other) for one, other in pairs), default=None, key=_nan_is_worst)
    return Errors(_largest_error(found[0], exact[0]), worst)


def _largest_error(found: Tensor, exact: Tensor) -> float:
    """The largest error of a single state, relative to the states (S, …, B, N) of its network and time.

    A norm over all states would hide one wrong state among many right ones.
    """
    scale = exact.norm(dim=-1).square().mean(dim=-1, keepdim=True).sqrt()
    error = (found.to(exact.dtype) - exact).norm(dim=-1) / torch.where(scale > 0.0, scale, 1.0)
    return float(error.max())  # NaN if there is one


def _relative(found: Tensor, exact: Tensor) -> float:
    scale = float(exact.norm())
    difference = float((found.to(exact.dtype) - exact).norm())
    return difference / scale if scale > 0.0 else difference


def _nan_is_worst(error: float) -> float:
    return math.inf if math.isnan(error) else error
