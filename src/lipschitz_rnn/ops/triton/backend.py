"""Launches the kernels and turns what they leave in memory into gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from lipschitz_rnn.ops.adjoint import stage_states
from lipschitz_rnn.ops.problem import Problem, state_dtype
from lipschitz_rnn.ops.triton import resident
from lipschitz_rnn.ops.triton.gradients import input_gradients, matrix_gradient
from lipschitz_rnn.ops.triton.operands import left_operand
from lipschitz_rnn.ops.triton.support import interpreting

TILE = 16  # samples per program: the narrowest right operand of a tensor-core product


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (S, T, slots, B, N); returns the last state."""
    S, T, B, N = problem.shape
    like, precision = problem.A, matmul_precision(problem.A.dtype)
    last = like.new_empty((S, B, N))
    fused = has_fused_input(problem)
    drive = problem.drive if fused else problem.expanded_drive()
    U = problem.input_weight.contiguous() if fused and problem.input_weight is not None else like
    bias = problem.bias.contiguous() if fused and problem.bias is not None else None
    spans, span_strides = _spans(problem)
    block = block_size(N)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, precision, block, transpose=False)
    resident.forward_kernel[_grid(problem)](
        drive, weights, problem.h0.contiguous(), U, like if bias is None else bias, spans, tape, last,
        T, B, N, problem.scheme.step_size, *drive.stride(), *span_strides,
        **_scheme_constants(problem), PRECISION=precision, FAST=_fast_tanh(precision),
        FUSED_INPUT=fused, HAS_BIAS=bias is not None, HAS_SPANS=problem.timespans is not None,
        KEEP=keep_states, SAVE=save, BLOCK_N=block, BLOCK_B=TILE, num_warps=_warps(block),
    )  # fmt: skip
    return last


def backward(
    problem: Problem,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of ``problem.tensors``, None where ``needs`` says so, from the tape that ``forward`` wrote."""
    S, T, B, N = problem.shape
    like, precision = problem.A, matmul_precision(problem.A.dtype)
    kappa_d = like.new_empty((S, T, len(problem.scheme.tableau), B, 2 * N))
    grad_h0 = like.new_empty((S, B, N))
    spans, span_strides = _spans(problem)
    block = block_size(N)
    weights = left_operand(problem.A, problem.W, problem.scheme.alpha, precision, block, transpose=True)
    resident.backward_kernel[_grid(problem)](
        weights, spans, tape, like if grad_states is None else grad_states,
        like if grad_last is None else grad_last.contiguous(), kappa_d, grad_h0,
        T, B, N, problem.scheme.step_size, *((0, 0, 0, 0) if grad_states is None else grad_states.stride()), *span_strides,
        **_scheme_constants(problem), PRECISION=precision,
        HAS_STATES=grad_states is not None, HAS_LAST=grad_last is not None, HAS_SPANS=problem.timespans is not None,
        BLOCK_N=block, BLOCK_B=TILE, num_warps=_warps(block),
    )  # fmt: skip
    grad_A, grad_W = _matrix_gradients(problem, tape, kappa_d, precision) if needs[1] or needs[2] else (None, None)
    d = kappa_d[:, :, 0, :, N:] if kappa_d.shape[2] == 1 else kappa_d[..., N:].sum(2)
    grad_drive, grad_U, grad_b = _input_gradients(problem, d, needs)
    return grad_drive, grad_A, grad_W, grad_h0 if needs[3] else None, grad_U, grad_b, None


def _matrix_gradients(problem: Problem, tape: Tensor, kappa_d: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """∂A = α Σ κ Hᵀ and ∂W = Σ d Hᵀ over all stages, steps and samples."""
    N, scheme, states = problem.A.shape[-1], problem.scheme, tape[:, :, 0]
    total = matrix_gradient(kappa_d[:, :, 0], states, problem.h0.contiguous(), precision, shifted=True)
    if len(scheme.tableau) > 1:
        previous = torch.cat((problem.h0[:, None], states[:, :-1]), dim=1).transpose(0, 1)
        steps: Any = scheme.step_size
        if problem.timespans is not None:
            steps = problem.timespans.transpose(0, 1).unsqueeze(-1)
        stage, _ = stage_states(problem, previous, tape[:, :, 1:].permute(1, 2, 0, 3, 4), steps)
        for i in range(1, len(stage)):
            H = stage[i].transpose(0, 1)
            total += matrix_gradient(kappa_d[:, :, i], H, problem.h0.contiguous(), precision, shifted=False)
    return (total[:, :N] * scheme.alpha).to(problem.A.dtype), total[:, N:].to(problem.W.dtype)


def _input_gradients(problem: Problem, d: Tensor, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of the drive, and of U and b where the drive is U x + b. d: (S, T, B, N)."""
    U = problem.input_weight
    if U is None:
        return (d if needs[0] else None), None, None
    grad_x = torch.matmul(d, U.unsqueeze(1)) if needs[0] else None
    if not (needs[4] or needs[5]):
        return grad_x, None, None
    if has_fused_input(problem):
        grad_U, grad_b = input_gradients(d, problem.drive[..., 0])
        grad_U = grad_U.unsqueeze(-1)
    else:
        grad_U = torch.matmul(d.flatten(1, 2).mT, problem.drive.flatten(1, 2))
        grad_b = d.sum((1, 2), dtype=state_dtype(d.dtype))
    return grad_x, grad_U.to(U.dtype) if needs[4] else None, grad_b.to(U.dtype) if needs[5] else None


def has_fused_input(problem: Problem) -> bool:
    """Inputs of one feature are multiplied by U inside the kernel and never expanded to (T, B, N) in memory."""
    return problem.input_weight is not None and problem.drive.shape[-1] == 1


def matmul_precision(dtype: torch.dtype) -> str:
    """How products are taken: half precision as it is, float32 as ``torch.get_float32_matmul_precision`` says."""
    if dtype != torch.float32:
        return "fp16" if dtype == torch.float16 else "bf16"
    return {"highest": "bf16x6", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]


def block_size(N: int) -> int:
    return max(16, triton.next_power_of_2(N))


def _warps(block: int) -> int:
    return 8 if block >= 128 else 4


def _fast_tanh(precision: str) -> bool:
    """The GPU's approximate tanh is good to 11 bits: enough where the products have 8, not elsewhere."""
    return precision == "bf16" and not interpreting()


def _scheme_constants(problem: Problem) -> dict[str, Any]:
    tableau = problem.scheme.tableau
    # Every method here builds a stage on the one before alone, so one coefficient a stage describes it.
    coefficients = tuple(row[-1] if row else 0.0 for row in tableau.stages)
    return {
        "STAGES": len(tableau),
        "STAGE_COEFFICIENTS": coefficients,
        "WEIGHTS": tableau.weights,
        "NONLINEARITY": problem.scheme.nonlinearity,
    }


def _grid(problem: Problem) -> tuple[int, int]:
    S, _, B, _ = problem.shape
    return triton.cdiv(B, TILE), S


def _spans(problem: Problem) -> tuple[Tensor, tuple[int, ...]]:
    if problem.timespans is None:
        return problem.A, (0, 0, 0)
    return problem.timespans, problem.timespans.stride()
