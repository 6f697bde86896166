"""Errors against float64, and how large they may be before a time counts for nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from lipschitz_rnn.benchmark.contestants import Contestant
from lipschitz_rnn.benchmark.jobs import Build, Job
from lipschitz_rnn.benchmark.precision import BFLOAT16, EXACT, FLOAT32, TF32, Precision
from lipschitz_rnn.benchmark.workload import Data

FACTOR = 3.0  # an error may be this many times that of PyTorch's own operations on the same loop


@dataclass(frozen=True)
class Errors:
    """Relative errors: of the states, and the largest among the gradients of the weights (None: forward only)."""

    states: float
    gradients: float | None

    def within(self, limit: Errors) -> bool:
        """NaN is within no limit."""
        pairs = [(self.states, limit.states)]
        if self.gradients is not None and limit.gradients is not None:
            pairs.append((self.gradients, limit.gradients))
        return all(found <= allowed for found, allowed in pairs)

    def __str__(self) -> str:
        text = f"errors {self.states:.1e} (states)"
        return text if self.gradients is None else f"{text} and {self.gradients:.1e} (gradients)"

    def to_dict(self) -> dict[str, float | None]:
        """JSON has no NaN and no infinity; None stands for them."""
        pair = {"states": self.states, "gradients": self.gradients}
        return {name: value if value is not None and math.isfinite(value) else None for name, value in pair.items()}


Result = tuple[Tensor, tuple[Tensor, ...]]


class Judge:
    """Compares results with float64 ones, which it computes once for each kind of contestant."""

    def __init__(self, data: Data, *, backward: bool) -> None:
        self._data, self._backward = data, backward
        self._exact: dict[Build, Result] = {}
        self._limits: dict[tuple[Build, str], Errors] = {}

    def errors(self, contestant: Contestant, job: Job) -> Errors:
        return self._compare(job, contestant.precision, contestant.exact)

    def limit(self, contestant: Contestant) -> Errors:
        """What the plain loop in PyTorch's own operations loses with the same operands, times a small factor."""
        key = contestant.exact, contestant.precision.operands
        if key not in self._limits:
            same = {each.operands: each for each in (FLOAT32, TF32, BFLOAT16)}[contestant.precision.operands]
            found = self._compare(contestant.exact(self._data, same.dtype), same, contestant.exact)
            floor = same.rounding  # a short sequence may by chance come out better than its operands are
            gradients = None if found.gradients is None else FACTOR * max(found.gradients, floor)
            self._limits[key] = Errors(FACTOR * max(found.states, floor), gradients)
        return self._limits[key]

    def _compare(self, job: Job, precision: Precision, truth: Build) -> Errors:
        with precision.active():
            states, gradients = self._run(job)
        if truth not in self._exact:
            with EXACT.active():
                self._exact[truth] = self._run(truth(self._data, EXACT.dtype))
        exact_states, exact_gradients = self._exact[truth]
        pairs = zip(gradients, exact_gradients, strict=True)
        worst = max((_relative(found, exact) for found, exact in pairs), default=None, key=_nan_is_worst)
        return Errors(_relative(states, exact_states), worst)

    def _run(self, job: Job) -> Result:
        return job.training() if self._backward else (job.forward(), ())


def _relative(found: Tensor, exact: Tensor) -> float:
    scale = float(exact.norm())
    difference = float((found.to(exact.dtype) - exact).norm())
    return difference / scale if scale > 0.0 else difference


def _nan_is_worst(error: float) -> float:
    return math.inf if math.isnan(error) else error
