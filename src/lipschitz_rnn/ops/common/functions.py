"""What autograd functions of hand-written scans have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.common.tracing import forward_mode, plain_eager
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.ops.common.vmap import run_folded

_OPTIONS = 3  # of a scan: the dtype of products, the backend and whether to save


class EnsembleFunction(torch.autograd.Function):
    """A function whose tensors and results all have an ensemble axis first: whatever vmap stacks becomes part of it."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return run_folded(cls.apply, info, in_dims, args)


class ScanGradients(EnsembleFunction):
    """The gradients of a scan, as a function that can be differentiated again.

    Takes the tensors of the scan, its tape, the gradients of its results, the dtype of products and a backend.
    """

    tensors: ClassVar[int]
    tape: ClassVar[int]

    @staticmethod
    def by_hand(needs: Sequence[bool], *args: Any) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors that need one."""
        raise NotImplementedError

    @staticmethod
    def differentiable(
        tensors: Sequence[Any], grads: Sequence[Tensor | None], compute: torch.dtype
    ) -> Sequence[Tensor | None]:
        """The same in PyTorch's own operations, without a tape."""
        raise NotImplementedError

    @classmethod
    def forward(cls, *args: Any) -> tuple[Tensor | None, ...]:
        return cls.by_hand((True,) * cls.tensors, *args)

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, ctx.compute, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given[: cls.tensors], *given[cls.tensors + cls.tape :])

    @classmethod
    def backward(cls, ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        def again(*given: Any) -> Sequence[Tensor | None]:
            return cls.differentiable(given[: cls.tensors], given[cls.tensors :], ctx.compute)

        *given, _, _ = ctx.needs_input_grad
        needs = (*given[: cls.tensors], *given[cls.tensors + cls.tape :])
        with without_autocast(ctx.saved_tensors[0].device):
            found = vector_jacobian(again, ctx.saved_tensors, needs, cotangents)
        # The tape is a function of the tensors: its contribution is in their total derivative.
        return (*found[: cls.tensors], *(None,) * cls.tape, *found[cls.tensors :], None, None)


class ScanFunction(EnsembleFunction):
    """A scan with hand-written gradients.

    Takes its tensors, the dtype of products, a backend, and whether a backward pass may follow. Returns ``results``
    tensors, and after them the tape.
    """

    gradients: ClassVar[type[ScanGradients]]
    results: ClassVar[int] = 1

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tape = output[cls.results :]
        ctx.mark_non_differentiable(*tape)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:-_OPTIONS], *tape)
        ctx.options = inputs[-_OPTIONS:-1]

    @classmethod
    def backward(cls, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, grads = ctx.needs_input_grad[:-_OPTIONS], grads[: cls.results]
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        args = (*signed(*ctx.saved_tensors, *grads), *ctx.options)
        with without_autocast(args[0].device):
            if plain_eager() and not torch.is_grad_enabled() and not forward_mode():
                found = cls.gradients.by_hand(needs, *args)
            else:  # something records or transforms the call
                found = cls.gradients.apply(*args)
        return (*(gradient if need else None for gradient, need in zip(found, needs, strict=True)), *(None,) * _OPTIONS)
