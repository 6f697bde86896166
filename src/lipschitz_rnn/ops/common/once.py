"""Backward passes that have no derivative of their own, and say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def first_derivatives_only(message: str) -> Callable[[Callable[..., tuple[Any, ...]]], Callable[..., tuple[Any, ...]]]:
    """A decorator for ``backward``: a second derivative raises a RuntimeError with this message.

    PyTorch's ``once_differentiable`` does so only if the gradient that comes in is itself differentiable. That of a sum
    is not, so that its second derivatives would lack what goes through this function, without a word.
    """

    def decorate(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        @functools.wraps(backward)
        def once(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            with torch.no_grad():
                found = backward(ctx, *gradients)
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return found
            refuse = torch._C._functions.DelayedError(message.encode(), len(found))
            marked = [value.detach().requires_grad_() if isinstance(value, Tensor) else value for value in found]
            return tuple(refuse(*marked))

        return once

    return decorate
