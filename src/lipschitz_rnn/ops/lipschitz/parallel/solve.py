"""The states of all chunks: passes until what a warm-up left of the error is proved to be small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import rounds_float32
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, Path, apart, together
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate
from lipschitz_rnn.ops.lipschitz.parallel.line import Line
from lipschitz_rnn.ops.lipschitz.parallel.plan import allowed
from lipschitz_rnn.ops.lipschitz.problem import Problem

AUDITED_STEPS = 16


class ContradictedFactorError(RuntimeError):
    """Two states of the data at hand did not approach each other as fast as the contraction says."""


class Solution(NamedTuple):
    """States of all chunks, and what is known of their error.

    Every chunk begins where the one before ended, and joins the states of an earlier pass after ``joined_at`` steps.

    Attributes:
        ends: (S, K, B, N).
        errors: (S, K, B) in float64: bounds on the error of each chunk's first state in the metric; zero where nothing
            is proved.
        jumps: (S, K, B), how far apart the states are where they join.
        joined_at: the step of that; the length of a chunk if there is no such place.
        fading: (S, K, B): by what each chunk multiplies an error at most.
        relative: the largest error, relative to the largest state of its sample.
        passes: how often the chunks were run; 0 if they were run one after another.
    """

    path: Path
    ends: Tensor
    errors: Tensor
    jumps: Tensor
    joined_at: int
    fading: Tensor
    relative: Tensor
    passes: int


def solve(
    chunks: Chunks,
    norms: Norms,
    proved: bool,
    tolerance: float,
    passes: int,
    fixed: bool,
    active: Tensor | None,
    keep: bool,
    save: bool,
    line: Line,
) -> Solution:
    """Run all chunks from zero, then again from the ends found, until they join what is there already.

    The first pass is a guess everywhere but in the first chunk. The second one begins each chunk where the one before
    ended; under the same input its states approach those of the first pass, so that it can stop after a while. This is
    the warm-up, with a length that the data decides. If the states are still apart at the end, there is a third pass.

    Args:
        passes: after so many the chunks are run one after another, unless ``fixed``.
        active: (S, B), the steps of each sample that count; None for all.
    """
    C, K = chunks.plan.steps, chunks.plan.chunks
    fading = between(chunks, norms, 0, C) if proved else torch.zeros_like(between(chunks, norms, 0, C))
    counted = None if active is None else counted_chunks(active, K, C)
    path = Path.new(chunks, keep, save)
    own = chunks.problem.initial_state().unsqueeze(1)
    first = own if line.rank == 0 else torch.zeros_like(own)
    starts = torch.cat((first, torch.zeros_like(own).expand(-1, K - 1, -1, -1)), dim=1)
    ends = chunks.run(starts, path)
    guessed = line.after(own, ends)
    contradicted = audit(chunks, norms, starts, guessed).double() if proved else fading.new_zeros(())
    first_gaps, expected = gaps(starts, guessed, norms, counted), 0.0
    for count in range(2, passes + 1):
        begin, starts = 0, line.after(own, ends)
        state = together(starts)
        for stop in chunks.plan.stops_of_pass(chunks.every, fixed, count == passes, expected > tolerance):
            before = path.before(stop, chunks).clone()
            state = chunks.advance(state, begin, stop, path)
            jumps = gaps(apart(before, K), apart(state, K), norms, counted)
            begin = stop
            sizes = norms.size(ends).amax(1)
            if not fixed:
                jump, refuted = on_host(line, largest_relative(jumps, sizes), contradicted)
                if refuted:
                    raise contradiction(norms)
                if stop < C and not jump <= tolerance:
                    continue  # without the rest, which would only be larger
            if stop == C:
                path.ends, ends = state, apart(state, K)
                sizes = norms.size(ends).amax(1)
                errors = _accumulated(line, fading, jumps, fixed)
                jumps = torch.zeros_like(jumps)
            else:
                later = between(chunks, norms, stop, C) if proved else fading
                errors = _accumulated(line, fading, later * jumps, fixed)
            relative = line.largest(largest_relative(errors + jumps, sizes))
            if not fixed and bool(relative <= tolerance):  # NaN is not
                return Solution(path, ends, errors, jumps, stop, fading, relative, count)
        if fixed and count == passes:
            relative = torch.where(line.largest(contradicted) > 0, torch.inf, relative)
            return Solution(path, ends, errors, jumps, begin, fading, relative, count)
        last_gaps = gaps(starts, line.after(own, ends), norms, counted)
        if not fixed:
            shrinks = outlook(line, first_gaps, last_gaps, relative, tolerance, passes - count)
            if shrinks is None:
                break
            expected = jump * shrinks
        first_gaps = last_gaps
    if _only_rounding(line, fading, relative, tolerance, chunks.cut.A.dtype):
        return Solution(path, ends, errors, jumps, C, fading, relative, count)
    ends = _run_in_turn(chunks, path, line)
    path.ends = together(ends)
    zero = torch.zeros_like(fading)
    return Solution(path, ends, zero, zero, C, fading, zero.new_zeros(()), 0)


def on_host(line: Line, *values: Tensor) -> list[float]:
    """The largest of each number among all processes. This waits for the device, so it is asked for several at once."""
    return line.largest(torch.stack(values)).tolist()


def _accumulated(line: Line, fading: Tensor, handed: Tensor, fixed: bool) -> Tensor:
    """The error of each chunk's first state, from what every chunk hands to the next one, (S, K, B)."""
    factors, terms = on_quickest(fixed, line.whole(fading), line.whole(handed))
    zero, one = torch.zeros_like(terms[:, :1]), torch.ones_like(factors[:, :1])
    moved = torch.cat((one, factors[:, :-1]), dim=1), torch.cat((zero, terms[:, :-1]), dim=1)
    return line.own(accumulate(*moved)).to(handed.device)


