"""Free runs: forecasts that are fed back, from the end of series or from places inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipschitz_rnn.data.series import SeriesSet

if TYPE_CHECKING:
    from lipschitz_rnn.data.model import SeriesModel


@dataclass(frozen=True)
class Start:
    """Where free runs begin: after the last sample that is known, one row a run."""

    hidden: Tensor
    """(B, N): the output of the unit, from which the first forecast is read."""
    state: Any
    current: Tensor
    """(B, 1, p): the raw values of the last sample, holes filled."""
    now: Tensor | None
    """(B, 1): its time; None for a model without times."""


def require_forecast(model: SeriesModel) -> None:
    if model.target.kind != "forecast":
        raise ValueError(f"this model's task is {model.target.kind!r}; a free run needs a forecast model")


def start_at_ends(
    model: SeriesModel, values: Tensor, times: Tensor | None, lengths: Tensor | None, first: Tensor | None
) -> Start:
    """After the end of every series. `first`: (B,), when the first sample is to be predicted; None: one typical gap
    later."""
    ends = torch.full((len(values),), values.shape[1], device=values.device) if lengths is None else lengths
    inputs, spans = model.preprocessing(values, times, ends, first)
    here = (ends - 1).view(-1, 1, 1)
    current = model.preprocessing.last_seen(values, ends).gather(1, here.expand(-1, 1, values.shape[-1]))
    now = None if times is None else times.gather(1, here.squeeze(-1))
    order, outputs, states = [], [], []
    for steps in ends.unique().tolist():  # a unit gives its state after the last step only
        rows = (ends == steps).nonzero().flatten()
        hidden, state = model.run(inputs[rows, :steps], None if spans is None else spans[rows, :steps], None)
        order.append(rows)
        outputs.append(hidden[-1])
        states.append(state)
    place = torch.cat(order).argsort()
    return Start(torch.cat(outputs)[place], _rows(_joined(states), place), current, now)


def start_inside(model: SeriesModel, values: Tensor, times: Tensor | None, known: Sequence[int]) -> Start:
    """After the first k samples of one series (T, p), for every k in `known`, which increase: one pass over it."""
    inputs, spans = model.preprocessing(values.unsqueeze(0), None if times is None else times.unsqueeze(0))
    filled = model.preprocessing.last_seen(values.unsqueeze(0))[0]
    outputs, states, state, before = [], [], None, 0
    for stop in known:
        part = None if spans is None else spans[:, before:stop]
        hidden, state = model.run(inputs[:, before:stop], part, state)
        outputs.append(hidden[-1])
        states.append(state)
        before = stop
    last = torch.tensor(known, device=values.device) - 1
    now = None if times is None else times[last].unsqueeze(-1)
    return Start(torch.cat(outputs), _joined(states), filled[last].unsqueeze(1), now)


def joined_starts(starts: Sequence[Start]) -> Start:
    """Starts of several series as one batch."""
    now = None if starts[0].now is None else torch.cat([start.now for start in starts if start.now is not None])
    hidden, current = (torch.cat([getattr(start, name) for start in starts]) for name in ("hidden", "current"))
    return Start(hidden, _joined([start.state for start in starts]), current, now)


def run_on(model: SeriesModel, start: Start, horizon: int, future: Tensor | None = None) -> Tensor:
    """(B, horizon, q): the forecasts, each fed back as the next sample. Columns that are not forecast keep their last
    value.

    Args:
        future: (B, horizon), the times of the forecasts, the first of which is that of `start`; None: one typical gap
            apart.
    """
    fitted = model.preprocessing.fitted
    columns = list(model.target.columns)
    hidden, state, current, now = start.hidden, start.state, start.current, start.now
    if now is None or fitted.gap is None:
        now = future = None
    elif future is None:
        future = now + fitted.gap * torch.arange(1, horizon + 1, device=now.device)
    found = []
    for step in range(horizon):
        predicted = model.finish(model.head(hidden).unsqueeze(1), current[..., columns], current.dtype)
        found.append(predicted)
        if step + 1 == horizon:
            break
        following = current.clone()
        following[..., columns] = predicted.to(current.dtype)
        pair = after = None
        if now is not None and future is not None:
            later, after = future[:, step : step + 1], future[:, step + 1]
            pair, now = torch.cat((now, later), 1), later
        inputs, spans = model.preprocessing(torch.cat((current, following), 1), pair, None, after)
        outputs, state = model.run(inputs[:, 1:], None if spans is None else spans[:, 1:], state)
        hidden, current = outputs[-1], following
    return torch.cat(found, 1)


def check_future(future: Tensor, times: Tensor | None, lengths: Tensor | None, rows: int, horizon: int) -> None:
    """Raise unless the future times (rows, horizon) are finite, increase, and follow the end of each series."""
    if times is None:
        raise ValueError("future times are given, but the series have no times; give both, or neither")
    if tuple(future.shape) != (rows, horizon):
        raise ValueError(f"future times have shape {tuple(future.shape)}; they must be {(rows, horizon)}")
    last = times[:, -1:] if lengths is None else times.gather(1, (lengths - 1).unsqueeze(-1))
    whole = torch.cat((last, future), 1)
    bad = ~(whole[:, 1:] > whole[:, :-1]) | ~whole[:, 1:].isfinite()
    if bool(bad.any()):
        row, step = bad.nonzero()[0].tolist()
        raise ValueError(
            f"future time {step + 1} of series {row} is {float(future[row, step]):.12g}, after "
            f"{float(whole[row, step]):.12g}; future times must be finite and increase from the end of the series on"
        )


def future_times(
    model: SeriesModel,
    series: SeriesSet,
    begins: npt.NDArray[np.int64],
    aheads: npt.NDArray[np.int64],
    horizon: int,
) -> Tensor | None:
    """(runs, horizon): when the samples came that runs forecast, from the flat positions `begins` on; typical gaps
    after the `aheads` of them that are there. None for a model that does not look ahead."""
    gap = model.preprocessing.fitted.gap
    if not model.preprocessing.fitted.ahead or series.times is None or gap is None:
        return None
    found = np.empty((len(begins), horizon))
    for row, (begin, ahead) in enumerate(zip(begins.tolist(), aheads.tolist(), strict=True)):
        found[row, :ahead] = series.times[begin : begin + ahead]
        found[row, ahead:] = series.times[begin + ahead - 1] + gap * np.arange(1, horizon - ahead + 1)
    return torch.from_numpy(found)


def _joined(states: Sequence[Any]) -> Any:
    """States with their rows on axis 1 as one."""
    if isinstance(states[0], Tensor):
        return torch.cat(list(states), 1)
    return tuple(torch.cat(each, 1) for each in zip(*states, strict=True))


def _rows(state: Any, order: Tensor) -> Any:
    return state[:, order] if isinstance(state, Tensor) else tuple(part[:, order] for part in state)
