"""The stream of a Lipschitz layer: NumPy for a single series on a CPU, the layer's cells otherwise."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.validation import require_floating, require_shape, require_tensor
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.single import SIGMAS, Array, Step
from lipschitz_rnn.ops.lipschitz.substeps import substeps_of
from lipschitz_rnn.units.arguments import renamed, require_parameter_dtype
from lipschitz_rnn.units.lipschitz.autocast import result_dtype
from lipschitz_rnn.units.lipschitz.cell import LipschitzRNNCell
from lipschitz_rnn.units.stream import Stream

if TYPE_CHECKING:
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN


class LipschitzStream(Stream):
    """A copy of the layer that takes one time step per call.

    Under autocast or with 16-bit parameters only the output is rounded to 16 bits; the state stays in float32. A single
    series in float32 or float64 on a CPU runs on NumPy, whose calls cost a fraction of PyTorch's.
    """

    def __init__(self, layer: LipschitzRNN, batch_size: int | None = None) -> None:
        super().__init__(layer, batch_size)
        cells = [layer.cell(k) for k in range(layer.num_layers)]
        self._state_shape = (layer.num_layers, *self._batch, layer.hidden_size)
        plain = self._like.device.type == "cpu" and self._like.dtype in (torch.float32, torch.float64)
        kind = _ArrayUnit if plain and self.batch_size is None else _TensorUnit
        with torch.no_grad():
            self._units = [kind(cell) for cell in cells]
        for unit in self._units:  # a copied cell has its own record of warnings
            unit.cell._gaps.shared = cells[0]._gaps.shared
        self.reset()

    @renamed(2, x="input", dt="timespans")
    def __call__(self, input: Tensor, timespans: float | Tensor | None = None) -> Tensor:
        self.check_input(input)
        value: Any = self._units[0].take(input)
        for unit in self._units:
            value = unit(value, timespans)
        return self._units[-1].give(value)

    @property
    def state(self) -> Tensor:
        """A copy of the state, (layers, N) or (layers, B, N)."""
        return torch.stack([unit.state for unit in self._units])

    @state.setter
    def state(self, value: Tensor) -> None:
        require_shape("state", require_tensor("state", value), self._state_shape, "the format of h_n")
        require_parameter_dtype("state", value, self._like)
        for unit, own in zip(self._units, value.detach(), strict=True):
            unit.state = own

    def reset(self) -> None:
        """Set the state to zero, for the next series."""
        self.state = self._like.new_zeros(self._state_shape)


class _TensorUnit:
    """One layer, run by its cell."""

    def __init__(self, cell: LipschitzRNNCell) -> None:
        self.cell = copy.deepcopy(cell).requires_grad_(False)
        self.matrices = self.cell.hidden_matrices()
        self._state = cell.weight_ih.new_empty(0)

    @torch.no_grad()
    def __call__(self, x: Tensor, time: float | Tensor | None) -> Tensor:
        # Not rounded between steps, as in the layer.
        self._state = self.cell.advance(x, self._state, time, self.matrices)
        return self._state.to(result_dtype(self.cell.weight_ih))

    @property
    def state(self) -> Tensor:
        return self._state.to(self.cell.weight_ih.dtype, copy=True)

    @state.setter
    def state(self, h: Tensor) -> None:
        self._state = h.clone()

    def take(self, x: Tensor) -> Tensor:
        return x

    def give(self, h: Tensor) -> Tensor:
        return h.clone()  # the caller may write to it


class _ArrayUnit:
    """One layer on NumPy, in units of ε as in `ops.lipschitz.single`: g = h/ε, and a time s is s/ε steps."""

    def __init__(self, cell: LipschitzRNNCell) -> None:
        A, W = cell.hidden_matrices()
        self.cell = copy.deepcopy(cell).requires_grad_(False)  # later changes to the layer do not affect a stream
        self.unit, self.max_step = float(cell.step_size), cell.step_limit(cell.step_size)
        tableau = get_integrator(cell.integrator)
        scaled = torch.cat((A * (float(cell.alpha) * self.unit), W * self.unit)).numpy()
        self.step = Step(scaled, SIGMAS[cell.nonlinearity], tableau)
        self.dtype = cell.weight_ih.dtype
        self.U = cell.weight_ih.numpy().copy(order="F")
        self.b = None if cell.bias_ih is None else cell.bias_ih.numpy().copy()
        self.g, self.u = np.zeros(cell.hidden_size, scaled.dtype), np.empty(cell.hidden_size, scaled.dtype)
        self.values = [np.empty_like(self.u) for _ in tableau.weights]
        self.scale = scaled.dtype.type(self.unit)
        self.scaled = torch.from_numpy(scaled)

    def __call__(self, x: Array, time: float | Tensor | None) -> Array:
        seconds = self.unit if time is None else self._seconds(time)
        count = 1 if self.max_step is None else substeps_of(seconds, self.max_step)
        steps = seconds / self.unit / count
        with np.errstate(all="ignore"):  # an overflow shows in the result, as in PyTorch
            u = self.U.dot(x, self.u)
            if self.b is not None:
                np.add(u, self.b, u)
            for _ in range(count):
                np.copyto(self.g, self.step(self.g, u, steps, self.values))
            return self.g * self.scale

    def _seconds(self, time: float | Tensor) -> float:
        if isinstance(time, Tensor):
            require_floating("timespans", time)
            require_shape("timespans", time, (), "a single number, because the stream has no batch")
            time = float(time)
        seconds = self.cell.require_step(time)
        if seconds > self.unit:
            self.cell._gaps.check(self.cell, seconds, self._matrices)
        return seconds

    def _matrices(self) -> tuple[Tensor, Tensor]:
        """αA and W."""
        linear, W = (self.scaled / self.unit).chunk(2)
        return linear, W

    @property
    def state(self) -> Tensor:
        return torch.from_numpy(self.g * self.scale)

    @state.setter
    def state(self, h: Tensor) -> None:
        np.divide(h.resolve_neg().numpy(), self.scale, self.g)

    def take(self, x: Tensor) -> Array:
        array: Array = (
            (x if x.dtype is self.dtype else x.to(self.dtype)).detach().resolve_neg().numpy()
        )  # under autocast the dtype may differ
        return array

    def give(self, h: Array) -> Tensor:
        return torch.from_numpy(h).to(result_dtype(self.cell.weight_ih))
