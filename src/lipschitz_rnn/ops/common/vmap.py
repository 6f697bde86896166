"""vmap rules: a vmapped axis becomes part of the ensemble axis, so that stacked networks run as one ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


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
