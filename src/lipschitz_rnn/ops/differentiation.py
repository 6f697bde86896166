"""Derivatives of the registered operator: the first by hand, every further one through the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops import reference
from lipschitz_rnn.ops.problem import Problem, Scheme
from lipschitz_rnn.ops.registration import TENSORS, plain_eager, run_scan, run_scan_backward, scan, scan_backward


class Scan(torch.autograd.Function):
    """``lipschitz_rnn::scan`` with its backward: takes the operator's arguments, returns states, last state, tape."""

    generate_vmap_rule = True  # the operators inside have rules of their own

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        tape, last = scan(*args) if not plain_eager() else run_scan(*args)
        return tape[:, :, 0], last, tape

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, _, tape = output
        ctx.mark_non_differentiable(tape)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], tape)
        ctx.scheme, ctx.backend = inputs[TENSORS : TENSORS + 4], inputs[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        grad_states, grad_last, _ = grads
        needs = tuple(bool(need) for need in ctx.needs_input_grad[:TENSORS])
        if not any(needs) or (grad_states is None and grad_last is None):
            return (None,) * len(ctx.needs_input_grad)
        args = (*ctx.saved_tensors, grad_states, grad_last, *ctx.scheme, ctx.backend, needs)
        found: Sequence[Tensor]
        if torch.compiler.is_compiling():  # a compiled program has no second derivative, and no nested functions
            found = scan_backward(*args)
        elif plain_eager() and not torch.is_grad_enabled():
            found = run_scan_backward(*args)
        else:
            found = ScanBackward.apply(*args)
        gradients = [gradient if need else None for gradient, need in zip(found, needs, strict=True)]
        return (*gradients, *([None] * (len(ctx.needs_input_grad) - TENSORS)))


class EagerScan(torch.autograd.Function):
    """``Scan`` for plain eager code, without the preparation for function transforms that costs time at every call."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = Scan.forward(*args)
        Scan.setup_context(ctx, args, output)
        return output

    backward = Scan.backward


class ScanBackward(torch.autograd.Function):
    """``lipschitz_rnn::scan_backward``; its own derivative is that of autograd through the reference."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        return tuple(scan_backward(*args))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        grad_states, grad_last = inputs[TENSORS + 1 : TENSORS + 3]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], grad_states, grad_last)
        ctx.scheme, ctx.needs = inputs[TENSORS + 3 : TENSORS + 7], inputs[-1]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        *tensors, grad_states, grad_last = ctx.saved_tensors
        scheme, needs = Scheme(*ctx.scheme), ctx.needs

        def gradients(*inputs: Any) -> list[Tensor | None]:
            problem = Problem.of(inputs[:TENSORS], scheme)
            return reference_gradients(problem, inputs[-2], inputs[-1], needs)

        inputs = (*tensors, grad_states, grad_last)
        wanted = (*ctx.needs_input_grad[:TENSORS], *ctx.needs_input_grad[TENSORS + 1 : TENSORS + 3])
        found = vector_jacobian(gradients, inputs, wanted, cotangents)
        # The tape is a function of the tensors before it: its share is in their total derivative.
        rest = len(ctx.needs_input_grad) - TENSORS - 3
        return (*found[:TENSORS], None, *found[TENSORS:], *([None] * rest))


def reference_gradients(
    problem: Problem, grad_states: Tensor | None, grad_last: Tensor | None, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of ``problem.tensors`` by automatic differentiation of the reference, themselves differentiable."""

    def outputs(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return reference.scan(Problem.of(tensors, problem.scheme))

    return vector_jacobian(outputs, problem.tensors, needs, (grad_states, grad_last))


def vector_jacobian(
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[Tensor | None],
    needs: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Σ cotangentᵀ ∂output/∂input for each input that is there and needed; a missing cotangent counts as zero."""
    result: list[Tensor | None] = [None] * len(inputs)
    chosen = [i for i, (tensor, need) in enumerate(zip(inputs, needs, strict=True)) if tensor is not None and need]
    given = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
    if not chosen or not given:
        return result

    def of_chosen(*values: Tensor) -> list[Tensor | None]:
        full = list(inputs)
        for i, value in zip(chosen, values, strict=True):
            full[i] = value
        outputs = function(*full)
        return [outputs[i] for i in given]

    pull_back: Any = torch.func.vjp(of_chosen, *[inputs[i] for i in chosen])[1]
    for i, gradient in zip(chosen, pull_back([cotangents[i] for i in given]), strict=True):
        result[i] = gradient
    return result
