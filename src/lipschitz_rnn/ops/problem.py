"""What a scan is asked to do, in the one form that every backend takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.integrators import Tableau, get_integrator
from lipschitz_rnn.ops.nonlinearities import Nonlinearity, get_nonlinearity


@dataclass(frozen=True)
class Scheme:
    """The part of a scan that is no tensor: how a step is taken."""

    step_size: float
    alpha: float
    integrator: str
    nonlinearity: str
    exact_products: bool = False  # products with A and W in at least float32, whatever PyTorch's settings allow

    @property
    def arguments(self) -> tuple[float, float, str, str, bool]:
        """As the registered operators take it."""
        return self.step_size, self.alpha, self.tableau.name, self.nonlinearity, self.exact_products

    @property
    def tableau(self) -> Tableau:
        return get_integrator(self.integrator)

    @property
    def sigma(self) -> Nonlinearity:
        return get_nonlinearity(self.nonlinearity)


@dataclass(frozen=True)
class Problem:
    """S networks at once over T steps and B samples; hidden size N. Every backend takes it in this form.

    One network may also come without the axis S, as a user gives it; ``lifted`` adds the axis.

    Attributes:
        drive: (S, T, B, N), the u of ``σ(W h + u)``; with ``input_weight`` the inputs x, (S, T, B, p).
        A, W: (S, N, N).
        h0: (S, B, N), or None for zeros.
        input_weight, bias: (S, N, p) and (S, N): then u = U x + b.
        timespans: (S, T, B), replaces ``scheme.step_size``; zero leaves the state as it is.
    """

    drive: Tensor
    A: Tensor
    W: Tensor
    h0: Tensor | None
    input_weight: Tensor | None
    bias: Tensor | None
    timespans: Tensor | None
    scheme: Scheme

    @property
    def single(self) -> bool:
        """Whether it is one network without an axis for networks."""
        return self.drive.dim() == 3

    def lifted(self) -> Problem:
        """A single network as an ensemble of one."""
        if not self.single:
            return self
        return Problem.of([None if tensor is None else tensor.unsqueeze(0) for tensor in self.tensors], self.scheme)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(S, T, B, N)."""
        networks, steps, batch, _ = self.drive.shape
        return networks, steps, batch, self.A.shape[-1]

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The differentiable inputs in the order in which gradients are returned."""
        return (self.drive, self.A, self.W, self.h0, self.input_weight, self.bias, self.timespans)

    @classmethod
    def of(cls, tensors: Sequence[Any], scheme: Scheme) -> Problem:
        """From its tensors in that same order."""
        drive, A, W, h0, input_weight, bias, timespans = tensors
        return cls(drive, A, W, h0, input_weight, bias, timespans, scheme)

    def to(self, dtype: torch.dtype) -> Problem:
        return Problem.of([None if tensor is None else tensor.to(dtype) for tensor in self.tensors], self.scheme)

    def initial_state(self) -> Tensor:
        """h0, (S, B, N), written out where it is zero."""
        networks, _, batch, units = self.shape
        return self.A.new_zeros((networks, batch, units)) if self.h0 is None else self.h0

    def expanded_drive(self, steps: slice | None = None) -> Tensor:
        """u = U x + b as one product for the whole sequence, (S, T, B, N), or for some of its steps."""
        drive = self.drive if steps is None else self.drive[:, steps]
        if self.input_weight is None:
            return drive
        U = self.input_weight.mT.unsqueeze(1)
        u = drive * U if drive.shape[-1] == 1 else matmul(drive, U)  # one feature is no matrix product
        return u if self.bias is None else u + self.bias[:, None, None, :]


def compute_dtype(dtype: torch.dtype, device: torch.device, exact_products: bool = False) -> torch.dtype:
    """Half precision pays on GPUs. A CPU multiplies it slowly, or not at all: there it is for storing only."""
    half = dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if half and (exact_products or device.type == "cpu") else dtype


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in the dtype in which the device computes."""
    dtype = compute_dtype(left.dtype, left.device)
    return torch.matmul(left.to(dtype), right.to(dtype)).to(left.dtype)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The state adds up many small steps: half precision keeps it, and only it, in float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


# Asked once: torch.compile of PyTorch 2.11 cannot trace the question.
_WITH_AUTOCAST = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps", "mtia", "hpu") if torch.amp.is_autocast_available(kind)
)


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is on; some devices, such as ``meta``, know none."""
    return device.type in _WITH_AUTOCAST and torch.is_autocast_enabled(device.type)


def operand_dtype(W: Tensor) -> torch.dtype:
    """What products with W are taken in: that of autocast, if it is on. Like PyTorch's own, float64 stays out of it."""
    if W.dtype == torch.float64 or not autocast_enabled(W.device):
        return W.dtype
    return torch.get_autocast_dtype(W.device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off, once the dtypes are settled; an exported program is left without a trace of it if it was off."""
    return torch.autocast(device.type, enabled=False) if autocast_enabled(device) else nullcontext()


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
