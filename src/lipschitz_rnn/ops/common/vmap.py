"""vmap rules: a vmapped axis becomes part of the ensemble axis, so that stacked networks run as one ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from lipschitz_rnn.ops.common.tracing import traceless


def fold(tensor: Any, dim: int | None, size: int) -> Any:
    """Merge a vmapped axis into the ensemble axis: (V, S, …) → (V·S, …)."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def unfold(tensor: Tensor, size: int) -> Tensor:
    """The inverse of ``fold``."""
    return tensor.unflatten(0, (size, tensor.shape[0] // size))


def run_folded(
    function: Callable[..., Sequence[Tensor]], info: Any, in_dims: tuple[Any, ...], args: Sequence[Any]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The vmap rule of a function whose tensors all have an ensemble axis first."""
    found = function(*[fold(arg, dim, info.batch_size) for arg, dim in zip(args, in_dims, strict=True)])
    return tuple(unfold(output, info.batch_size) for output in found), (0,) * len(found)


def run_gradients_folded(
    function: Callable[..., Sequence[Tensor]], info: Any, in_dims: tuple[Any, ...], args: Sequence[Any]
) -> tuple[list[Tensor], list[int]]:
    """The same for a function that returns gradients, empty where its last argument says that none is needed."""
    size, needs = info.batch_size, args[-1]
    folded = [fold(arg, dim, size) for arg, dim in zip(args[:-1], in_dims[:-1], strict=True)]
    # An empty gradient is shared by all members: it has no ensemble axis to unfold.
    found = [unfold(g, size) if g.dim() > 1 else g.expand(size, *g.shape) for g in function(*folded, needs)]
    return found, [0] * len(found)


def only_vmap() -> int | None:
    """The level of the vmap around this call, if that is all there is around it."""
    if not traceless():
        return None
    stack = torch._C._functorch.get_interpreter_stack()
    alone = stack is not None and len(stack) == 1 and stack[0].key() == torch._C._functorch.TransformType.Vmap
    return stack[0].level() if alone else None


def run_outside(
    level: int,
    function: Callable[..., tuple[Tensor | None, ...]],
    tensors: Sequence[Tensor | None],
    ensemble_axes: int,
) -> tuple[Any, ...]:
    """A function whose tensors have one ensemble axis first, called once for all members of a vmap, as plain code.

    The rules that PyTorch keeps for operators and functions come to the same, but their Python code takes longer than a
    small network. `ensemble_axes`: how many of those axes, none or one, the tensors have inside the vmap.
    """
    functorch = torch._C._functorch
    found: list[tuple[Any, int | None]]
    found = [(None, None) if t is None else functorch._unwrap_batched(t, level) for t in tensors]
    size = next((t.shape[dim] for t, dim in found if dim is not None), None)
    with retrieve_current_functorch_interpreter().lower():
        if size is None:  # what is vmapped is used elsewhere
            return function(*tensors)
        given = [fold(t, dim, size) if ensemble_axes else _stacked(t, dim, size) for t, dim in found]
        results = function(*given)
        parts = [unfold(each, size) if ensemble_axes and each is not None else each for each in results]
    return tuple(None if part is None else functorch._add_batch_dim(part, 0, level) for part in parts)


def _stacked(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
