"""Euclidean lengths of vectors that may be very short."""

from __future__ import annotations

import torch
from torch import Tensor


def length_of(vectors: Tensor, axes: int | tuple[int, ...] = -1) -> Tensor:
    """‖v‖₂ over some axes.

    Vectors are brought to scale first: in float64 the square of a number below 10⁻¹⁶² would be zero.
    """
    if vectors.numel() == 0:
        return torch.linalg.vector_norm(vectors, dim=axes)
    tiny = torch.finfo(vectors.dtype).tiny
    top = vectors.detach().abs().amax(axes, keepdim=True).clamp(tiny, 1.0 / tiny)
    return torch.linalg.vector_norm(vectors / top, dim=axes) * top.squeeze(axes)
