"""Sub-steps in compiled programs: one operator whose shapes do not depend on the times.

How many sub-steps there are is known only when it runs. So the operator keeps nothing for the backward pass, which
scans once more instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.tracing import tracked
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.ops.common.vmap import run_folded, run_gradients_folded
from lipschitz_rnn.ops.lipschitz.dispatch import run
from lipschitz_rnn.ops.lipschitz.operators import TENSORS, contiguous_gradients, shapes_of_gradients
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.ops.lipschitz.substeps import run_substeps


def run_compiled(problem: Problem, max_step: float, backend: str, all_states: bool) -> tuple[Tensor | None, Tensor]:
    differentiate = torch.is_grad_enabled() and any(t is not None and tracked(t) for t in problem.tensors)
    lifted, scheme = problem.lifted(), problem.scheme
    numbers = (*scheme.arguments, max_step, backend, all_states)
    states, last = (SubstepScan.apply if differentiate else substep_scan)(*lifted.tensors, *numbers)
    if problem.single:
        states, last = states.squeeze(0), last.squeeze(0)
    return (states if all_states else None), last


def _scan(problem: Problem, max_step: float, backend: str, all_states: bool) -> tuple[Tensor | None, Tensor]:
    return run_substeps(problem, max_step, lambda part, _: run(part, backend, all_states), backend, all_states)


@torch.library.custom_op("lipschitz_rnn::substep_scan", mutates_args=())
def substep_scan(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor,
    noise: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    exact_products: bool,
    max_step: float,
    backend: str,
    all_states: bool,
) -> tuple[Tensor, Tensor]:
    """States (S, T, B, N), with T = 0 where they are not asked for, and the last state (S, B, N)."""
    tensors = (drive, A, W, h0, input_weight, bias, timespans, noise)
    problem = Problem.of(tensors, Scheme(step_size, alpha, integrator, nonlinearity, exact_products))
    with torch.no_grad():
        states, last = _scan(problem, max_step, backend, all_states)
    S, _, B, N = problem.shape
    return (A.new_empty((S, 0, B, N)) if states is None else states.contiguous()), last.clone()


@substep_scan.register_fake
def _(drive: Tensor, A: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    (S, T, B, _), N = drive.shape, A.shape[-1]
    return A.new_empty((S, T if rest[-1] else 0, B, N)), A.new_empty((S, B, N))


@torch.library.custom_op("lipschitz_rnn::substep_scan_backward", mutates_args=())
def substep_scan_backward(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor,
    noise: Tensor | None,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    exact_products: bool,
    max_step: float,
    backend: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """One gradient per tensor; those not needed come back empty."""
    tensors = (drive, A, W, h0, input_weight, bias, timespans, noise)
    scheme = Scheme(step_size, alpha, integrator, nonlinearity, exact_products)

    def outputs(*values: Tensor | None) -> tuple[Tensor | None, Tensor]:
        return _scan(Problem.of(values, scheme), max_step, backend, grad_states is not None)

    found = vector_jacobian(outputs, tensors, needs, (grad_states, grad_last))
    return contiguous_gradients(found, like=drive)


substep_scan_backward.register_fake(shapes_of_gradients)


class SubstepScan(torch.autograd.Function):
    """``lipschitz_rnn::substep_scan`` with its backward."""

    generate_vmap_rule = True  # the operators inside have rules of their own

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        return substep_scan(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS])
        *ctx.numbers, ctx.all_states = inputs[TENSORS:]

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        needs = tuple(bool(need) for need in ctx.needs_input_grad[:TENSORS])
        grad_states = grad_states if ctx.all_states else None
        rest = (None,) * (len(ctx.needs_input_grad) - TENSORS)
        if not any(needs) or (grad_states is None and grad_last is None):
            return (*[None] * TENSORS, *rest)
        found = substep_scan_backward(*ctx.saved_tensors, grad_states, grad_last, *ctx.numbers, needs)
        return (*[gradient if need else None for gradient, need in zip(found, needs, strict=True)], *rest)


@substep_scan.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return run_folded(substep_scan, info, in_dims, args)


@substep_scan_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return run_gradients_folded(substep_scan_backward, info, in_dims, args)
