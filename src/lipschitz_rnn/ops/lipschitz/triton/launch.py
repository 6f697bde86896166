"""The forward and the backward scan: the arguments of a kernel, and its launch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.triton.device import multiprocessors
from lipschitz_rnn.ops.common.triton.launching import Launch, beyond_32_bits, divide_up, launch, on_device
from lipschitz_rnn.ops.common.triton.support import interpreting
from lipschitz_rnn.ops.lipschitz.cuda import launch as cuda
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan
from lipschitz_rnn.ops.lipschitz.cuda.plan import make_plan as make_cuda_plan
from lipschitz_rnn.ops.lipschitz.integrators import Tableau
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.ops.lipschitz.triton import cooperative, resident
from lipschitz_rnn.ops.lipschitz.triton.inputs import expanded_drive
from lipschitz_rnn.ops.lipschitz.triton.operands import left_operand
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan, make_plan


def scan_forward(problem: Problem, tape: Tensor, precision: str, keep_states: bool, save: bool) -> Tensor:
    """Runs all steps, fills the tape and returns the last state, (S, B, N)."""
    cuda_plan = make_cuda_plan(problem, precision)
    if isinstance(cuda_plan, CudaPlan):
        weights = left_operand(problem.A, problem.W, problem.scheme.alpha, cuda_plan, transpose=False)
        fused = has_fused_input(problem)
        return cuda.scan_forward(problem, cuda_plan, weights, tape, keep_states, save, fused)
    S, T, B, N = problem.shape
    like, plan = problem.A, make_plan(problem, precision)
    last = like.new_empty((S, B, N))
    fused = has_fused_input(problem)
    drive = problem.drive if fused else expanded_drive(problem)
    start = None if problem.h0 is None else problem.h0.contiguous()
    U = problem.input_weight.contiguous() if fused and problem.input_weight is not None else None
    bias = problem.bias.contiguous() if fused and problem.bias is not None else None
    spans, span_strides = _spans(problem)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, plan, transpose=False)
    # Any tensor may stand where none is read.
    given = [like if tensor is None else tensor for tensor in (start, U, bias, _noise(problem))]
    tensors = (drive, weights, *given, spans, tape, last)
    strides = (*drive.stride(), *span_strides)
    has_spans = problem.timespans is not None
    wide = is_wide((B, N), len(problem.scheme.tableau), strides)
    has = (fused, bias is not None, has_spans, problem.noise is not None, keep_states, save, wide)
    if plan.resident:
        kind = (like.dtype, problem.drive.dtype, spans.dtype, like.device)
        run = resident_forward((S, T, B, N), plan, problem.scheme, has, start is not None, strides, kind)
        with on_device(like):
            run(*tensors)
        return last
    constants = _constants(problem.scheme, precision, has)
    numbers = (T, B, N, problem.scheme.step_size, 0 if start is None else B)
    exchange = torch.empty((S, 2, B, N), dtype=weights.dtype if plan.on_chip else torch.float32, device=like.device)
    constants, options = constants + plan.shared_blocks, _cooperative_options(plan)
    for grid, counters, place in _cooperative_launches(problem, plan):
        shared = (*tensors, exchange, counters)
        launch(cooperative.forward_kernel, grid, shared, numbers + place + strides, constants, **options)
    return last


def scan_backward(
    problem: Problem, tape: Tensor, precision: str, grad_states: Tensor | None, grad_last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """κ and d of every stage, (S, T, stages, B, 2N); ∂h0, (S, B, N); partial sums of ∂U and ∂b, or None.

    The partial sums are (S, tiles of the batch, 2, N), in float32; they exist for inputs of one feature.
    """
    cuda_plan = make_cuda_plan(problem, precision)
    if isinstance(cuda_plan, CudaPlan):
        weights = left_operand(problem.A, problem.W, problem.scheme.alpha, cuda_plan, transpose=True)
        feature = problem.drive[..., 0] if has_fused_input(problem) else None
        return cuda.scan_backward(problem, cuda_plan, weights, tape, grad_states, grad_last, feature)
    S, T, B, N = problem.shape
    like, plan = problem.A, make_plan(problem, precision)
    kappa_d = like.new_empty((S, T, len(problem.scheme.tableau), B, 2 * N))
    grad_h0 = like.new_empty((S, B, N))
    spans, span_strides = _spans(problem)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, plan, transpose=True)
    final = None if grad_last is None else grad_last.contiguous()
    x = problem.drive[..., 0] if has_fused_input(problem) else None
    sums = torch.empty((S, divide_up(B, plan.batch), 2, N), device=like.device) if x is not None else None
    given = [like if tensor is None else tensor for tensor in (grad_states, final, x, _noise(problem))]
    tensors = (weights, spans, tape, *given, kappa_d, grad_h0, like if sums is None else sums)
    grad_strides = (0, 0, 0, 0) if grad_states is None else grad_states.stride()
    strides = (*grad_strides, *span_strides, *((0, 0, 0) if x is None else x.stride()))
    has_spans = problem.timespans is not None
    wide = is_wide((B, N), len(problem.scheme.tableau), strides)
    has = (grad_states is not None, final is not None, has_spans, x is not None, problem.noise is not None, wide)
    if plan.resident:
        kind = (like.dtype, None if grad_states is None else grad_states.dtype, spans.dtype, like.device)
        run = resident_backward((S, T, B, N), plan, problem.scheme, has, strides, kind)
        with on_device(like):
            run(*tensors)
        return kappa_d, grad_h0, sums
    constants = _constants(problem.scheme, precision, has)
    numbers = (T, B, N, problem.scheme.step_size)
    constants, options = constants + plan.shared_blocks, _cooperative_options(plan)
    for grid, counters, place in _cooperative_launches(problem, plan):
        shared = (*tensors, counters)
        launch(cooperative.backward_kernel, grid, shared, numbers + place + strides, constants, **options)
    return kappa_d, grad_h0, sums


@lru_cache(maxsize=1024)
def resident_forward(
    shape: tuple[int, int, int, int],
    plan: LaunchPlan,
    scheme: Scheme,
    has: tuple[bool, ...],
    starts: bool,
    strides: tuple[int, ...],
    kind: tuple[Any, ...],
) -> Launch:
    """The launch of the forward kernel for (S, T, B, N).

    Args:
        has: FUSED_INPUT, HAS_BIAS, HAS_SPANS, NOISE, KEEP, SAVE and WIDE of the kernel.
        starts: whether there is an initial state.
        strides: of the drive, (S, T, B, N), and of the timespans, (S, T, B).
        kind: dtypes and device, of which a launch serves one each.
    """
    S, T, B, N = shape
    constants = _constants(scheme, plan.precision, has) + plan.resident_blocks
    numbers = (T, B, N, scheme.step_size, B if starts else 0, *strides)
    return Launch(resident.forward_kernel, (divide_up(B, plan.batch), S, 1), numbers, constants, **plan.options)


@lru_cache(maxsize=1024)
def resident_backward(
    shape: tuple[int, int, int, int],
    plan: LaunchPlan,
    scheme: Scheme,
    has: tuple[bool, ...],
    strides: tuple[int, ...],
    kind: tuple[Any, ...],
) -> Launch:
    """The same for the backward kernel.

    ``has``: HAS_STATES, HAS_LAST, HAS_SPANS, HAS_INPUT, NOISE and WIDE; ``strides``: of the states' gradient, the
    timespans and the one feature.
    """
    S, T, B, N = shape
    constants = _constants(scheme, plan.precision, has) + plan.resident_blocks
    numbers = (T, B, N, scheme.step_size, *strides)
    return Launch(resident.backward_kernel, (divide_up(B, plan.batch), S, 1), numbers, constants, **plan.options)


def has_fused_input(problem: Problem) -> bool:
    """Inputs of one feature are multiplied by U inside the kernel and never expanded to (T, B, N) in memory."""
    return problem.input_weight is not None and problem.drive.shape[-1] == 1


def _cooperative_launches(
    problem: Problem, plan: LaunchPlan
) -> Iterator[tuple[tuple[int, int, int], Tensor, tuple[int, int]]]:
    """Grid, counters, and (first unit, tiles) of each launch; a unit is one tile of the batch of one network.

    Units do not depend on each other, so where all at once would not fit on the GPU they take turns.
    """
    S, _, B, _ = problem.shape
    tiles = divide_up(B, plan.batch)
    counters = torch.zeros(S * tiles, dtype=torch.int32, device=problem.A.device)
    at_once = max(1, multiprocessors(problem.A.device) // plan.groups)
    for first in range(0, S * tiles, at_once):
        yield (plan.groups, min(at_once, S * tiles - first), 1), counters, (first, tiles)


def _cooperative_options(plan: LaunchPlan) -> dict[str, Any]:
    return plan.options | ({} if interpreting() else {"launch_cooperative_grid": True})


def _constants(scheme: Scheme, precision: str, has: tuple[bool, ...]) -> tuple[Any, ...]:
    """What all four kernels are compiled for, up to WIDE."""
    return (*_scheme(scheme.tableau, scheme.nonlinearity), precision, *has)


def is_wide(sizes: tuple[int, int], stages: int, strides: tuple[int, ...]) -> bool:
    """WIDE of the kernels, from the strides of what a step reads by them (S, T, B, N; S, T, B; …) and writes.

    Strides of networks and steps meet 64 bits in the kernels anyway.
    """
    B, N = sizes
    samples = (strides[2], strides[6], strides[9] if len(strides) > 9 else 0)
    written = 2 * stages * N  # of each sample in a step: the slots of the tape, κ and d
    return beyond_32_bits((B, max(*samples, written)), (N, strides[3]))


@cache
def _scheme(tableau: Tableau, nonlinearity: str) -> tuple[Any, ...]:
    """STAGES, STAGE_COEFFICIENTS, WEIGHTS and NONLINEARITY of the kernels."""
    if not tableau.chained:  # ``support.obstacle`` has refused it, unless somebody came another way
        raise ValueError(f"the kernels take one coefficient for each stage, and {tableau.name!r} has more")
    coefficients = tuple(row[-1] if row else 0.0 for row in tableau.stages)
    return len(tableau), coefficients, tableau.weights, nonlinearity


def _noise(problem: Problem) -> Tensor | None:
    return None if problem.noise is None else problem.noise.contiguous()


def _spans(problem: Problem) -> tuple[Tensor, tuple[int, ...]]:
    if problem.timespans is None:
        return problem.A, (0, 0, 0)
    return problem.timespans, problem.timespans.stride()
