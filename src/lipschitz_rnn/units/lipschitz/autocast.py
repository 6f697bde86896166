"""Mixed precision: matrix products in the autocast dtype, the state in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import autocast_enabled, operand_dtype
from lipschitz_rnn.ops.common.tracing import exporting


def to_compute_dtype(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Convert to the autocast dtype if autocast is on; otherwise return the tensors unchanged."""
    device = next(tensor for tensor in tensors if tensor is not None).device
    double = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    if double or not autocast_enabled(device):  # autocast leaves float64 alone, as in PyTorch's own layers
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def to_proved_dtype(A: Tensor, *tensors: Tensor | None) -> tuple[Any, ...]:
    """Convert to the dtype for which contraction is proved, even under autocast: rounding A or W would void the proof.

    Exported programs use float64, because the float32 precision where they will run is not known here.
    """
    dtype = torch.float64 if exporting() else A.dtype
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in (A, *tensors))


def result_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of a layer's output, whatever it computes in: that of autocast, or else that of its parameters."""
    return operand_dtype(parameter)
