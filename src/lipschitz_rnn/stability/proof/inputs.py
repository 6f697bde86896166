"""Reads what a caller passes (matrices, a module or a file) into the maps that certificates are about."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import Nonlinearity, get_nonlinearity
from lipschitz_rnn.ops.lipschitz.substeps import substeps_of
from lipschitz_rnn.stability.proof.feedback import Feedback
from lipschitz_rnn.stability.proof.files import pairs_in_file
from lipschitz_rnn.stability.proof.modules import require_held, statements
from lipschitz_rnn.stability.proof.precision import (
    PRECISIONS,
    Precision,
    as_precision,
    held,
    in_force,
    nominal,
    rounded,
)
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix
from lipschitz_rnn.units.recurrence import FeedbackMap, Statement

LARGEST = 2048  # units: one eigenvalue problem of the inequality then takes minutes, and gigabytes


@dataclass(frozen=True)
class Subject:
    """One map to certify: A and W as they are held, without α, and all that decides how they run.

    ``step_range`` None means continuous time. ``hint`` holds a metric (or its diagonal) and a multiplier, for pairs
    that were built to contract. ``substeps`` are the fewest and most steps that one sample takes. A map that is no step
    of a differential equation has a ``feedback`` instead of A and W, which are then empty.
    """

    A: Matrix
    W: Matrix
    alpha: float = 1.0
    slopes: tuple[float, float] = (0.0, 1.0)
    integrator: str = "euler"
    step_range: tuple[float, float] | None = None
    name: str = ""
    hint: tuple[Matrix, Matrix] | None = None
    nonlinearity: str | None = None
    precision: Precision = PRECISIONS["exact"]
    substeps: tuple[int, int] = (1, 1)
    reverse: bool = False
    feedback: Feedback | None = None

    @property
    def size(self) -> int:
        return len(self.A) if self.feedback is None else len(self.feedback.matrices[0])

    @property
    def is_flat(self) -> bool:
        """Whether h⁺ = h + ε σ(W h + u) with slopes that may vanish: where they do, the Jacobian is the identity."""
        return self.feedback is None and self.slopes[0] <= 0 and (self.alpha == 0 or not self.A.any())

    @cached_property
    def nominal(self) -> tuple[Ball, Ball]:
        """αA and W of exact arithmetic."""
        return nominal(self.A, self.W, self.alpha)

    @cached_property
    def held(self) -> tuple[Ball, Ball]:
        """Every αA and W that a kernel may hold."""
        return held(self.A, self.W, self.alpha, self.precision)

    @property
    def is_range(self) -> bool:
        return self.step_range is not None and self.step_range[0] < self.step_range[1]


def as_array(values: Any, name: str, allowed: str = "a square matrix (N, N)") -> Matrix:
    """Finite float64 numbers from a tensor, an array or nested lists, in any shape."""
    if isinstance(values, torch.Tensor) and values.layout != torch.strided:
        raise TypeError(f"{name} is a sparse tensor; give a plain one, for example {name}.to_dense()")
    try:
        if values is None:  # NumPy would make it nan
            raise TypeError
        tensor = isinstance(values, torch.Tensor)
        complex_numbers = bool(values.is_complex() if tensor else np.iscomplexobj(values))
        real = np.zeros(()) if complex_numbers else values.detach().cpu().double().numpy() if tensor else values
        array: Matrix = np.array(real, dtype=np.float64)
    except TypeError:
        raise TypeError(
            f"{name} is {_shown_type(values)}; give {allowed} of real numbers: an array, a tensor or nested lists"
        ) from None
    except (ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} is not a matrix of numbers ({error}); give {allowed}") from None
    if complex_numbers:
        raise TypeError(f"{name} is complex; give {allowed} of real numbers")
    if not np.all(np.isfinite(array)):
        bad = int(np.size(array) - np.isfinite(array).sum())
        raise ValueError(f"{name} has {bad} entries that are not finite; give finite numbers")
    return array


def _shown_type(values: Any) -> str:
    return f"a {type(values).__name__}" + (
        " with entries that are not numbers" if isinstance(values, list | tuple) else ""
    )


def as_matrix(values: Any, name: str) -> Matrix:
    """A square, finite float64 matrix from a tensor, an array or nested lists."""
    array = as_array(values, name)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise ValueError(f"{name} has shape {array.shape}; give a square matrix (N, N)")
    return array


def as_pair(A: Any, W: Any) -> tuple[Matrix, Matrix]:
    """Two matrices of one size."""
    A, W = as_matrix(A, "A"), as_matrix(W, "W")
    if A.shape != W.shape:
        raise ValueError(f"A has shape {A.shape} and W has shape {W.shape}; both must be (N, N) with the same N")
    return A, W


def as_slopes(nonlinearity: Any) -> tuple[float, float]:
    """The slope range of a nonlinearity: its name, an object with ``slope_range``, or the range itself."""
    if isinstance(nonlinearity, str):
        return get_nonlinearity(nonlinearity).slope_range
    if isinstance(nonlinearity, Nonlinearity):
        return nonlinearity.slope_range
    if isinstance(nonlinearity, tuple | list) and len(nonlinearity) == 2:
        low, high = (as_float("slopes", slope) for slope in nonlinearity)
        if low > high:
            raise ValueError(f"slopes are {nonlinearity}; give finite numbers (smallest, largest)")
        return low, high
    raise ValueError(
        f"nothing is known about the slopes of {nonlinearity!r}; give a name (tanh, relu, sigmoid, identity) or the "
        "range (smallest, largest) of its slopes"
    )


def as_float(name: str, value: Any) -> float:
    """A finite number that is not too large to compute with."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if isinstance(value, str | bytes | bool) or not abs(number) <= 1e100:
        raise ValueError(f"{name} is {value!r}; give a finite number")
    return number


