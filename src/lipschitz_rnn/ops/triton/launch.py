"""Which kernel walks through time for a problem, with which blocks, and its launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from lipschitz_rnn.ops.problem import Problem
from lipschitz_rnn.ops.triton import cooperative, resident
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

    @property
    def warps(self) -> int:
        return 8 if self.padded >= RESIDENT_UNITS else 4


def make_plan(problem: Problem, precision: str) -> Plan:
    N, stages = problem.A.shape[-1], len(problem.scheme.tableau)
    block = max(16, triton.next_power_of_2(N))
    crowded = precision == "bf16x6" and block == RESIDENT_UNITS and stages > 1  # three parts of each matrix, two stages
    if block <= RESIDENT_UNITS and not crowded:
        return Plan(precision, block, batch=16)
    # Whether a program's rows fit beside the state that it reads, which float32 makes twice as large.
    on_chip = precision in ("bf16", "fp16") and block <= (512 if problem.A.dtype == torch.float32 else 1024)
    inner = block if on_chip else 64
    padded = triton.cdiv(N, inner) * inner
    rows = 64 if padded <= 512 or not on_chip else 32
    if interpreting():
        rows = block  # programs run one after another there, so none can wait for another
        padded = max(padded, block)
    return Plan(precision, padded, 16 if block <= 512 else 32, triton.cdiv(N, rows), rows, inner, on_chip)


def walk_forward(problem: Problem, tape: Tensor, precision: str, keep_states: bool, save: bool) -> Tensor:
    """Runs all steps, fills the tape and returns the last state, (S, B, N)."""
    S, T, B, N = problem.shape
    like, plan = problem.A, make_plan(problem, precision)
    last = like.new_empty((S, B, N))
    fused = has_fused_input(problem)
    drive = problem.drive if fused else problem.expanded_drive()
    U = problem.input_weight.contiguous() if fused and problem.input_weight is not None else like
    bias = problem.bias.contiguous() if fused and problem.bias is not None else None
    spans, span_strides = _spans(problem)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, precision, plan.padded, transpose=False)
    tensors = (drive, weights, problem.h0.contiguous(), U, like if bias is None else bias, spans, tape, last)
    strides = (*drive.stride(), *span_strides)
    flags = {
        "FUSED_INPUT": fused, "HAS_BIAS": bias is not None, "HAS_SPANS": problem.timespans is not None,
        "KEEP": keep_states, "SAVE": save,
    }  # fmt: skip
    if plan.groups == 1 and plan.rows == 0:
        resident.forward_kernel[(triton.cdiv(B, plan.batch), S)](
            *tensors, T, B, N, problem.scheme.step_size, *strides, **_scheme(problem), **flags,
            PRECISION=precision, BLOCK_N=plan.padded, BLOCK_B=plan.batch, num_warps=plan.warps,
        )  # fmt: skip
        return last
    exchange = torch.empty((S, 2, B, N), dtype=weights.dtype if plan.on_chip else torch.float32, device=like.device)
    for grid, counters, place in _cooperative_launches(problem, plan):
        cooperative.forward_kernel[grid](
            *tensors, exchange, counters, T, B, N, problem.scheme.step_size, *place, *strides,
            **_scheme(problem), **flags, **_cooperative_options(plan),
        )  # fmt: skip
    return last


def walk_backward(
    problem: Problem, tape: Tensor, precision: str, grad_states: Tensor | None, grad_last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """κ and d of every stage, (S, T, stages, B, 2N); ∂h0, (S, B, N); with an input of one feature shares of ∂U and ∂b.

    The shares are (S, tiles of the batch, 2, N), in float32.
    """
    S, T, B, N = problem.shape
    like, plan = problem.A, make_plan(problem, precision)
    kappa_d = like.new_empty((S, T, len(problem.scheme.tableau), B, 2 * N))
    grad_h0 = like.new_empty((S, B, N))
    spans, span_strides = _spans(problem)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, precision, plan.padded, transpose=True)
    incoming = like if grad_states is None else grad_states
    final = like if grad_last is None else grad_last.contiguous()
    x = problem.drive[..., 0] if has_fused_input(problem) else None
    shares = torch.empty((S, triton.cdiv(B, plan.batch), 2, N), device=like.device) if x is not None else None
    features, sums = like if x is None else x, like if shares is None else shares
    tensors = (weights, spans, tape, incoming, final, features, kappa_d, grad_h0, sums)
    grad_strides = (0, 0, 0, 0) if grad_states is None else grad_states.stride()
    strides = (*grad_strides, *span_strides, *((0, 0, 0) if x is None else x.stride()))
    flags = {
        "HAS_STATES": grad_states is not None, "HAS_LAST": grad_last is not None,
        "HAS_SPANS": problem.timespans is not None, "HAS_INPUT": x is not None,
    }  # fmt: skip
    if plan.groups == 1 and plan.rows == 0:
        resident.backward_kernel[(triton.cdiv(B, plan.batch), S)](
            *tensors, T, B, N, problem.scheme.step_size, *strides, **_scheme(problem), **flags,
            PRECISION=precision, BLOCK_N=plan.padded, BLOCK_B=plan.batch, num_warps=plan.warps,
        )  # fmt: skip
        return kappa_d, grad_h0, shares
    for grid, counters, place in _cooperative_launches(problem, plan):
        cooperative.backward_kernel[grid](
            *tensors, counters, T, B, N, problem.scheme.step_size, *place, *strides,
            **_scheme(problem), **flags, **_cooperative_options(plan),
        )  # fmt: skip
    return kappa_d, grad_h0, shares


def has_fused_input(problem: Problem) -> bool:
    """Inputs of one feature are multiplied by U inside the kernel and never expanded to (T, B, N) in memory."""
    return problem.input_weight is not None and problem.drive.shape[-1] == 1


def _cooperative_launches(problem: Problem, plan: Plan) -> Iterator[tuple[tuple[int, int], Tensor, tuple[int, int]]]:
    """Grid, counters, and (first unit, tiles) of each launch; a unit is one tile of the batch of one network.

    Units do not depend on each other, so where all at once would not fit on the GPU they take turns.
    """
    S, _, B, _ = problem.shape
    tiles = triton.cdiv(B, plan.batch)
    counters = torch.zeros(S * tiles, dtype=torch.int32, device=problem.A.device)
    at_once = max(1, _multiprocessors(problem.A.device) // plan.groups)
    for first in range(0, S * tiles, at_once):
        yield (plan.groups, min(at_once, S * tiles - first)), counters, (first, tiles)


def _cooperative_options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {} if interpreting() else {"launch_cooperative_grid": True}
    return options | {
        "PRECISION": plan.precision, "RESIDENT": plan.on_chip, "PADDED": plan.padded, "BLOCK_R": plan.rows,
        "BLOCK_K": plan.inner, "BLOCK_B": plan.batch, "num_warps": 8 if plan.rows >= 64 else 4,
    }  # fmt: skip


@cache
def _multiprocessors(device: torch.device) -> int:
    return 1 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def _scheme(problem: Problem) -> dict[str, Any]:
    tableau = problem.scheme.tableau
    # Every method here builds a stage on the one before alone, so one coefficient a stage describes it.
    coefficients = tuple(row[-1] if row else 0.0 for row in tableau.stages)
    return {
        "STAGES": len(tableau), "STAGE_COEFFICIENTS": coefficients, "WEIGHTS": tableau.weights,
        "NONLINEARITY": problem.scheme.nonlinearity,
    }  # fmt: skip


def _spans(problem: Problem) -> tuple[Tensor, tuple[int, ...]]:
    if problem.timespans is None:
        return problem.A, (0, 0, 0)
    return problem.timespans, problem.timespans.stride()
