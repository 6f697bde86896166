"""The errors of trained models on the validation or test part of their task, from which intervals are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipschitz_rnn.data.free_runs import future_times, joined_starts, run_on, start_inside
from lipschitz_rnn.data.intervals import Intervals
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.prediction import predict
from lipschitz_rnn.data.task import SeriesTask
from lipschitz_rnn.tasks.base import Split

Integers = npt.NDArray[np.int64]
_ORIGINS = 512  # free runs


def calibrate(models: Sequence[SeriesModel], task: SeriesTask, horizon: int = 1) -> Intervals | None:
    """Intervals from the errors of the models' mean on the validation part; None for classes, and for units that need
    the whole series."""
    if task.target.classes is not None or getattr(models[0].unit, "bidirectional", False):
        return None
    errors = errors_of(models, task, "validation", horizon)
    return Intervals.fit(errors, len(np.unique(task.windows["validation"].series)))


def errors_of(
    models: Sequence[SeriesModel], task: SeriesTask, split: Split, horizon: int = 1
) -> npt.NDArray[np.float64]:
    """(n, steps, targets): true minus predicted numbers; by step ahead for forecasts, else one step."""
    if task.kind == "forecast":
        return _forecast_errors(models, task, split, horizon)
    goals, found, _ = scored_predictions(models, task, split)
    errors: npt.NDArray[np.float64] = goals - np.mean(found, axis=0)
    return errors[:, np.newaxis]


def scored_predictions(
    models: Sequence[SeriesModel], task: SeriesTask, split: Split
) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]], npt.NDArray[Any]]:
    """The targets of a split, every model's predictions of them, and the series that each belongs to."""
    windows = task.windows[split]
    needed = np.unique(windows.series)
    part = task.series.select(needed)
    outputs = [predict(model, part) for model in models]
    position = np.searchsorted(needed, windows.series)
    if task.readout == "last":
        assert task.series.targets is not None
        return task.series.targets[windows.series], [each[position] for each in outputs], windows.series
    shift = part.offsets[position] - task.series.offsets[windows.series]
    rows = zip(windows.start, windows.start + windows.skip, windows.start + windows.length, strict=True)
    samples = [np.arange(low, high) for _, low, high in rows]
    flat = np.concatenate(samples)
    own = np.concatenate([rows + move for rows, move in zip(samples, shift, strict=True)])
    owners = np.repeat(windows.series, windows.length - windows.skip)
    if task.kind == "forecast":
        inside = flat + 1 < np.repeat(task.series.offsets[1:][windows.series], windows.length - windows.skip)
        flat, own, owners = flat[inside], own[inside], owners[inside]
        return task.series.values[flat + 1][:, list(task.target.columns)], [each[own] for each in outputs], owners
    assert task.series.targets is not None
    return task.series.targets[flat], [each[own] for each in outputs], owners


def _forecast_errors(
    models: Sequence[SeriesModel], task: SeriesTask, split: Split, horizon: int
) -> npt.NDArray[np.float64]:
    """Free runs from places spread over the scored part of every series, as far as that part goes."""
    owners, begins, ends = _origins(task, split)
    aheads = np.minimum(horizon, ends - begins)
    series, columns = task.series, list(task.target.columns)
    true = np.full((len(begins), horizon, len(columns)), np.nan)
    for row, (begin, ahead) in enumerate(zip(begins.tolist(), aheads.tolist(), strict=True)):
        true[row, :ahead] = series.values[begin : begin + ahead][:, columns]
    if len(begins) == 0:
        return true
    reached = int(aheads.max())  # beyond it nothing is known, however far forecasts are asked for
    total = np.zeros((len(begins), reached, len(columns)))
    for model in models:
        total += _runs(model, task, owners, begins, aheads, reached)
    true[:, :reached] -= total / len(models)
    return true


@torch.no_grad()
def _runs(
    model: SeriesModel, task: SeriesTask, owners: Integers, begins: Integers, aheads: Integers, horizon: int
) -> npt.NDArray[np.float64]:
    series = task.series
    device = next(model.parameters()).device
    timed = series.times is not None and model.preprocessing.fitted.gap is not None
    starts = []
    for owner in np.unique(owners).tolist():
        low, stops = int(series.offsets[owner]), begins[owners == owner]
        values = torch.from_numpy(series.values[low : int(stops[-1]) + 1].astype(np.float64)).to(device)
        times = None
        if timed and series.times is not None:
            times = torch.from_numpy(series.times[low : int(stops[-1]) + 1].copy()).to(device)
        starts.append(start_inside(model, values, times, (stops - low).tolist()))
    future = future_times(model, series, begins, aheads, horizon)
    found = run_on(model, joined_starts(starts), horizon, None if future is None else future.to(device))
    return found.double().cpu().numpy()


def _origins(task: SeriesTask, split: Split) -> tuple[Integers, Integers, Integers]:
    """The series, the flat position of the first sample to forecast, and where the part ends, of every free run."""
    windows, offsets = task.windows[split], task.series.offsets
    owners, begins, ends = [], [], []
    each = max(1, _ORIGINS // len(np.unique(windows.series)))
    for owner in np.unique(windows.series).tolist():
        own = windows.select(np.flatnonzero(windows.series == owner))
        low, high = int((own.start + own.skip).min()), int((own.start + own.length).max())
        if not task.by_time:  # the whole series is in the split: its first half is the past
            low = low + (high - low) // 2
        low = max(low, int(offsets[owner]) + 1)
        if low >= high:
            continue
        places = np.unique(np.linspace(low, high - 1, min(each, high - low)).astype(np.int64))
        owners += [owner] * len(places)
        begins += places.tolist()
        ends += [high] * len(places)
    return np.array(owners, np.int64), np.array(begins, np.int64), np.array(ends, np.int64)