def as_step_range(step_size: Any) -> tuple[float, float]:
    """(shortest, longest), with 0 ≤ shortest ≤ longest and 0 < longest."""
    pair = step_size if isinstance(step_size, tuple | list) else (step_size, step_size)
    if len(pair) == 2:
        shortest, longest = (as_float("step_size", step) for step in pair)
        if 0 <= shortest <= longest and longest > 0:
            return shortest, longest
    raise ValueError(
        f"step_size is {step_size}; give a positive step, or a pair (shortest, longest) with 0 ≤ shortest ≤ longest"
    )


def split_steps(spans: tuple[float, float], max_step: float | None) -> tuple[float, float]:
    """The steps that are taken for spans in a range, if longer ones are split into equal steps of at most max_step.

    n = ⌈d/m⌉ ≥ 2 steps of length d/n are longer than m(n − 1)/n ≥ m/2. The scan lets a step exceed m by 10⁻⁶ of it, so
    that rounding of a span does not cost a step.
    """
    shortest, longest = spans
    if max_step is None or longest <= max_step:
        return spans
    if shortest == longest:
        fewest, most = count_steps(spans, max_step)
        return longest / most, longest / fewest
    return min(shortest, 0.5 * max_step), min(longest, max_step * (1 + 2e-6))


def count_steps(spans: tuple[float, float], max_step: float | None) -> tuple[int, int]:
    """The fewest and most steps that :func:`split_steps` makes of a span; a little wider for a range.

    A layer in float32 counts after it has rounded the span, by 6·10⁻⁸ of it. Where that makes a difference both counts
    are covered.
    """
    shortest, longest = spans
    if max_step is None or longest <= max_step:
        return 1, 1
    slack = 1e-5 if shortest < longest else 1e-7
    return substeps_of(shortest * (1 - slack), max_step), substeps_of(longest * (1 + slack), max_step)


def subjects(target: Any, precision: str | None = None, **overrides: Any) -> list[Subject]:
    """All maps in ``target``: a pair (A, W), a module that states its recurrence or holds such modules, or a file.

    ``overrides`` (alpha, nonlinearity, integrator, step_size, continuous) replace what a module says; None keeps it.
    """
    if isinstance(target, tuple | list) and len(target) == 2:
        return [_of_pair(target[0], target[1], "", precision, overrides)]
    if isinstance(target, nn.Module):
        stated = list(statements(target))
        found = [_of_statement(item, precision, overrides) for _, item in stated]
        require_held(target, {prefix: item.precision.name for (prefix, _), item in zip(stated, found, strict=True)})
        names = [" ".join(filter(None, (prefix, item.name))) for prefix, item in stated]
        return [replace(item, name=name) for item, name in zip(found, names, strict=True)]
    if isinstance(target, str | Path):
        return [_of_pair(A, W, name, precision, overrides) for name, A, W in pairs_in_file(Path(target))]
    raise TypeError(
        f"cannot certify a {type(target).__name__}; give a pair (A, W), a module, or the path of a file with A and W"
        f"{'; of an estimator, one of its models_' if hasattr(target, 'models_') else ''}"
    )


def _within_limits(A: Any, W: Any) -> tuple[Matrix, Matrix]:
    arrays = [matrix for matrix in (A, W) if isinstance(matrix, torch.Tensor | np.ndarray)]
    rows = max((array.shape[0] for array in arrays if array.ndim > 0), default=0)
    if rows > LARGEST:
        raise ValueError(f"the matrices have {rows} rows; certificates are searched for up to {LARGEST}")
    return as_pair(A, W)


