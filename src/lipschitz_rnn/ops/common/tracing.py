"""What PyTorch is doing around a call: tracing, exporting, transforming, or none of these."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def exporting() -> bool:
    """Whether torch.export is tracing. Reads its flag, because torch.compile of PyTorch 2.11 takes
    ``is_exporting()`` to be True."""
    return bool(torch.compiler._is_exporting_flag)


def exporting_to_onnx() -> bool:
    """Whether torch.onnx is exporting."""
    return torch.onnx.is_in_onnx_export()


# In a strict export the tracer takes is_in_onnx_export() to be False. Marked as constant, this is called instead;
# torch.compiler.assume_constant_result does just this, but imports the whole compiler.
exporting_to_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def tracked(tensor: Tensor) -> bool:
    """Whether a gradient may be needed, also for a tensor wrapped by vmap, whose wrapper does not show it."""
    if torch.compiler.is_compiling():
        return tensor.requires_grad  # the tracer cannot look inside a wrapper
    while not tensor.requires_grad:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return True


def plain_eager() -> bool:
    """Whether nothing traces, transforms or intercepts the call: then PyTorch's dispatcher can be bypassed."""
    if torch.compiler.is_compiling():  # first, and alone: the tracer cannot trace the calls below
        return False
    return not torch._C._are_functorch_transforms_active() and torch._C._len_torch_dispatch_stack() == 0


def without_memory(tensor: Tensor) -> bool:
    """Whether a tensor that nothing intercepts has no numbers at its address: one that holds others, such as a DTensor,
    one that is known to be zero, or one with a shape only."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor._is_zerotensor()
    return isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor)


def older_vmap(*tensors: Tensor | None) -> bool:
    """Whether one of these is a batch as ``torch.autograd.grad(…, is_grads_batched=True)`` makes it: it has no memory
    of its own, and function transforms do not know it."""
    return any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)


def forward_mode() -> bool:
    """Whether forward-mode derivatives are being computed."""
    return forward_ad._current_level >= 0


def traceless() -> bool:
    """Whether nothing traces or intercepts the call or needs forward-mode derivatives: a hand-written scan may run."""
    if torch.compiler.is_compiling():  # first, and alone: the tracer cannot trace the calls below
        return False
    return not forward_mode() and torch._C._len_torch_dispatch_stack() == 0