def on_quickest(fixed: bool, *values: Tensor) -> Iterable[Tensor]:
    """A few numbers of each chunk, on the host unless nothing may wait: many small operations take longest on a GPU."""
    return values if fixed or not values[0].is_cuda else torch.stack(values).cpu()


def _only_rounding(line: Line, fading: Tensor, relative: Tensor, tolerance: float, dtype: torch.dtype) -> bool:
    """Whether the error exceeds the tolerance by no more than rounding at every border adds to it.

    Two rounded trajectories stay apart by some units however long they run. In the tolerance these count once; in the
    bound each border has them, and they add up where a chunk shrinks an error by little.
    """
    borders = _accumulated(line, fading, torch.ones_like(fading), False).amax()
    found, most = on_host(line, relative, borders.to(relative))
    return found <= tolerance + allowed(0.0, dtype) * max(0.0, most - 1.0)


def _run_in_turn(chunks: Chunks, path: Path, line: Line) -> Tensor:
    """The sequential scan: one chunk after another, one process after another."""
    state = chunks.problem.initial_state()
    ends = state.unsqueeze(1).expand(-1, chunks.plan.chunks, -1, -1)
    for rank in range(line.size):
        if rank == line.rank:
            ends = chunks.run_in_turn(path, state)
        state = line.gathered(ends[:, -1])[rank]
    return ends


def outlook(line: Line, before: Tensor, after: Tensor, relative: Tensor, tolerance: float, passes: int) -> float | None:
    """By what a pass shrinks the gaps (S, K, B), or None if so many further ones would not do at that rate."""
    worst, now, left = on_host(line, before.amax(), after.amax(), relative.to(before))
    return now / worst if now < worst and left * (now / worst) ** passes <= tolerance else None


def gaps(one: Tensor, other: Tensor, norms: Norms, counted: Tensor | None) -> Tensor:
    """‖a − b‖_P of states of all chunks, (S, K, B); zero beyond a sample's end."""
    apart_by = norms.size(one.double() - other.double())
    return apart_by if counted is None else apart_by.masked_fill(~counted, 0.0)


