"""Predictions as a table with one row per series, sample or forecast step, and the table as a file."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipschitz_rnn.data.ensemble import Predictions
from lipschitz_rnn.data.errors import SeriesError, SeriesWarning
from lipschitz_rnn.data.odd_times import far_ahead
from lipschitz_rnn.data.prediction import as_trained
from lipschitz_rnn.data.saving import SavedModels
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.storage import atomic_write

ENDINGS = (".csv", ".parquet")
Columns = dict[str, npt.NDArray[Any]]


def prediction_table(
    saved: SavedModels,
    series: SeriesSet,
    *,
    id_name: str = "id",
    time_name: str = "time",
    horizon: int = 1,
    every: float | None = None,
    interval: float | None = None,
) -> Columns:
    """The columns of the table: what names a row, then `prediction` and what is known about it.

    classify, regress: a row per series. sequence: a row per sample, with its time. forecast: a row per series and step
    after its end, from 1 to `horizon`. Classes: `prediction` and `probability_CLASS`, the mean over the seeds. Numbers:
    `prediction`, the mean over the seeds, and `spread`, their standard deviation, if there are several seeds; with
    several targets, `prediction_NAME` and `spread_NAME`.

    Args:
        every: the time between the steps of a forecast, in the unit of the times; None: the typical gap of training.
        interval: add `lower` and `upper`, which contain the true number with this probability; see `Intervals`.
    """
    target = saved.target
    parts: list[Columns] = []
    steps_ahead = horizon if target.kind == "forecast" else 1
    widths = None if interval is None else saved.intervals.half_widths(interval, steps_ahead)
    if target.kind == "forecast":
        later = _later(saved, series, horizon, every)
        found = _forecast(saved, series, horizon, later)
        steps = np.tile(np.arange(1, horizon + 1), len(series))
        parts += [{id_name: np.repeat(series.ids, horizon)}, {"step": steps}]
        parts.append(_times(later, series, time_name))
    else:
        found = saved.predict(series)
        if target.readout == "last":
            parts.append({id_name: np.asarray(series.ids)})
        else:
            own = np.concatenate([np.arange(length) for length in series.lengths])
            parts.append({id_name: np.repeat(series.ids, series.lengths)})
            parts.append({"sample": own} if series.times is None else _times(series.times, series, time_name))
    table: Columns = {}
    for name, column in (item for part in (*parts, _results(found, widths)) for item in part.items()):
        if name in table:
            raise SeriesError(f"column {name!r} of {series.source} is also a column of the predictions; rename it")
        table[name] = column
    return table


def _results(found: Predictions, widths: npt.NDArray[np.float64] | None) -> Columns:
    """`widths`: (steps, targets), the halves of intervals."""
    mean, spread, target = found.mean, found.spread, found.target
    if target.classes is not None:
        each = {f"probability_{name}": mean[:, index] for index, name in enumerate(target.classes)}
        return {"prediction": found.labels} | each
    table: Columns = {}
    for index, name in enumerate(target.names):
        tail = f"_{name}" if len(target.names) > 1 else ""
        table[f"prediction{tail}"] = mean[:, index]
        if len(found.members) > 1:
            table[f"spread{tail}"] = spread[:, index]
        if widths is not None:
            half = np.tile(widths[:, index], len(mean) // len(widths))
            table[f"lower{tail}"], table[f"upper{tail}"] = mean[:, index] - half, mean[:, index] + half
    return table


def _forecast(
    saved: SavedModels, series: SeriesSet, horizon: int, later: npt.NDArray[np.float64] | None
) -> Predictions:
    """(seeds, series · horizon, q): every seed runs freely on its own predictions."""
    if horizon < 1:
        raise ValueError(f"horizon is {horizon}; it must be at least 1")
    fitting = as_trained(series, saved.models[0])
    use_times = saved.preprocessing.fitted.gap is not None
    members = []
    for model in saved.models:
        parts = []
        for start in range(0, len(fitting), 256):
            values, times, lengths = fitting[start : start + 256].padded()
            future = None if later is None else torch.from_numpy(later.reshape(-1, horizon)[start : start + 256])
            parts.append(model.free_run(values, times if use_times else None, lengths, horizon, future).double())
        members.append(torch.cat(parts).flatten(0, 1).numpy())
    return Predictions(np.stack(members), saved.target)


def _later(saved: SavedModels, series: SeriesSet, horizon: int, every: float | None) -> npt.NDArray[np.float64] | None:
    """The times of the steps of a forecast: one typical gap apart, or `every`."""
    gap = saved.preprocessing.fitted.gap
    if every is not None:
        if series.times is None or gap is None:
            raise ValueError(f"every is {every:g}, but the model or {series.source} has no times; leave it out")
        if not 0.0 < every < np.inf:
            raise ValueError(f"every is {every:g}; the time between forecasts must be a positive number")
        if saved.preprocessing.fitted.regular and abs(every / gap - 1.0) > 1e-3:
            raise ValueError(
                f"every is {every:g}, but the model was trained on samples {gap:.6g} apart and forecasts only such "
                "steps; leave it out"
            )
        odd = far_ahead(np.full(1, float(every)), saved.preprocessing.fitted)
        if odd is not None:
            warnings.warn(odd, SeriesWarning, stacklevel=3)
        gap = every
    if series.times is None or gap is None:
        return None
    last = series.times[series.offsets[1:] - 1]
    return np.asarray((last[:, None] + gap * np.arange(1, horizon + 1)).ravel())


def _times(times: npt.NDArray[np.float64] | None, series: SeriesSet, name: str) -> Columns:
    if times is None:
        return {}
    if series.clock.kind != "date":
        return {name: times}
    return {name: np.array([series.clock.show(time) for time in times.tolist()], dtype=object)}


def require_table_name(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"the output is {str(path)!r}; its name must end in {' or '.join(ENDINGS)}")


def write_table(path: Path, table: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a .csv or .parquet file, whole or not at all. Numbers are written so that they read back the same."""
    require_table_name(path)
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError(
                'a .parquet file needs pyarrow; write .csv, or install it: pip install "lipschitz-rnn[data]"'
            ) from error
        binary = io.BytesIO()
        plain = {name: pyarrow.array(column.tolist()) for name, column in table.items()}
        pyarrow.parquet.write_table(pyarrow.table(plain), binary)
        atomic_write(path, binary.getvalue())
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    atomic_write(path, text.getvalue().encode())
