"""The dtypes in which a scan computes, with autocast and without."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype, device: torch.device, exact_products: bool = False) -> torch.dtype:
    """Half precision pays on GPUs. A CPU multiplies it slowly, or not at all, so there it is only a storage format."""
    half = dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if half and (exact_products or device.type == "cpu") else dtype


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in the dtype in which the device computes."""
    dtype = compute_dtype(left.dtype, left.device)
    return torch.matmul(left.to(dtype), right.to(dtype)).to(left.dtype)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The state adds up many small steps: half precision keeps it, and only it, in float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


# Evaluated once: torch.compile of PyTorch 2.11 cannot trace this call.
_WITH_AUTOCAST = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps", "mtia", "hpu") if torch.amp.is_autocast_available(kind)
)


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is on; some devices, such as ``meta``, do not have it."""
    return device.type in _WITH_AUTOCAST and torch.is_autocast_enabled(device.type)


def operand_dtype(W: Tensor) -> torch.dtype:
    """The dtype of products with W: that of autocast if it is on, except for float64, as in PyTorch itself."""
    if W.dtype == torch.float64 or not autocast_enabled(W.device):
        return W.dtype
    return torch.get_autocast_dtype(W.device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off, once the dtypes are chosen; if it was off already, nothing of this shows in an exported program."""
    return torch.autocast(device.type, enabled=False) if autocast_enabled(device) else nullcontext()