def _of_statement(stated: Statement, precision: str | None, overrides: dict[str, Any]) -> Subject:
    name = _precision_of(stated, precision)
    if isinstance(stated, FeedbackMap):
        return _of_map(stated, as_precision(name), overrides)
    matrices = _within_limits(stated.A, stated.W)
    settings = {
        "alpha": stated.alpha,
        "nonlinearity": stated.nonlinearity,
        "integrator": stated.integrator,
        "step_size": stated.step_range,
    } | {key: value for key, value in overrides.items() if value is not None}
    subject = replace(_subject(*matrices, as_precision(name), settings, stated.max_step), reverse=bool(stated.reverse))
    if stated.hint is None:
        return subject
    P, multiplier = (diagonal.detach().cpu().double().numpy() for diagonal in stated.hint)
    return replace(subject, hint=(P, multiplier))


def _precision_of(stated: Statement, precision: str | None) -> str:
    if precision is None:
        held = stated.C if isinstance(stated, FeedbackMap) else stated.A
        return in_force(held) if stated.precision is None else stated.precision
    fixed, asked = stated.precision, as_precision(precision).name
    return asked if fixed is None or asked in ("exact", fixed) else fixed


def _of_map(stated: FeedbackMap, precision: Precision, overrides: dict[str, Any]) -> Subject:
    asked = [key for key, value in overrides.items() if value is not None and key != "nonlinearity"]
    if asked:
        raise ValueError(
            f"{asked[0]} is {overrides[asked[0]]!r}, but this recurrence is a map of its own, which has neither a step "
            f"nor an integrator to choose; leave {asked[0]} out"
        )
    nonlinearity = overrides.get("nonlinearity") or stated.nonlinearity
    name = nonlinearity if isinstance(nonlinearity, str) else getattr(nonlinearity, "name", None)
    if max(stated.F.shape[0], stated.C.shape[0]) > LARGEST:
        raise ValueError(f"the map has {stated.F.shape[0]} units; certificates are searched for up to {LARGEST}")
    hint = None
    if stated.hint is not None:
        P, multiplier = (part.detach().cpu().double().numpy() for part in stated.hint)
        hint = (0.5 * (P + P.T), multiplier)
    return Subject(
        np.zeros((0, 0)),
        np.zeros((0, 0)),
        slopes=as_slopes(nonlinearity),
        integrator="map",
        step_range=(1.0, 1.0),
        hint=hint,
        nonlinearity=name,
        precision=precision,
        reverse=bool(stated.reverse),
        feedback=Feedback.of(stated),
    )


def _of_pair(A: Any, W: Any, name: str, precision: str | None, overrides: dict[str, Any]) -> Subject:
    matrices = _within_limits(A, W)
    settings = {key: value for key, value in overrides.items() if value is not None}
    return replace(_subject(*matrices, as_precision(precision or "exact"), settings), name=name)


def _subject(
    A: Matrix, W: Matrix, precision: Precision, settings: dict[str, Any], max_step: float | None = None
) -> Subject:
    alpha = as_float("alpha", settings.get("alpha", 1.0))
    nonlinearity = settings.get("nonlinearity", "tanh")
    slopes = as_slopes(nonlinearity)
    name = nonlinearity if isinstance(nonlinearity, str) else getattr(nonlinearity, "name", None)
    integrator = settings.get("integrator", "euler")
    if not isinstance(integrator, str):
        raise ValueError(f"integrator is {integrator!r}; give a name: euler, midpoint, heun or rk4")
    integrator = get_integrator(integrator).name
    step_size, continuous = settings.get("step_size"), settings.get("continuous")
    if continuous is False and step_size is None:
        raise ValueError("continuous=False asks for the map that runs; give its step_size")
    discrete = step_size is not None and not continuous
    spans = as_step_range(step_size) if discrete else None
    steps = None if spans is None else split_steps(spans, max_step)
    counts = (1, 1) if spans is None else count_steps(spans, max_step)
    A, W = rounded(A, precision), rounded(W, precision)
    subject = Subject(A, W, alpha, slopes, integrator, steps, nonlinearity=name, precision=precision, substeps=counts)
    largest = max(float(np.max(np.abs(ball.mid))) for ball in subject.held)
    if not largest <= 1e100:
        raise ValueError(
            f"the largest entry of alpha·A and W is {largest:.3g}; nothing can be proved about such numbers"
        )
    return subject
