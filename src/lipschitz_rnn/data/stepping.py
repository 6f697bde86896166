"""One sample at a time: the step of preprocessing and of whole models, with everything they remember in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.data.ensemble import SeriesEnsemble
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.units.base import Recurrent
from lipschitz_rnn.units.lipschitz import LipschitzRNN, LipschitzRNNCell

_STARTED, _TIME, _VALUES = 0, 1, 2  # places in the memory


class StepPreprocessing(nn.Module):
    """`Preprocessing` for one sample. Its memory (B, `size`) is float64 and starts with zeros.

    The memory holds, for each series: whether there was a sample before, its time, the last value of every column,
    whether there was one, and the time since then of the columns with holes, in typical gaps. If the model looks ahead,
    the inputs of the last sample follow: how long its step is, is known only when the next sample comes.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        self.columns = len(preprocessing.columns)
        fitted = preprocessing.fitted
        self.flagged = list(fitted.holes) if fitted.missing in ("mask", "since") else []
        self.ahead = fitted.ahead
        self._held = preprocessing.output_size if fitted.ahead else 0
        self.size = _VALUES + 2 * self.columns + len(self.flagged) + self._held

    def forward(
        self, values: Tensor, times: Tensor | None, memory: Tensor, next_times: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """values: (B, p), times: (B,) float64 or None. Returns the inputs of the network (B, ·), the timespans (B,) or
        None, the values with holes filled by the last ones (B, p), and the memory after this sample.

        `next_times`: (B,), when the next sample is to be predicted, if the model looks ahead; None: one typical gap
        later.
        """
        module, fitted = self.preprocessing, self.preprocessing.fitted
        started = memory[:, _STARTED] > 0
        sizes = [self.columns, self.columns, len(self.flagged), self._held]
        before, had, since, _ = memory[:, _VALUES:].split(sizes, -1)
        seen = values.isfinite()
        last = torch.where(seen, values, before.to(values.dtype))
        had_any = seen | (had > 0)
        known = had_any if fitted.missing in ("forward", "since") else seen
        gaps = None
        if times is None:
            gaps = torch.ones_like(values[:, 0]) if fitted.time_use == "input" else None
        elif fitted.time_use != "ignored" or fitted.missing == "since":
            gap = (times - memory[:, _TIME]) / (fitted.gap or 1.0)
            gaps = torch.where(started, gap, 1.0).clamp(max=fitted.longest_gap)
        flags = None
        if self.flagged:
            chosen = torch.tensor(self.flagged, dtype=torch.int64, device=values.device)
            here = seen.index_select(-1, chosen)
            passed = torch.ones_like(memory[:, _TIME]) if gaps is None else gaps.double()
            since = torch.where(here, 0.0, since + torch.where(started, passed, 0.0).unsqueeze(-1))
            flags = (~here).to(values.dtype) if fitted.missing == "mask" else torch.log1p(since).to(values.dtype)
        if self.ahead and times is not None:
            gaps = torch.ones_like(times) if next_times is None else self._gap(times, next_times)
        inputs, spans = module.assemble(module.scaled(last, known), known, flags, gaps)
        now = torch.zeros_like(memory[:, _TIME]) if times is None else times.double()
        head = torch.stack((torch.ones_like(now), now), -1)
        filled = torch.where(had_any, last, module.center.to(values.dtype))
        held = inputs.double()[:, : self._held]
        after = torch.cat((head, torch.where(had_any, last, 0.0).double(), had_any.double(), since, held), -1)
        return inputs, spans, filled, after

    def held(self, times: Tensor, memory: Tensor) -> tuple[Tensor, Tensor | None]:
        """The inputs of the last sample and its timespan, now that the next one has come at `times`."""
        fitted, inputs = self.preprocessing.fitted, memory[:, memory.shape[-1] - self._held :]
        gaps = torch.where(memory[:, _STARTED] > 0, self._gap(memory[:, _TIME], times), 1.0)
        timed = torch.cat((inputs[:, :-1], torch.log1p(gaps).unsqueeze(-1)), -1)
        return timed, gaps * fitted.step_size if fitted.time_use == "step" else None

    def _gap(self, now: Tensor, then: Tensor) -> Tensor:
        fitted = self.preprocessing.fitted
        return ((then - now) / (fitted.gap or 1.0)).clamp(0.0, fitted.longest_gap)


def pack(state: Any) -> Tensor:
    """A unit's state, (layers, B, ·) each, as (B, ·) in float64."""
    parts = (state,) if isinstance(state, Tensor) else tuple(state)
    flat = [torch.view_as_real(part).flatten(2) if part.is_complex() else part for part in parts]
    return torch.cat([part.double().transpose(0, 1).flatten(1) for part in flat], -1)


def unpack(packed: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The opposite of `pack`: tensors with the layers, widths and dtypes of `like`."""
    sizes = [_width(part) for part in like]
    parts = []
    for part, flat in zip(like, packed.split(sizes, -1), strict=True):
        if part.is_complex():
            real = flat.reshape(packed.shape[0], part.shape[0], -1, 2).transpose(0, 1)
            parts.append(torch.view_as_complex(real.to(part.real.dtype).contiguous()))
        else:
            # A loop of an exported program does not accept a view.
            parts.append(flat.reshape(packed.shape[0], part.shape[0], -1).transpose(0, 1).to(part.dtype).contiguous())
    return tuple(parts)


def _width(part: Tensor) -> int:
    return part.shape[0] * part.shape[-1] * (2 if part.is_complex() else 1)


def initial_state(model: SeriesModel) -> tuple[Tensor, ...]:
    """The state of the model's unit before the first sample, (layers, 1, ·) each."""
    unit = model.unit
    with torch.no_grad():
        if isinstance(unit, Recurrent):
            return unit.initial_state(1)
        like = next(model.head.parameters())
        _, state = unit(like.new_zeros(1, 1, model.preprocessing.output_size))
    return tuple(torch.zeros_like(part) for part in ((state,) if isinstance(state, Tensor) else state))


def frozen_copy(model: SeriesModel) -> SeriesModel:
    """A copy for export: without gradients, and with the matrices of its unit formed once and stored.

    Exporters have no operators for some of what forms them, e.g. the linear solve of a contracting layer.
    """
    own = copy.deepcopy(model).eval().requires_grad_(False)
    with torch.no_grad():
        if isinstance(own.unit, Recurrent):
            own.unit.freeze()
        if isinstance(own.unit, LipschitzRNN):
            own.unit.parallel = None  # a program has no chunks
            for cell in own.unit.cells.values():
                assert isinstance(cell, LipschitzRNNCell)
                _store_matrices(cell)
    return own


def _store_matrices(cell: LipschitzRNNCell) -> None:
    for name, matrix in zip(("stored_A", "stored_W"), cell.hidden_matrices(), strict=True):
        cell.register_buffer(name, matrix.clone(), persistent=False)
    cell.hidden_matrices = lambda: (cell.stored_A, cell.stored_W)  # type: ignore[method-assign,assignment,return-value]


class StepModel(nn.Module):
    """One sample of each series through whole models: (values, times, state) to (prediction, state).

    It is a copy with the matrices of its units formed, for export to devices. The prediction is that of
    `SeriesEnsemble` for the series up to this sample. The state (B, `size`) is float64 and starts with zeros.
    """

    def __init__(self, models: Sequence[SeriesModel]) -> None:
        super().__init__()
        self.ensemble = SeriesEnsemble([frozen_copy(model) for model in models])
        self.step = StepPreprocessing(models[0].preprocessing)
        self._starts: list[list[str]] = []
        with torch.no_grad():
            for index, model in enumerate(self._models):
                require_streaming(model)
                self._starts.append([])
                for number, part in enumerate(initial_state(model)):
                    self._starts[-1].append(f"start_{index}_{number}")
                    self.register_buffer(self._starts[-1][-1], part.clone())
        self.sizes = [sum(_width(part) for part in self._start(index)) for index in range(len(self._starts))]
        self.size = self.step.size + sum(self.sizes)

    @property
    def _models(self) -> list[SeriesModel]:
        return [model for model in self.ensemble.models if isinstance(model, SeriesModel)]

    def _start(self, index: int) -> list[Tensor]:
        return [getattr(self, name) for name in self._starts[index]]

    def forward(
        self, values: Tensor, times: Tensor | None, state: Tensor, next_times: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        memory, *packed = state.split([self.step.size, *self.sizes], -1)
        inputs, spans, filled, after = self.step(values, times, memory, next_times)
        held = self.step.held(times, memory) if self.step.ahead and times is not None else None
        started = memory[:, _STARTED : _STARTED + 1] > 0
        outputs, states = [], [after]
        for index, model in enumerate(self._models):
            start = self._start(index)
            kept = torch.where(started, packed[index], pack(start))
            if held is not None:  # first the step of the last sample, whose length is known now
                _, last = model.run_step(*held, _state(unpack(kept, start)))
                kept = torch.where(started, pack(last), kept)
            hidden, last = model.run_step(inputs, spans, _state(unpack(kept, start)))
            outputs.append(model.read_step(hidden, filled))
            states.append(pack(last) if held is None else kept)
        return self.ensemble.combine(outputs), torch.cat(states, -1)


def _state(parts: tuple[Tensor, ...]) -> Any:
    """As units take it: one tensor, or several."""
    return parts if len(parts) > 1 else parts[0]


def require_streaming(model: SeriesModel) -> None:
    """Raise for a unit that needs the whole series."""
    if getattr(model.unit, "bidirectional", False):
        raise ValueError("the unit is bidirectional and needs the whole series; a stream cannot run backwards")
