"""Runs the kernels on PyTorch's tensors. Their tape is that of ``cpu.py``: either goes on from the other's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.noise import MULTIPLICATIVE
from lipschitz_rnn.ops.lipschitz.cores.plan import Plan, rowwise
from lipschitz_rnn.ops.lipschitz.cores.sizes import backward_scratch, forward_scratch, gap
from lipschitz_rnn.ops.lipschitz.problem import Problem, needs_float64


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (S, T, slots, B, N); returns the last state."""
    plan = Plan(problem)
    S, _, B, N = problem.shape
    A, W = problem.A, problem.W
    last, bias = A.new_empty((S, B, N)), A.new_zeros((S, plan.padded))
    if problem.bias is not None:
        bias[:, :N] = problem.bias
    plan.arrays |= {
        "forward_panels": plan.panels((W, 1.0), (A, problem.scheme.alpha)),
        "input_panels": None if problem.input_weight is None else plan.panels((problem.input_weight, 1.0)),
        "bias": bias,
        "tape": tape,
        "last": last,
        **plan.noise_arrays(),
    }
    plan.sizes |= {"keep": int(keep_states), "save": int(save)}
    scratch = forward_scratch(plan.rows, plan.padded, plan.stages, plan.kernels.lanes)
    plan.run(plan.kernels.forward, scratch, work=2)
    return last


def backward(
    problem: Problem, tape: Tensor, grad_states: Tensor | None, grad_last: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of ``problem.tensors``, None where ``needs`` says so, from the tape that ``forward`` wrote."""
    plan = Plan(problem)
    (S, T, B, N), A, alpha = problem.shape, problem.A, problem.scheme.alpha
    padded, lanes, features = plan.padded, plan.kernels.lanes, plan.features
    width = gap(padded, lanes)
    matrices = A.new_zeros((S, plan.groups, 2 * padded, width)) if needs[1] or needs[2] else None
    inputs = A.new_zeros((S, plan.groups, features + 1, width)) if needs[4] or needs[5] else None
    drive = A.new_empty((S, T, B, N)) if needs[0] else None
    start = A.new_empty((S, B, N)) if needs[3] else None
    timespans = A.new_empty((S, T, B)) if needs[6] else None
    recompute = plan.stages > 1 or timespans is not None
    both = A.new_zeros((S, N, 2 * padded))  # [αA; W] transposed: ``panels`` transposes it back
    both[:, :, :N], both[:, :, padded : padded + N] = A.mT * alpha, problem.W.mT
    plan.arrays |= {
        "tape": rowwise(tape),  # as a hook on saved tensors may give it back
        "backward_panels": plan.panels((both, 1.0)),
        "slope_panels": plan.panels((A, alpha)) if recompute else None,
        "grad_states": rowwise(grad_states),
        "grad_last": rowwise(grad_last),
        "grad_drive": drive,
        "grad_start": start,
        "grad_timespans": timespans,
        "grad_matrices": matrices,
        "grad_inputs": inputs,
    }
    if problem.noise is not None and bool(problem.noise[:, MULTIPLICATIVE].any()):
        plan.arrays |= plan.noise_arrays()
    plan.sizes["recompute"] = int(recompute)
    scratch = backward_scratch(plan.rows, padded, plan.stages, lanes, plan.chunk, features)
    plan.run(plan.kernels.backward, scratch, work=4)
    if drive is not None and problem.input_weight is not None:
        wide = torch.float64 if needs_float64(problem) else A.dtype  # the one product here that PyTorch takes
        drive = (drive.to(wide) @ problem.input_weight.unsqueeze(1).to(wide)).to(A.dtype)
    matrices = None if matrices is None else matrices.sum(1)
    inputs = None if inputs is None else inputs.sum(1)
    return (
        drive,
        matrices[:, :N, :N] * alpha if matrices is not None and needs[1] else None,
        matrices[:, padded : padded + N, :N].contiguous() if matrices is not None and needs[2] else None,
        start,
        inputs[:, :features, :N].mT.contiguous() if inputs is not None and needs[4] else None,
        inputs[:, features, :N].contiguous() if inputs is not None and needs[5] else None,
        timespans,
        None,
    )
