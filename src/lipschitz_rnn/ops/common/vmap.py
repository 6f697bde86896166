"""A vmapped axis as part of the ensemble axis, so that stacked networks run as one ensemble."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def fold(tensor: Any, dim: int | None, size: int) -> Any:
    """Merge a vmapped axis into the ensemble axis: (V, S, …) → (V·S, …)."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def unfold(tensor: Tensor, size: int) -> Tensor:
    return tensor.unflatten(0, (size, -1))
