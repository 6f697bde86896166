"""Streaming: a trained unit, one time step per call."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import operand_dtype, without_autocast
from lipschitz_rnn.ops.common.validation import (
    require_count,
    require_floating,
    require_number,
    require_shape,
    require_tensor,
)
from lipschitz_rnn.units.arguments import renamed, require_parameter_dtype
from lipschitz_rnn.units.call_types import State

if TYPE_CHECKING:
    from lipschitz_rnn.units.base import Recurrent


class Stream(ABC):
    """A copy of a unit that takes one time step per call. It keeps the state, computes no gradients, and forms its
    matrices once.

    Call it with the input (p,), or (B, p) for a batch, and optionally `timespans`: the time since the previous sample,
    instead of `step_size`; a number, or one per series of the batch. It returns the output of the unit in evaluation
    mode at that step. `state` is the state of all layers, in the format of `h_n`, and can be set.
    """

    def __init__(self, unit: Recurrent, batch_size: int | None) -> None:
        if unit.bidirectional:
            raise ValueError(
                f"bidirectional is True, but a stream cannot run backwards; build {unit.registered_name()!r} without it"
            )
        self.batch_size = None if batch_size is None else require_count("batch_size", batch_size)
        self._batch = () if self.batch_size is None else (self.batch_size,)
        self._shape = torch.Size((*self._batch, unit.input_size))
        self._like = next(unit.parameters()).detach()

    @abstractmethod
    def __call__(self, input: Tensor, timespans: float | Tensor | None = None) -> Tensor:
        """The output of the next time step: (·,) or (B, ·)."""

    @property
    @abstractmethod
    def state(self) -> Tensor | State:
        """A copy of the state, (layers, ·) or (layers, B, ·) each."""

    @state.setter
    @abstractmethod
    def state(self, value: Tensor | State) -> None: ...

    @abstractmethod
    def reset(self) -> None:
        """Return to the initial state, for the next series."""

    def check_input(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.shape != self._shape:
            require_shape("input", require_tensor("input", x), tuple(self._shape), "one time step")
        require_parameter_dtype("input", x, self._like)


class UnitStream(Stream):
    """The stream of any unit: calls the unit on sequences of one step, in at least float32."""

    def __init__(self, unit: Recurrent, batch_size: int | None = None) -> None:
        super().__init__(unit, batch_size)
        self._unit = copy.deepcopy(unit).requires_grad_(False).eval()
        if self._like.dtype in (torch.float16, torch.bfloat16):
            self._unit = self._unit.float()  # a 16-bit state would lose small steps
        self._wide = next(self._unit.parameters()).dtype
        with torch.no_grad(), without_autocast(self._like.device):
            self._unit.freeze()
            start = self._unit.initial_state(self.batch_size or 1)
        self._start = tuple(part.squeeze(1) for part in start) if self.batch_size is None else start
        self._state: State = self._start
        self.reset()

    @renamed(2, x="input", dt="timespans")
    def __call__(self, input: Tensor, timespans: float | Tensor | None = None) -> Tensor:
        self.check_input(input)
        times = None if timespans is None else self._times(timespans)
        x = input.detach().to(self._wide)
        if self._unit.batch_first and self.batch_size is not None:
            x, times = x.unsqueeze(1), None if times is None else times.unsqueeze(1)
        else:
            x, times = x.unsqueeze(0), None if times is None else times.unsqueeze(0)
        with torch.no_grad(), without_autocast(x.device):
            output, last = self._unit(x, self._state, timespans=times)
        self._state = last if isinstance(last, tuple) else (last,)
        return output.reshape(*self._batch, -1).to(operand_dtype(self._like), copy=True)

    def _times(self, timespans: float | Tensor) -> Tensor:
        if not isinstance(timespans, Tensor):
            number = require_number("timespans", timespans, low=0.0)
            return torch.full(self._batch, number, dtype=self._wide, device=self._like.device)
        require_floating("timespans", timespans)
        if timespans.dim() > 0:
            require_shape("timespans", timespans, self._batch, "one time per series, or a single number")
        return timespans.detach().expand(self._batch)

    @property
    def state(self) -> Tensor | State:
        parts = tuple(
            part.clone() if part.is_complex() else part.to(self._like.dtype, copy=True) for part in self._state
        )
        return parts if len(parts) > 1 else parts[0]

    @state.setter
    def state(self, value: Tensor | State) -> None:
        parts = (value,) if isinstance(value, Tensor) else tuple(value)
        if len(parts) != len(self._start):
            raise ValueError(
                f"state has {len(parts)} tensors; this unit has {len(self._start)}. Pass state in the format of h_n"
            )
        for part, own in zip(parts, self._start, strict=True):
            require_shape("state", require_tensor("state", part), tuple(own.shape), "the format of h_n")
            if part.is_complex() != own.is_complex():
                raise TypeError(f"state is {part.dtype}; it must be {own.dtype}, as in h_n")
        self._state = tuple(part.detach().to(own, copy=True) for part, own in zip(parts, self._start, strict=True))

    def reset(self) -> None:
        self.state = self._start
