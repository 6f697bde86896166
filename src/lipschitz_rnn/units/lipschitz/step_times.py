"""The times that one step of a Lipschitz unit may take: read, checked, and compared with what it is proved for."""

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

_ROUNDED_UP = 1 + 1e-6  # times that are differences of timestamps come with rounding


class StepTimes(SettingsModule):
    """What the cell knows of time; its matrices and its step are in `LipschitzRNNCell`."""

    step_size: float
    max_step: float | None
    weight_ih: Tensor

    @property
    def contracting(self) -> bool:
        """Whether the matrices come with a proof, so that nothing may round them."""
        raise NotImplementedError

    def step_limit(self, times: float | Tensor) -> float | None:
        """The longest single step that may be taken of these times; None where any is.

        A contracting unit is proved for steps up to its own. It refuses longer ones unless it has a ``max_step``; a
        compiled or exported program, which sees no values and so cannot refuse, divides them instead.
        """
        if not self.contracting:
            return self.max_step
        # Sub-steps may exceed the limit by TOLERANCE, but not the proved step, beyond the rounding of its own number.
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
        """Raise where a contracting unit without max_step is not proved for a step of this time."""
        if self.max_step is None and self.contracting and time > self.step_size * _ROUNDED_UP:
            raise ValueError(
                f"timespans reaches {time:g}, but this contracting unit is proved for steps up to {self.step_size:g}; "
                f"build it with step_size at least the longest time between samples, or pass max_step="
                f"{self.step_size:g} to take longer times in several steps"
            )

    def without_rounding(self, times: Tensor) -> Tensor:
        """Times that rounding put just beyond the step of a contracting unit are cut to it; others stay."""
        if not self.contracting:
            return times
        times = times.to(held_dtype(self.weight_ih.dtype))
        if seen_values(times) is None:  # a traced program cannot refuse: a negative time gives NaN
            times = times.where(times >= 0, math.nan)
        return times.where(times > self.step_size * _ROUNDED_UP, times.clamp(max=self.step_size))

    def require_step(self, time: float) -> float:
        """A time that may be taken."""
        number = require_number("timespans", time, low=0.0)
        self.require_covered(number)
        rounded_up = self.contracting and number <= self.step_size * _ROUNDED_UP
        return min(number, self.step_size) if rounded_up else number

    def read_step(self, times: float | Tensor, x: Tensor, dtype: torch.dtype) -> float | Tensor:
        """The time of a step, checked: a number, or a tensor that broadcasts against the state."""
        if not isinstance(times, Tensor):
            if self.max_step is None or exporting() or not torch.compiler.is_compiling():
                return self.require_step(times)
            # A compiler may hold it as a symbol, which has no number of sub-steps; it follows a sum into a tensor.
            times = x.new_zeros((), dtype=dtype) + require_number("timespans", times, low=0.0)
        require_floating("timespans", times)
        if times.dim() > 0:
            require_shape("timespans", times, tuple(x.shape[:-1]), "one time for each sample, or a single number")
            require_device("timespans", times, "input", x)
        require_timespans(times)
        times = self.without_rounding(times)
        return times.to(dtype).unsqueeze(-1)