def between(chunks: Chunks, norms: Norms, first: int, stop: int) -> Tensor:
    """The product of the factors of some steps of each chunk, (S, K, B), rounded up."""
    problem, K = chunks.cut, chunks.plan.chunks
    S, _, rows, _ = problem.shape
    if problem.timespans is None:
        step = torch.full_like(norms.factor, problem.scheme.step_size)
        product = (norms.step_factors(step) ** (stop - first)).expand(S, K, rows // K)
    else:
        product = norms.step_factors(problem.timespans[:, first:stop]).log().sum(1).exp()
        product = product.unflatten(1, (rows // K, K)).transpose(1, 2)
    return (product * (1.0 + 1e-12 * (stop - first))).clamp(max=1.0)


def counted_chunks(active: Tensor, chunks: int, steps: int) -> Tensor:
    """Which chunks have a step that counts, (S, K, B)."""
    first = torch.arange(chunks, device=active.device) * steps
    return first[None, :, None] < active.unsqueeze(1)


def largest_relative(errors: Tensor, sizes: Tensor) -> Tensor:
    """max over samples of error/size from (S, K, B) and (S, B); 0/0 counts as 0."""
    worst = errors.amax(1) if errors.shape[1] else torch.zeros_like(sizes)
    ratio = torch.where(worst == 0.0, 0.0, worst / sizes)
    return ratio.amax() if ratio.numel() else ratio.new_zeros(())


def audit(chunks: Chunks, norms: Norms, starts: Tensor, others: Tensor) -> Tensor:
    """Whether the factor is too small for the data, a tensor ().

    In the first steps of every chunk two states are run beside each other, those of the first and the second pass.
    Their distance must shrink by ρ_t in each step, up to a bound on the rounding of both.
    """
    runs = [together(starts), together(others)]
    problem = chunks.steps(0, min(AUDITED_STEPS, chunks.plan.steps), None)
    found = ((start, chunks.states_of(replace(problem, h0=start))) for start in runs)
    paths = [torch.cat((start.unsqueeze(1), states), dim=1) for start, states in found]
    distances = norms.size(paths[1].double() - paths[0].double())
    sizes = torch.maximum(*(norms.size(path) for path in paths))
    spans = problem.timespans
    steps = torch.full_like(distances[:, 1:], problem.scheme.step_size) if spans is None else spans
    rounding = 2.0 * step_rounding(problem, norms) * (sizes[:, :-1] + sizes[:, 1:]) + _drive_rounding(problem, norms)
    return (distances[:, 1:] > norms.step_factors(steps) * distances[:, :-1] + rounding).any()


def contradiction(norms: Norms) -> ContradictedFactorError:
    return ContradictedFactorError(
        f"the contraction factor {float(norms.factor.max()):.9g} is contradicted by this data: two states under the "
        "same input approached each other more slowly. The certificate belongs to other matrices, another step or "
        "another precision; certify the network as it runs, or use parallel=None"
    )


def step_rounding(problem: Problem, norms: Norms) -> Tensor:
    """A bound on the rounding of one step, relative to ‖h‖_P before and after it: (S, 1, 1)."""
    scheme, sigma = problem.scheme, problem.scheme.sigma
    held = (scheme.alpha * problem.A.detach().double()).abs() + sigma.lipschitz * problem.W.detach().double().abs()
    gain = norms.longest * norms.operator_norm(held, rough=True)
    terms = 2 * problem.A.shape[-1] + 16
    growth = (1.0 + gain) ** len(scheme.tableau)
    return (terms * len(scheme.tableau) * _unit(problem) * (1.0 + gain) * growth).reshape(-1, 1, 1)


def _drive_rounding(problem: Problem, norms: Norms) -> Tensor:
    """What the rounding of U x + b and of σ adds, in the metric: (S, T, rows)."""
    terms = 2 * (problem.A.shape[-1] + problem.drive.shape[-1]) + 16
    ones = norms.size(torch.ones_like(problem.A[:, :1]))[..., None]
    x = problem.drive.detach().double().abs()
    if problem.input_weight is None:
        largest = norms.size(x)
    else:
        U = problem.input_weight.detach().double().abs()
        b = 0.0 if problem.bias is None else problem.bias.detach().double().abs()[:, None, None]
        largest = norms.size(x @ U.mT.unsqueeze(1) + b)
    return 4.0 * terms * len(problem.scheme.tableau) * _unit(problem) * norms.longest * (largest + ones)


def _unit(problem: Problem) -> float:
    """The relative rounding error of a product as the backend takes it."""
    if problem.A.dtype == torch.float32 and not problem.scheme.exact_products and rounds_float32(problem.A.device):
        return float(torch.finfo(torch.bfloat16).eps)
    return float(torch.finfo(problem.A.dtype).eps)
