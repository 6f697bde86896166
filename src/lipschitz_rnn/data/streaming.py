"""`model.stream()`: whole models on live data, one raw sample per call."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipschitz_rnn.data.columns import category_text
from lipschitz_rnn.data.errors import SeriesWarning, shown
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.odd_times import other_gaps
from lipschitz_rnn.data.spelling import position_in
from lipschitz_rnn.data.stepping import StepPreprocessing, initial_state, pack, require_streaming, unpack
from lipschitz_rnn.units.base import Recurrent

Sample = Sequence[float] | npt.NDArray[Any] | Tensor | Mapping[str, Any]
_ENOUGH_GAPS = 8  # times between samples from which a typical one is judged
Times = float | Sequence[float] | npt.NDArray[Any] | Tensor


class SeriesStream:
    """Whole models that take one sample per call: `stream(values, time)` gives the prediction up to this sample.

    It is a copy in evaluation mode: later changes to the models do not affect it. The prediction equals that of the
    models for the whole series up to here.

    It warns once (`SeriesWarning`) if the first times between samples are far from those of the training: they may be
    in another unit.
    """

    def __init__(
        self,
        models: Sequence[SeriesModel],
        combine: Callable[[Sequence[Tensor]], Tensor],
        batch_size: int | None = None,
    ) -> None:
        if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
            raise ValueError(f"batch_size is {batch_size!r}; it must be at least 1, or None for a single series")
        first = models[0]
        self.batch_size, self._rows = batch_size, batch_size or 1
        self._combine = combine
        self._device = next(first.head.parameters()).device
        self._step = StepPreprocessing(first.preprocessing)
        self._members = [_Member(model, batch_size) for model in models]
        self._timed: bool | None = None
        self._gaps: list[float] | None = []  # until there are enough of them to compare with those of the training
        self._memory = torch.empty(0)
        self.reset()

    def reset(self) -> None:
        """Forget everything, for the next series."""
        self._memory = torch.zeros(self._rows, self._step.size, dtype=torch.float64, device=self._device)
        self._timed = None
        for member in self._members:
            member.reset()

    @property
    def state(self) -> Tensor:
        """Everything that is remembered, (·,) or (B, ·) float64; can be set, e.g. to go on later. All zeros before the
        first sample. An exported step has the same state."""
        parts = [self._memory, *(member.state for member in self._members)]
        state = torch.cat(parts, -1)
        state = torch.where(self._memory[:, :1] > 0, state, 0.0)
        return state if self.batch_size is not None else state[0]

    @state.setter
    def state(self, value: Tensor) -> None:
        sizes = [self._step.size, *(member.size for member in self._members)]
        rows = (self._rows, sum(sizes))
        expected = rows if self.batch_size is not None else rows[1:]
        if tuple(value.shape) != expected:
            raise ValueError(f"state has shape {tuple(value.shape)}; it must be {expected}, as the stream gave it")
        memory, *packed = value.detach().to(self._device, torch.float64).reshape(rows).split(sizes, -1)
        started = memory[:, :1] > 0
        self._memory = memory.clone()
        self._timed = None
        for member, part in zip(self._members, packed, strict=True):
            member.set_state(part, started)

    @torch.no_grad()
    def __call__(self, values: Sample, time: Times | None = None, next_time: Times | None = None) -> Tensor:
        """The prediction up to this sample: (q,), or (B, q) for a batch, as the model gives it for whole series.

        Args:
            values: p raw values in the order of the model's columns, NaN where missing; (B, p) for a batch. Or, for a
                single series, a mapping of column names to values, with texts for categories and None for missing ones.
            time: in the unit of the training times, later than that of the sample before; one per series for a batch.
                None if the model was trained without times, or with regular ones.
            next_time: when the next sample is to be predicted, for a forecast that was trained on irregular times;
                None: one typical gap after this one.
        """
        x = self._values(values)
        when = self._time(time)
        then = None if next_time is None else self._next_time(next_time, when)
        inputs, spans, filled, after = self._step(x, when, self._memory, then)
        held = None
        if self._step.ahead and when is not None:
            started = self._memory[:, 0] > 0
            held = (*self._step.held(when, self._memory), started)
        outputs = [member(inputs, spans, filled, held) for member in self._members]
        self._memory = after
        result = self._combine(outputs)
        return result if self.batch_size is not None else result[0]

    def _values(self, values: Sample) -> Tensor:
        columns = self._step.preprocessing.columns
        if isinstance(values, Mapping):
            values = self._by_name(values)
        try:
            x = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"values are {shown(values)}; give {len(columns)} numbers ({', '.join(map(repr, columns))}), NaN where "
                "one is missing, or a mapping of column names to values"
            ) from error
        x = x.detach().to(self._device)
        x = x if x.is_floating_point() else x.double()
        expected = (self._rows, len(columns)) if self.batch_size is not None else (len(columns),)
        if tuple(x.shape) != expected:
            raise ValueError(
                f"values have shape {tuple(x.shape)}; they must be {expected}: {', '.join(map(repr, columns))}"
            )
        return x.reshape(self._rows, len(columns)).double()  # digits of a large offset survive

    def _by_name(self, values: Mapping[str, Any]) -> list[float]:
        fitted = self._step.preprocessing.fitted
        if self.batch_size is not None:
            raise ValueError("values by name are for a single series; pass a tensor (B, p) for a batch")
        if set(values) != set(fitted.columns):
            odd = sorted(set(values) ^ set(fitted.columns), key=str)[0]
            what = "is missing" if odd in fitted.columns else "is not a column of the model"
            raise ValueError(
                f"{odd!r} {what}; give a value, or None, for each of {', '.join(map(repr, fitted.columns))}"
            )
        found: list[float] = []
        for name in fitted.columns:
            value = values[name]
            text = category_text(value) if name in fitted.categories else None
            if value is None or (name in fitted.categories and text is None):
                found.append(math.nan)
            elif text is not None:  # as in a file: the number 1 is the category '1'
                table = {each: index for index, each in enumerate(fitted.categories[name])}
                place = position_in(table, text)
                found.append(-1.0 if place is None else float(place))
            else:
                try:
                    found.append(float(value))
                except (TypeError, ValueError):
                    raise ValueError(f"{name!r} is {shown(value)}; give a number, or None if it is missing") from None
        return found

    def _time(self, time: Times | None) -> Tensor | None:
        fitted, started = self._step.preprocessing.fitted, self._memory[:, 0] > 0
        if self._timed is not None and self._timed != (time is not None):
            raise ValueError("time was given for some samples of this stream and not for others; call reset() first")
        if time is None:
            if fitted.time_use != "ignored" and not fitted.regular:
                raise ValueError("time is None, but the model was trained with irregular times; pass the sample's time")
            self._timed = False
            return None
        if fitted.gap is None:
            raise ValueError(f"time is {shown(time)}, but the model was trained without times; leave it out")
        when = self._as_times("time", time)
        late = when <= self._memory[:, 1]
        bad = ~when.isfinite() | (started & late)
        if bool(bad.any()):
            row = int(bad.long().argmax())
            before = f"; the sample before was at {float(self._memory[row, 1]):.12g}" if bool(started[row]) else ""
            raise ValueError(f"time is {float(when[row]):.12g}{before}; times must be finite and increase")
        self._timed = True
        self._compare_gaps((when - self._memory[:, 1])[started])
        return when

    def _compare_gaps(self, gaps: Tensor) -> None:
        """Warn once if the first times between samples are far from those of the training."""
        if self._gaps is None:
            return
        self._gaps += gaps.tolist()
        if len(self._gaps) < _ENOUGH_GAPS:
            return
        odd = other_gaps(np.array(self._gaps), self._step.preprocessing.fitted, "this stream")
        self._gaps = None
        if odd is not None:
            warnings.warn(odd, SeriesWarning, stacklevel=4)

    def _next_time(self, time: Times, now: Tensor | None) -> Tensor:
        if now is None or not self._step.ahead:
            raise ValueError(
                f"next_time is {shown(time)}, but only forecasts that were trained on irregular times take it; leave "
                "it out"
            )
        then = self._as_times("next_time", time)
        bad = ~(then > now) | ~then.isfinite()
        if bool(bad.any()):
            row = int(bad.long().argmax())
            raise ValueError(
                f"next_time is {float(then[row]):.12g}, but time is {float(now[row]):.12g}; it must be later"
            )
        return then

    def _as_times(self, name: str, time: Times) -> Tensor:
        """(rows,) float64."""
        try:
            when = torch.as_tensor(time, dtype=torch.float64).to(self._device).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{name} is {shown(time)}; give numbers in the unit of the training times: seconds, if those were dates"
            ) from error
        if when.dim() == 0:
            when = when.expand(self._rows)
        if tuple(when.shape) != (self._rows,):
            raise ValueError(f"{name} has shape {tuple(when.shape)}; it must be one number, or ({self._rows},)")
        return when


class _Member:
    """One network of a stream: its unit's own stream, or, for any other module, the module with its state."""

    def __init__(self, model: SeriesModel, batch_size: int | None) -> None:
        require_streaming(model)
        self.start = initial_state(model)
        self.single, self.rows = batch_size is None, batch_size or 1
        self.size = int(pack(self.start).shape[-1])
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.stream = None
        if isinstance(self.model.unit, Recurrent):
            self.stream = self.model.unit.stream(batch_size)  # on NumPy for a single Lipschitz layer
        self.plain: Any = None

    def __call__(
        self,
        inputs: Tensor,
        spans: Tensor | None,
        filled: Tensor,
        held: tuple[Tensor, Tensor | None, Tensor] | None = None,
    ) -> Tensor:
        """`held`: inputs and timespans of the last sample, whose step comes first, and which rows had one; the step of
        this sample is then a preview that leaves the state alone."""
        if held is None:
            return self.model.read_step(self._advance(inputs, spans), filled)
        before = self.state
        self._advance(*held[:2])
        self.set_state(torch.where(held[2].unsqueeze(-1), self.state, before), torch.ones_like(held[2]).unsqueeze(-1))
        kept = self.state
        hidden = self._advance(inputs, spans)
        self.set_state(kept, torch.ones_like(held[2]).unsqueeze(-1))
        return self.model.read_step(hidden, filled)

    def _advance(self, inputs: Tensor, spans: Tensor | None) -> Tensor:
        """One step of the unit, (B, N)."""
        model = self.model
        if self.stream is None:
            hidden, self.plain = model.run_step(inputs, spans, self.plain)
            return hidden
        dtype = model.head_dtype
        x, times = inputs.to(dtype), None
        if spans is not None and model.takes_timespans:
            times = spans.to(dtype)
        if self.single:
            return self.stream(x[0], None if times is None else float(times)).unsqueeze(0)
        return self.stream(x, times)

    def reset(self) -> None:
        self.plain = None
        if self.stream is not None:
            self.stream.reset()

    @property
    def state(self) -> Tensor:
        if self.stream is not None:
            return pack(self._batched(self.stream.state))
        return pack([part.expand(-1, self.rows, -1) for part in self.start] if self.plain is None else self.plain)

    def set_state(self, packed: Tensor, started: Tensor) -> None:
        own = unpack(torch.where(started, packed, pack(self.start)), self.start)
        if self.stream is not None and self.single:
            own = tuple(part.squeeze(1) for part in own)
        state: Any = own if len(own) > 1 else own[0]
        if self.stream is not None:
            self.stream.state = state
        else:
            self.plain = state

    def _batched(self, state: Any) -> list[Tensor]:
        parts = [state] if isinstance(state, Tensor) else list(state)
        return [part.unsqueeze(1) for part in parts] if self.single else parts
