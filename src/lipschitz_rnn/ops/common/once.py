"""Backward passes that have no derivative of their own, and say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def first_derivatives_only(message: str) -> Callable[[Callable[..., tuple[Any, ...]]], Callable[..., tuple[Any, ...]]]:
    """A decorator for ``backward``: a second derivative raises a RuntimeError with this message.

    PyTorch's ``once_differentiable`` does so only if the gradient that comes in is itself differentiable, and if
    everything is differentiated. That of a sum is not, and torch.autograd.grad does not visit what leads to none of the
    tensors it is asked for. So the result depends here on all that the function was given, and saved.
    """

    def decorate(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        @functools.wraps(backward)
        def once(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                with torch.no_grad():
                    return backward(ctx, *gradients)
            read = _Read(ctx)
            with torch.no_grad():
                found = backward(read, *gradients)
            given = [each for each in (*gradients, *read.saved_tensors) if isinstance(each, Tensor)]
            tensors = [value.detach() for value in found if isinstance(value, Tensor)]
            refused = iter(_Refused.apply(message, len(tensors), *tensors, *given))
            return tuple(next(refused) if isinstance(value, Tensor) else value for value in found)

        return once

    return decorate


class _Read:
    """A context whose tensors are unpacked once, which is how often torch.utils.checkpoint gives them."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Refused(torch.autograd.Function):
    """The first ``count`` tensors as they are; whoever differentiates them by any of the others gets the message."""

    @staticmethod
    def forward(ctx: Any, message: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.message = message
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        raise RuntimeError(ctx.message)
