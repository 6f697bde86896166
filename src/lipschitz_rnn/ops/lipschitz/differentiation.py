"""Derivatives of the registered operator: the first is written by hand, higher ones go through the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.tracing import older_vmap, plain_eager
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.ops.lipschitz import reference
from lipschitz_rnn.ops.lipschitz.operators import (
    SCHEME,
    TENSORS,
    backend_module,
    new_tape,
    run_scan,
    run_scan_backward,
    scan,
    scan_backward,
)
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme


class Scan(torch.autograd.Function):
    """``lipschitz_rnn::scan`` with its backward: takes the operator's arguments, returns states, last state, tape."""

    generate_vmap_rule = True  # the operators inside have rules of their own

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        tape, last = scan(*args) if not plain_eager() else run_scan(*args)
        keep_states, save = args[-3:-1]
        return caller_states(tape, keep_states, save), last, tape

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, _, tape = output
        ctx.mark_non_differentiable(tape)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], tape)
        ctx.scheme, ctx.backend = inputs[TENSORS : TENSORS + SCHEME], inputs[-1]

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


def caller_states(tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """The states for the caller, contiguous and in their own memory: the caller may change them in place or keep them.

    If the backward pass does not need the tape, they reuse its memory.
    """
    states = tape[:, :, 0]
    if not keep_states:
        return states
    return states.clone(memory_format=torch.contiguous_format) if save else states.contiguous()


class EagerScan(torch.autograd.Function):
    """The scan for plain eager code: takes and returns tensors as ``Problem`` has them, also of a single network.

    Without what ``Scan`` prepares for function transforms, and without a node of the graph for every axis that is added
    or taken away: on a GPU a short scan is over before Python has built those.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor | None, Tensor]:
        *tensors, scheme, keep_states, backend = args
        given = Problem.of(tensors, scheme)
        problem = given.lifted()
        tape = new_tape(problem.A, problem.shape, scheme.tableau.name, keep_states, True, backend, internal=True)
        last = backend_module(backend).forward(problem, tape, True, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, tape)
        ctx.scheme, ctx.backend = scheme, backend
        states = caller_states(tape, keep_states, save=True) if keep_states else None
        if given.single:  # in place: a view returned by a function could not be changed by the caller
            last.squeeze_(0)
            if states is not None:
                states.squeeze_(0)
        return states, last

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        *tensors, tape = ctx.saved_tensors
        needs = ctx.needs_input_grad[:TENSORS]
        if not any(needs) or (grad_states is None and grad_last is None):
            return (None,) * len(ctx.needs_input_grad)
        given = Problem.of(tensors, ctx.scheme)
        problem = given.lifted()
        found: Sequence[Tensor | None]
        if given.single:
            grad_states = None if grad_states is None else grad_states.unsqueeze(0)
            grad_last = None if grad_last is None else grad_last.unsqueeze(0)
        if older_vmap(grad_states, grad_last):
            found = plain_gradients(problem, grad_states, grad_last, needs)
        elif torch.is_grad_enabled() or not plain_eager():  # second derivatives follow, or a transform is active
            options = (*ctx.scheme.arguments, ctx.backend, needs)
            found = ScanBackward.apply(*problem.tensors, tape, grad_states, grad_last, *options)
        else:
            with without_autocast(tape.device):  # the forward pass has settled the dtypes
                found = backend_module(ctx.backend).backward(problem, tape, grad_states, grad_last, needs)
        gradients = [gradient if need else None for gradient, need in zip(found, needs, strict=True)]
        if given.single:
            gradients = [None if gradient is None else gradient.squeeze(0) for gradient in gradients]
        return (*gradients, *([None] * (len(ctx.needs_input_grad) - TENSORS)))


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
        ctx.scheme, ctx.needs = inputs[TENSORS + 3 : TENSORS + 3 + SCHEME], inputs[-1]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        *tensors, grad_states, grad_last = ctx.saved_tensors
        scheme, needs = Scheme(*ctx.scheme), ctx.needs

        def gradients(*inputs: Any) -> list[Tensor | None]:
            problem = Problem.of(inputs[:TENSORS], scheme)
            return reference_gradients(problem, inputs[-2], inputs[-1], needs)

        inputs = (*tensors, grad_states, grad_last)
        wanted = (*ctx.needs_input_grad[:TENSORS], *ctx.needs_input_grad[TENSORS + 1 : TENSORS + 3])
        with without_autocast(tensors[0].device):
            found = vector_jacobian(gradients, inputs, wanted, cotangents)
        # The tape is a function of the tensors before it: its contribution is in their total derivative.
        rest = len(ctx.needs_input_grad) - TENSORS - 3
        return (*found[:TENSORS], None, *found[TENSORS:], *([None] * rest))


def plain_gradients(
    problem: Problem, grad_states: Tensor | None, grad_last: Tensor | None, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of ``problem.tensors`` by autograd through the reference, in nothing but PyTorch's own operations.

    For gradients of the results that come as a batch of the older vmap, which neither kernels nor transforms take.
    """
    result: list[Tensor | None] = [None] * len(problem.tensors)
    again = torch.is_grad_enabled()
    with torch.enable_grad(), without_autocast(problem.A.device):
        own: list[Any]
        own = [t if t is None else t.view_as(t) if again and t.requires_grad else t.detach() for t in problem.tensors]
        chosen = [i for i, (t, need) in enumerate(zip(own, needs, strict=True)) if t is not None and need]
        leaves = [own[i] if own[i].requires_grad else own[i].requires_grad_() for i in chosen]
        outputs = zip(reference.scan(Problem.of(own, problem.scheme)), (grad_states, grad_last), strict=True)
        results, grads = zip(*[(output, grad) for output, grad in outputs if grad is not None], strict=True)
        found = torch.autograd.grad(results, leaves, grads, create_graph=again, allow_unused=True)
    for i, gradient in zip(chosen, found, strict=True):
        result[i] = gradient
    return result


def reference_gradients(
    problem: Problem, grad_states: Tensor | None, grad_last: Tensor | None, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of ``problem.tensors`` by automatic differentiation of the reference, themselves differentiable."""

    def outputs(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return reference.scan(Problem.of(tensors, problem.scheme))

    return vector_jacobian(outputs, problem.tensors, needs, (grad_states, grad_last))
