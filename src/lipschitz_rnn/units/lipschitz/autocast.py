"""Mixed precision: the operands of the products in the autocast dtype, the state in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import autocast_enabled, operand_dtype
from lipschitz_rnn.ops.common.tracing import exporting


def to_compute_dtype(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Convert to the autocast dtype where autocast is on; otherwise return the tensors as they are."""
    device = next(tensor for tensor in tensors if tensor is not None).device
    double = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    if double or not autocast_enabled(device):  # like PyTorch's own layers, float64 stays out of autocast
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def to_proved_dtype(A: Tensor, *tensors: Tensor | None) -> tuple[Any, ...]:
    """All in the dtype in which A was proved to contract, autocast or not: rounding A or W would undo the proof.

    An exported program is float64: what float32 means where it runs is not known here.
    """
    dtype = torch.float64 if exporting() else A.dtype
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in (A, *tensors))


def result_dtype(parameter: Tensor) -> torch.dtype:
    """What a layer gives out, however it computes: that of autocast, or else that of its parameters."""
    return operand_dtype(parameter)
