"""Step lengths of a Lipschitz unit: reading, checking, and comparing them with the proved range."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.common.validation import (
    require_device,
    require_floating,
    require_number,
    require_shape,
    require_timespans,
    seen_values,
)
from lipschitz_rnn.ops.lipschitz.substeps import TOLERANCE
from lipschitz_rnn.units.lipschitz.rounding import held_dtype
from lipschitz_rnn.units.lipschitz.settings import SettingsModule

_ROUNDED_UP = 1 + 1e-6  # differences of timestamps have rounding errors


class StepTimes(SettingsModule):
    """The part of `LipschitzRNNCell` that handles step lengths."""

    step_size: float
    max_step: float | None
    weight_ih: Tensor

    @property
    def contracting(self) -> bool:
        """Whether the matrices are proved to contract, so that they must not be rounded."""
        raise NotImplementedError

    def step_limit(self, times: float | Tensor) -> float | None:
        """The longest single step allowed for these times; None if there is no limit.

        A contracting unit is proved for steps up to its ``step_size``. It raises for longer ones unless it has a
        ``max_step``. A compiled or exported program cannot read values and thus cannot raise; it splits them instead.
        """
        if not self.contracting:
            return self.max_step
        # Sub-steps may exceed the limit by TOLERANCE, but must not exceed the proved step by more than its rounding.
        slack = max(0.75 * torch.finfo(held_dtype(self.weight_ih.dtype)).eps, 1e-12)
        proved = self.step_size * (1 - TOLERANCE) * (1 + slack)
        if self.max_step is not None:
            return min(self.max_step, proved)
        if isinstance(times, Tensor):
            values = seen_values(times)
            if values is None:
                return proved
            times = float(values.max()) if values.numel() > 0 else 0.0
        self.require_covered(times)
        return None

    def require_covered(self, time: float) -> None:
        """Raise if a contracting unit without max_step is not proved for a step of this length."""
        if self.max_step is None and self.contracting and time > self.step_size * _ROUNDED_UP:
            raise ValueError(
                f"timespans reaches {time:g}, but this contracting unit is proved for steps up to {self.step_size:g}; "
                f"build it with a step_size of at least the longest time between samples, or pass max_step="
                f"{self.step_size:g} to split longer times into several steps"
            )

    def without_rounding(self, times: Tensor) -> Tensor:
        """Clip times that exceed the step of a contracting unit only by rounding; leave others unchanged."""
        if seen_values(times) is None:  # a traced program cannot raise: make negative times NaN
            times = times.where(times >= 0, math.nan)
        if not self.contracting:
            return times
        # Of 16 bits the step itself may be rounded up.
        rounded_up = max(_ROUNDED_UP, 1 + torch.finfo(times.dtype).eps)
        times = times.to(held_dtype(self.weight_ih.dtype))
        return times.where(times > self.step_size * rounded_up, times.clamp(max=self.step_size))

    def require_step(self, time: float) -> float:
        """The length of a step, checked."""
        number = require_number("timespans", time, low=0.0)
        self.require_covered(number)
        rounded_up = self.contracting and number <= self.step_size * _ROUNDED_UP
        return min(number, self.step_size) if rounded_up else number

    def read_step(self, times: float | Tensor, x: Tensor, dtype: torch.dtype) -> float | Tensor:
        """The length of a step, checked: a number, or a tensor that broadcasts against the state."""
        if not isinstance(times, Tensor):
            if self.max_step is None or exporting() or not torch.compiler.is_compiling():
                return self.require_step(times)
            # The compiler may make it symbolic, without a number of sub-steps; adding it to a tensor keeps it traced.
            times = x.new_zeros((), dtype=dtype) + require_number("timespans", times, low=0.0)
        require_floating("timespans", times)
        if times.dim() > 0:
            require_shape("timespans", times, tuple(x.shape[:-1]), "one time per sample, or a single number")
            require_device("timespans", times, "input", x)
        require_timespans(times)
        times = self.without_rounding(times)
        return times.to(dtype).unsqueeze(-1)
