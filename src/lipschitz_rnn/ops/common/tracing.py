"""What PyTorch is doing around a call: tracing, exporting, transforming, or none of these."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def exporting() -> bool:
    """Whether torch.export traces. Its flag, as torch.compile of PyTorch 2.11 takes ``is_exporting()`` to be True."""
    return bool(torch.compiler._is_exporting_flag)


def tracked(tensor: Tensor) -> bool:
    """Whether a gradient may be asked for, also of a tensor that vmap has wrapped: its wrapper does not say so."""
    if torch.compiler.is_compiling():
        return tensor.requires_grad  # the tracer cannot look inside a wrapper
    while not tensor.requires_grad:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return True


def plain_eager() -> bool:
    """Whether nobody traces, transforms or intercepts: then the way through PyTorch's dispatcher can be saved."""
    if torch.compiler.is_compiling():  # first, and alone: the tracer cannot take the questions below
        return False
    return not torch._C._are_functorch_transforms_active() and torch._C._len_torch_dispatch_stack() == 0


def forward_mode() -> bool:
    """Whether somebody asks for forward-mode derivatives."""
    return forward_ad._current_level >= 0


def traceless() -> bool:
    """Whether nobody traces, intercepts or asks for forward-mode derivatives: then a hand-written scan may run."""
    if torch.compiler.is_compiling():  # first, and alone: the tracer cannot take the questions below
        return False
    return not forward_mode() and torch._C._len_torch_dispatch_stack() == 0
