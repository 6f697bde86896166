"""Which kernel walks through time for a problem, with which blocks, and its launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.problem import Problem
from lipschitz_rnn.ops.triton import cooperative, resident
from lipschitz_rnn.ops.triton.calls import divide_up, launch, power_of_two
from lipschitz_rnn.ops.triton.operands import left_operand
from lipschitz_rnn.ops.triton.support import interpreting

RESIDENT_UNITS = 128  # up to this hidden size both matrices fit on one multiprocessor


@dataclass(frozen=True)
class Plan:
    """Blocks of a launch. ``groups`` programs share one tile of the batch; with one group nothing is shared."""

    precision: str
    padded: int
    batch: int
    groups: int = 1
    rows: int = 0
    inner: int = 0
    on_chip: bool = True
    pipeline: int = 3  # how far Triton loads ahead, into shared memory

    @property
    def resident(self) -> bool:
        """Whether one program has everything on chip."""
        return self.groups == 1 and self.rows == 0

    @property
    def shared_blocks(self) -> tuple[bool, int, int, int, int]:
        """RESIDENT, PADDED, BLOCK_R, BLOCK_K and BLOCK_B of the cooperative kernels."""
        return self.on_chip, self.padded, self.rows, self.inner, self.batch


def make_plan(problem: Problem, precision: str, *, backward: bool) -> Plan:
    S, _, B, N = problem.shape
    stages = len(problem.scheme.tableau)
    block = max(16, power_of_two(N))
    if block <= RESIDENT_UNITS:
        # Eight samples at a time are quicker through a step than sixteen, as long as all programs run at once. Products
        # of one pass then leave the warp-group instructions; backward that only pays where least has to be turned.
        turned = backward and precision in ("bf16", "fp16") and (problem.A.dtype == torch.float32 or stages > 1)
        few = S * divide_up(B, 8) <= _multiprocessors(problem.A.device) and not turned
        crowded = precision == "bf16x6" and block == RESIDENT_UNITS and stages > 1  # three parts of each, two stages
        return Plan(precision, block, batch=8 if few or crowded else 16, pipeline=1 if crowded else 3)
    # Whether a program's rows fit beside the state that it reads, which float32 makes twice as large.
    on_chip = precision in ("bf16", "fp16") and block <= (512 if problem.A.dtype == torch.float32 else 1024)
    inner = block if on_chip else 64
    padded = divide_up(N, inner) * inner
    rows = 64 if padded <= 512 or not on_chip else 32
    if interpreting():
        rows = block  # programs run one after another there, so none can wait for another
        padded = max(padded, block)
    return Plan(precision, padded, 16 if block <= 512 else 32, divide_up(N, rows), rows, inner, on_chip)


def walk_forward(problem: Problem, tape: Tensor, precision: str, keep_states: bool, save: bool) -> Tensor:
    """Runs all steps, fills the tape and returns the last state, (S, B, N)."""
    S, T, B, N = problem.shape
    like, plan = problem.A, make_plan(problem, precision, backward=False)
    last = like.new_empty((S, B, N))
    fused = has_fused_input(problem)
    drive = problem.drive if fused else problem.expanded_drive()
    start = None if problem.h0 is None else problem.h0.contiguous()
    U = problem.input_weight.contiguous() if fused and problem.input_weight is not None else None
    bias = problem.bias.contiguous() if fused and problem.bias is not None else None
    spans, span_strides = _spans(problem)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, precision, plan.padded, transpose=False)
    # Any tensor may stand where none is read.
    given = [like if tensor is None else tensor for tensor in (start, U, bias)]
    tensors = (drive, weights, *given, spans, tape, last)
    strides = (*drive.stride(), *span_strides)
    has_spans = problem.timespans is not None
    constants = (*_scheme(problem), precision, fused, bias is not None, has_spans, keep_states, save)
    numbers = (T, B, N, problem.scheme.step_size, 0 if start is None else B)
    if plan.resident:
        grid = (divide_up(B, plan.batch), S)
        blocks = (plan.padded, plan.batch)
        arguments = (*tensors, *numbers, *strides)
        launch(resident.forward_kernel, grid, arguments, constants + blocks, **_resident_options(plan))
        return last
    exchange = torch.empty((S, 2, B, N), dtype=weights.dtype if plan.on_chip else torch.float32, device=like.device)
    for grid, counters, place in _cooperative_launches(problem, plan):
        arguments = (*tensors, exchange, counters, *numbers, *place, *strides)
        launch(
            cooperative.forward_kernel, grid, arguments, constants + plan.shared_blocks, **_cooperative_options(plan)
        )
    return last


def walk_backward(
    problem: Problem, tape: Tensor, precision: str, grad_states: Tensor | None, grad_last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """κ and d of every stage, (S, T, stages, B, 2N); ∂h0, (S, B, N); with an input of one feature shares of ∂U and ∂b.

    The shares are (S, tiles of the batch, 2, N), in float32.
    """
    S, T, B, N = problem.shape
    like, plan = problem.A, make_plan(problem, precision, backward=True)
    kappa_d = like.new_empty((S, T, len(problem.scheme.tableau), B, 2 * N))
    grad_h0 = like.new_empty((S, B, N))
    spans, span_strides = _spans(problem)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, precision, plan.padded, transpose=True)
    final = None if grad_last is None else grad_last.contiguous()
    x = problem.drive[..., 0] if has_fused_input(problem) else None
    shares = torch.empty((S, divide_up(B, plan.batch), 2, N), device=like.device) if x is not None else None
    given = [like if tensor is None else tensor for tensor in (grad_states, final, x)]
    tensors = (weights, spans, tape, *given, kappa_d, grad_h0, like if shares is None else shares)
    grad_strides = (0, 0, 0, 0) if grad_states is None else grad_states.stride()
    strides = (*grad_strides, *span_strides, *((0, 0, 0) if x is None else x.stride()))
    has_spans = problem.timespans is not None
    constants = (*_scheme(problem), precision, grad_states is not None, final is not None, has_spans, x is not None)
    numbers = (T, B, N, problem.scheme.step_size)
    if plan.resident:
        grid = (divide_up(B, plan.batch), S)
        blocks = (plan.padded, plan.batch)
        arguments = (*tensors, *numbers, *strides)
        launch(resident.backward_kernel, grid, arguments, constants + blocks, **_resident_options(plan))
        return kappa_d, grad_h0, shares
    for grid, counters, place in _cooperative_launches(problem, plan):
        arguments = (*tensors, counters, *numbers, *place, *strides)
        launch(
            cooperative.backward_kernel, grid, arguments, constants + plan.shared_blocks, **_cooperative_options(plan)
        )
    return kappa_d, grad_h0, shares


def has_fused_input(problem: Problem) -> bool:
    """Inputs of one feature are multiplied by U inside the kernel and never expanded to (T, B, N) in memory."""
    return problem.input_weight is not None and problem.drive.shape[-1] == 1


def _cooperative_launches(problem: Problem, plan: Plan) -> Iterator[tuple[tuple[int, int], Tensor, tuple[int, int]]]:
    """Grid, counters, and (first unit, tiles) of each launch; a unit is one tile of the batch of one network.

    Units do not depend on each other, so where all at once would not fit on the GPU they take turns.
    """
    S, _, B, _ = problem.shape
    tiles = divide_up(B, plan.batch)
    counters = torch.zeros(S * tiles, dtype=torch.int32, device=problem.A.device)
    at_once = max(1, _multiprocessors(problem.A.device) // plan.groups)
    for first in range(0, S * tiles, at_once):
        yield (plan.groups, min(at_once, S * tiles - first)), counters, (first, tiles)


def _resident_options(plan: Plan) -> dict[str, Any]:
    return {"num_warps": 8 if plan.padded >= RESIDENT_UNITS else 4, "num_stages": plan.pipeline}


def _cooperative_options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {} if interpreting() else {"launch_cooperative_grid": True}
    return options | {"num_warps": 8 if plan.rows >= 64 else 4}


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 2  # of the interpreter: small batches take one way, larger ones the other
    return torch.cuda.get_device_properties(device).multi_processor_count


def _scheme(problem: Problem) -> tuple[Any, ...]:
    """STAGES, STAGE_COEFFICIENTS, WEIGHTS and NONLINEARITY of the kernels."""
    tableau = problem.scheme.tableau
    # Every method here builds a stage on the one before alone, so one coefficient a stage describes it.
    coefficients = tuple(row[-1] if row else 0.0 for row in tableau.stages)
    return len(tableau), coefficients, tableau.weights, problem.scheme.nonlinearity


def _spans(problem: Problem) -> tuple[Tensor, tuple[int, ...]]:
    if problem.timespans is None:
        return problem.A, (0, 0, 0)
    return problem.timespans, problem.timespans.stride()
