"""What autograd functions of hand-written scans have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.tracing import forward_mode, plain_eager
from lipschitz_rnn.ops.common.vmap import run_folded


class EnsembleFunction(torch.autograd.Function):
    """A function whose tensors and results all have an ensemble axis first: whatever vmap stacks becomes part of it."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return run_folded(cls.apply, info, in_dims, args)


def hand_written_gradients(
    gradients: Callable[..., Sequence[Tensor | None]],
    differentiable: type[EnsembleFunction],
    needs: Sequence[bool],
    args: Sequence[Any],
) -> tuple[Tensor | None, ...]:
    """What a backward pass returns for its tensors: ``gradients(needs, *args)``, None where none is needed.

    ``differentiable``, which returns all of them, takes over where something records or transforms the call.
    """
    with without_autocast(args[0].device):
        if plain_eager() and not torch.is_grad_enabled() and not forward_mode():
            found = gradients(needs, *args)
        else:
            found = differentiable.apply(*args)
    return tuple(gradient if need else None for gradient, need in zip(found, needs, strict=True))
