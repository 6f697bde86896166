"""The states of all chunks: passes until what a warm-up left of the error is proved to be small."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import rounds_float32
from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, as_tape, new_memory, together
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate
from lipschitz_rnn.ops.lipschitz.problem import Problem

AUDITED_STEPS = 16


class ContradictedFactorError(RuntimeError):
    """Two states of the data at hand did not approach each other as fast as the contraction says."""


class Solution(NamedTuple):
    """States of all chunks, and what is known of their error.

    Attributes:
        memory: the states of all chunks, as ``new_memory`` lays them out.
        kept: (pieces, S, B·K, N), states before each piece, for the backward pass.
        ends: (S, K, B, N).
        errors: (S, K, B) in float64: bounds on the error of each chunk's first state in the metric; where nothing is
            proved, the mismatches.
        fading: (S, K, B): by what each chunk multiplies an error at most.
        relative: the largest error, relative to the largest state of its sample.
        passes: how often the chunks were run; 0 if they were run one after another.
    """

    memory: Tensor
    kept: Tensor
    ends: Tensor
    errors: Tensor
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
) -> Solution:
    """Run the chunks until the bound is below ``tolerance``; one after another if ``passes`` do not reach it.

    Args:
        active: (S, B), the steps of each sample that count; None for all.
    """
    fading = chunk_factors(chunks, norms) if proved else torch.zeros_like(chunk_factors(chunks, norms))
    counted = None if active is None else counted_chunks(active, chunks.plan.chunks, chunks.plan.steps)
    memory = new_memory(chunks, keep, save)
    tape = as_tape(memory, chunks)
    starts = chunks.warm_up()
    contradicted = audit(chunks, norms, starts) if proved else None
    if contradicted is not None and not fixed and has_values(contradicted) and bool(contradicted):
        raise contradiction(norms)
    ends, kept, errors, relative = starts, starts, fading, fading
    for count in range(1, passes + 1):
        ends, kept = chunks.run(starts, tape, keep, save)
        errors = accumulate(previous(fading), mismatches(starts, ends, norms, counted))
        relative = largest_relative(errors, norms.size(ends).amax(1))
        if count == passes and fixed:
            break
        if not fixed and bool(relative <= tolerance):  # NaN is not
            return Solution(memory, kept, ends, errors, fading, relative, count)
        starts = torch.cat((starts[:, :1], ends[:, :-1]), dim=1)
    if fixed:
        if contradicted is not None:
            relative = torch.where(contradicted, torch.inf, relative)
        return Solution(memory, kept, ends, errors, fading, relative, passes)
    _, ends, kept = chunks.run_in_turn(tape, keep, save)
    return Solution(memory, kept, ends, torch.zeros_like(errors), fading, torch.zeros_like(relative), 0)


def mismatches(starts: Tensor, ends: Tensor, norms: Norms, counted: Tensor | None) -> Tensor:
    """‖first state of a chunk − end of the one before‖_P, (S, K, B); zero for the first chunk and beyond the end."""
    jumps = norms.size(starts[:, 1:].double() - ends[:, :-1].double())
    jumps = torch.cat((torch.zeros_like(jumps.sum(1, keepdim=True)), jumps), dim=1)
    return jumps if counted is None else jumps.masked_fill(~counted, 0.0)


def chunk_factors(chunks: Chunks, norms: Norms) -> Tensor:
    """The product of the factors of each chunk's steps, (S, K, B), rounded up."""
    problem, K = chunks.cut, chunks.plan.chunks
    S, C, rows, _ = problem.shape
    if problem.timespans is None:
        step = norms.factor.new_tensor(problem.scheme.step_size).expand(S, 1, 1)
        fading = norms.step_factors(step) ** C
        fading = fading.expand(S, K, rows // K)
    else:
        logs = norms.step_factors(problem.timespans).log().sum(1).exp()
        fading = logs.unflatten(1, (rows // K, K)).transpose(1, 2)
    return (fading * (1.0 + 1e-12 * C)).clamp(max=1.0)


def previous(fading: Tensor) -> Tensor:
    """The factor that acts between the first states of chunks k − 1 and k, at k."""
    return torch.cat((torch.ones_like(fading[:, :1]), fading[:, :-1]), dim=1)


def counted_chunks(active: Tensor, chunks: int, steps: int) -> Tensor:
    """Which chunks have a step that counts, (S, K, B)."""
    first = torch.arange(chunks, device=active.device) * steps
    return first[None, :, None] < active.unsqueeze(1)


def largest_relative(errors: Tensor, sizes: Tensor) -> Tensor:
    """max over samples of error/size from (S, K, B) and (S, B); 0/0 counts as 0."""
    worst = errors.amax(1) if errors.shape[1] else torch.zeros_like(sizes)
    ratio = torch.where(worst == 0.0, 0.0, worst / sizes)
    return ratio.amax() if ratio.numel() else ratio.new_zeros(())


def audit(chunks: Chunks, norms: Norms, starts: Tensor) -> Tensor | None:
    """Whether the factor is too small for the data: a tensor (), or None where there is nothing to compare.

    At the first steps of every warm-up two states are run beside each other, zero and the first state of the chunk.
    Their distance must shrink by ρ_t in each step, up to a bound on the rounding of both.
    """
    if chunks.plan.chunks < 2 or chunks.plan.warm_up == 0:
        return None
    other = together(starts[:, 1:])
    problem = chunks.before_chunks(0, min(AUDITED_STEPS, chunks.plan.warm_up), None)
    zero = torch.zeros_like(other)
    runs = ((start, chunks.states_of(replace(problem, h0=start))) for start in (zero, other))
    paths = [torch.cat((start.unsqueeze(1), states), dim=1) for start, states in runs]
    apart_by = norms.size(paths[1].double() - paths[0].double())
    sizes = torch.maximum(*(norms.size(path) for path in paths))
    spans = problem.timespans
    steps = torch.full_like(apart_by[:, 1:], problem.scheme.step_size) if spans is None else spans
    factors = norms.step_factors(steps)
    rounding = 2.0 * step_rounding(problem, norms) * (sizes[:, :-1] + sizes[:, 1:]) + _drive_rounding(problem, norms)
    return (apart_by[:, 1:] > factors * apart_by[:, :-1] + rounding).any()


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
    gain = norms.longest * norms.operator_norm(held)
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
