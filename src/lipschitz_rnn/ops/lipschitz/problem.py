"""What a scan is asked to do, in the form that every backend takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.common.noise import ADDITIVE, MULTIPLICATIVE
from lipschitz_rnn.ops.common.precision import rounds_float32
from lipschitz_rnn.ops.lipschitz.integrators import Tableau, get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import Nonlinearity, get_nonlinearity


@dataclass(frozen=True)
class Scheme:
    """The part of a scan that is not a tensor: how a step is taken."""

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
        noise: (S, 5) in float64, whatever the other dtypes: what the state is disturbed by after each step, as in
            ``ops.common.noise``; None for nothing.
    """

    drive: Tensor
    A: Tensor
    W: Tensor
    h0: Tensor | None
    input_weight: Tensor | None
    bias: Tensor | None
    timespans: Tensor | None
    scheme: Scheme
    noise: Tensor | None = None

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
    def noisy(self) -> bool:
        """Whether the state of any network is disturbed at all."""
        return self.noise is not None and bool(self.noise[..., [ADDITIVE, MULTIPLICATIVE]].any())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(S, T, B, N)."""
        networks, steps, batch, _ = self.drive.shape
        return networks, steps, batch, self.A.shape[-1]

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The inputs in the order in which gradients are returned; the last has none."""
        return (self.drive, self.A, self.W, self.h0, self.input_weight, self.bias, self.timespans, self.noise)

    @classmethod
    def of(cls, tensors: Sequence[Any], scheme: Scheme) -> Problem:
        """From its tensors in that same order."""
        drive, A, W, h0, input_weight, bias, timespans, *noise = tensors
        return cls(drive, A, W, h0, input_weight, bias, timespans, scheme, *noise)

    def to(self, dtype: torch.dtype) -> Problem:
        tensors = [None if tensor is None else tensor.to(dtype) for tensor in self.tensors[:-1]]
        return Problem.of((*tensors, self.noise), self.scheme)

    def signed(self) -> Problem:
        """With all signs in memory, as the kernels read them."""
        return Problem.of(signed(*self.tensors), self.scheme)

    def initial_state(self) -> Tensor:
        """h0, (S, B, N), as a tensor of zeros if none was given."""
        networks, _, batch, units = self.shape
        return self.A.new_zeros((networks, batch, units)) if self.h0 is None else self.h0

    def expanded_drive(self, steps: slice | None = None) -> Tensor:
        """u = U x + b as one product for the whole sequence, (S, T, B, N), or for some of its steps."""
        drive = self.drive if steps is None else self.drive[:, steps]
        if self.input_weight is None:
            return drive
        U = self.input_weight.mT.unsqueeze(1)
        u = drive * U if drive.shape[-1] == 1 else matmul(drive, U)  # with one feature a matrix product is not needed
        return u if self.bias is None else u + self.bias[:, None, None, :]


def needs_float64(problem: Problem) -> bool:
    """Whether PyTorch's own float32 products would fall short of what the problem asks for.

    Float64 is then the way to them that changes no setting: settings belong to the whole process, to every thread.
    """
    return problem.scheme.exact_products and problem.A.dtype == torch.float32 and rounds_float32(problem.A.device)
