"""What lies in memory, which is all that a kernel reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def signed(*tensors: Any) -> tuple[Any, ...]:
    """The tensors, or None, with their signs in memory: PyTorch notes that of ``x.conj().imag`` beside it."""
    if not any(tensor.is_neg() for tensor in tensors if tensor is not None):
        return tensors
    return tuple(tensor.resolve_neg() if isinstance(tensor, Tensor) else tensor for tensor in tensors)
