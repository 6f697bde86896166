"""Long steps are divided: a step longer than ``max_step`` becomes equal sub-steps with the input held.

Every sample has its own time axis, so that its result does not depend on the batch. Sub-steps are ordinary steps to
every backend; after the last one of a sample come steps of length zero, which change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import compute_dtype
from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.common.validation import seen_values
from lipschitz_rnn.ops.lipschitz.problem import Problem

Runner = Callable[[Problem, Tensor | None], tuple[Tensor | None, Tensor]]

TOLERANCE = 1e-6  # so that a span of 3 · max_step takes three sub-steps even after rounding to float32
LARGEST = 1_000_000  # sub-steps of one sequence; more means that the unit of time is wrong


def substeps_of(span: float, max_step: float) -> int:
    """How many sub-steps a span takes; they exceed max_step at most by rounding."""
    if span / max_step > LARGEST:
        raise _too_many(span, max_step)
    return max(1, math.ceil(span / max_step * (1.0 - TOLERANCE)))


def count_substeps(spans: Tensor, max_step: float, most: int = LARGEST + 1) -> Tensor:
    """The same for a tensor, in int64, at most ``most`` for each; one for NaN, which then shows in the state."""
    limit: float | Tensor = max_step / (1.0 - TOLERANCE)
    if exporting():  # the ONNX exporter rounds numbers, but not tensors, to float32: a step of max_step would be split
        limit = torch.tensor(limit, dtype=torch.float64, device=spans.device)
    counts = torch.ceil(spans.detach().double() / limit).clamp(1, most)
    return torch.where(counts > 0, counts, 1.0).long()


def repeat_steps(problem: Problem, max_step: float) -> tuple[Problem, int]:
    """Steps of one size: each becomes the same number of sub-steps, known without looking at a tensor."""
    count = substeps_of(problem.scheme.step_size, max_step)
    if count == 1:
        return problem, 1
    *networks, T, B, features = problem.drive.shape
    drive = problem.drive.unsqueeze(-3).expand(*networks, T, count, B, features).flatten(-4, -3)
    scheme = replace(problem.scheme, step_size=problem.scheme.step_size / count)
    return replace(problem, drive=drive, scheme=scheme), count


def run_substeps(
    problem: Problem, max_step: float, run: Runner, backend: str, all_states: bool
) -> tuple[Tensor | None, Tensor]:
    """The scan of a problem with timespans, longer ones divided.

    Args:
        run: the scan of a problem whose steps are taken as they are; it is also told where the sub-steps of each step
            end, as in ``Split``, or None.
    """
    spans = problem.timespans
    assert spans is not None
    if exporting():
        return _run_exported(problem, max_step)
    if torch.compiler.is_compiling():
        from lipschitz_rnn.ops.lipschitz.substeps_compiled import run_compiled

        return run_compiled(problem, max_step, backend, all_states)
    split = Split.of(problem, max_step)
    if split is None:
        return run(problem, None)
    states, last = run(split.problem, split.ends)
    return (None if states is None else split.join(states)), last


@dataclass(frozen=True)
class Split:
    """A problem with T′ sub-steps in the place of T steps, and where each step ends among them.

    Attributes:
        ends: (…, T, B), the number of a sample's sub-steps up to the end of each step.
    """

    problem: Problem
    ends: Tensor

    @classmethod
    def of(cls, problem: Problem, max_step: float) -> Split | None:
        """None where no step is longer than max_step."""
        spans = problem.timespans
        assert spans is not None
        T, B = spans.shape[-2:]
        counts = count_substeps(spans, max_step)
        ends = counts.cumsum(-2)
        total = _largest(ends[..., -1, :]) if B > 0 else T
        if total is None or total == T:
            return None
        if total > LARGEST:
            raise _too_many(_largest_value(spans), max_step)
        # Sub-step j belongs to the step whose number is that of the ends up to j.
        marks = ends.new_zeros((*ends.shape[:-2], total + 1, B)).scatter_add(-2, ends, torch.ones_like(ends))
        step = marks[..., :-1, :].cumsum(-2).clamp(max=T - 1)
        inside = torch.arange(total, device=ends.device).unsqueeze(-1) < ends[..., -1:, :]
        rows = _rows(step, T)
        drive = problem.drive.flatten(0, -2)[rows]
        lengths = (spans / counts).flatten()[rows].masked_fill(~inside, 0.0)
        return cls(replace(problem, drive=drive, timespans=lengths), ends)

    def join(self, states: Tensor) -> Tensor:
        """States after each sub-step, (…, T′, B, N), to those after each step."""
        return states.flatten(0, -2)[_rows(self.ends - 1, states.shape[-3])]


def _rows(step: Tensor, steps: int) -> Tensor:
    """Where step (…, K, B) of every sample lies once networks, steps and samples are one axis."""
    B = step.shape[-1]
    rows = step * B + torch.arange(B, device=step.device)
    if step.dim() == 3:
        rows = rows + (steps * B) * torch.arange(len(step), device=step.device)[:, None, None]
    return rows


def _run_exported(problem: Problem, max_step: float) -> tuple[Tensor, Tensor]:
    from lipschitz_rnn.ops.lipschitz import portable

    dtype = problem.A.dtype
    wide = problem.to(compute_dtype(dtype, problem.A.device)).lifted()
    assert wide.timespans is not None
    # An exported program cannot raise: it takes as many sub-steps as it needs.
    states, last = portable.scan(wide, count_substeps(wide.timespans, max_step, most=2**53))
    if problem.single:
        states, last = states.squeeze(0), last.squeeze(0)
    return states.to(dtype), last.to(dtype)


def _largest(counts: Tensor) -> int | None:
    """The largest number, over all that a function transform runs at once; None where there are only shapes."""
    if counts.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "timespans are to be divided by max_step while a CUDA graph is captured; how many sub-steps there are "
            "depends on their values, which a graph cannot wait for. Capture without timespans or without max_step"
        )
    values = seen_values(counts)
    return None if values is None else int(values.max())


def _largest_value(spans: Tensor) -> float:
    values = seen_values(spans)
    return float("nan") if values is None else float(values.max())


def _too_many(span: float, max_step: float) -> ValueError:
    return ValueError(
        f"the longest step is {span:g} and max_step is {max_step:g}, which makes more than {LARGEST:,} sub-steps of "
        "one sequence; use a larger max_step, or another unit of time"
    )
