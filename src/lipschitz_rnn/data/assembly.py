"""Turns the columns of a long table into a `SeriesSet`: groups rows by series and checks the order of times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.clock import Clock
from lipschitz_rnn.data.columns import NameColumn, NumberColumn, TimeColumn
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.spelling import Spelled

SPLIT_NAMES = {"train": "train", "training": "train", "validation": "validation", "valid": "validation"}
_EXACT = 2.0**53  # whole numbers beyond it are not exact in float64
SPLIT_NAMES |= {"val": "validation", "test": "test"}


def assemble(
    ids: NameColumn | None,
    split: NameColumn | None,
    times: TimeColumn | None,
    features: Sequence[NumberColumn],
    targets: Sequence[NumberColumn],
    rows: int,
    *,
    sort: bool,
    source: str,
    word: str,
) -> SeriesSet:
    """The series in the order in which they first appear; `sort` sorts the samples of each by time."""
    codes, names = (np.zeros(rows, np.int64), np.array(["0"])) if ids is None else ids.finish()
    clock, when = Clock(), None
    if times is not None:
        when, clock = times.finish()
    order: npt.NDArray[np.int64] | None = None
    if sort and when is not None:
        order = np.lexsort((when, codes))
    elif bool((np.diff(codes) < 0).any()):  # samples of several series alternate
        order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(names))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    values = np.empty((rows, len(features)))
    categories = {}
    for index, column in enumerate(features):
        numbers, table = column.finish()
        values[:, index] = numbers if order is None else numbers[order]
        if table is not None:
            categories[column.name] = table
    goal, classes = _targets(targets, order)
    result = SeriesSet(
        values=values,
        offsets=offsets,
        ids=names,
        columns=tuple(column.name for column in features),
        times=when if when is None or order is None else when[order],
        targets=goal,
        spelled=_spelled(targets, order),
        target_level=None if goal is None else "sample",
        target_names=tuple(column.name for column in targets),
        classes=classes,
        categories=categories,
        clock=clock,
        rows=np.arange(rows) if order is None else order,
        source=source,
        row_word=word,
    )
    require_increasing(result, None if times is None else times.name)
    if split is None:
        return result
    return _with_splits(result, split, order)


def _targets(
    columns: Sequence[NumberColumn], order: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[Any] | None, tuple[str, ...] | None]:
    if not columns:
        return None, None
    parts = [column.finish(most=None) for column in columns]
    texts = [column.name for column, (_, table) in zip(columns, parts, strict=True) if table is not None]
    if texts and len(columns) > 1:
        raise SeriesError(f"the target {texts[0]!r} holds text, and there are {len(columns)} targets; give one target")
    stacked = np.stack([numbers for numbers, _ in parts], 1)
    stacked = stacked if order is None else stacked[order]
    classes = parts[0][1]
    if classes is None:
        return stacked, None
    return np.where(np.isnan(stacked[:, 0]), -1, stacked[:, 0]).astype(np.int64), classes


def _spelled(columns: Sequence[NumberColumn], order: npt.NDArray[np.int64] | None) -> Spelled | None:
    found = columns[0].spelled() if len(columns) == 1 else None
    return found if found is None or order is None else (found[0][order], found[1])


def require_increasing(series: SeriesSet, column: str | None) -> None:
    """Raise with the row of the first time that does not follow the one before it in its series."""
    times = series.times
    if times is None:
        return
    step = np.diff(times)
    step[series.offsets[1:-1] - 1] = np.inf  # from one series to the next
    if bool((step > 0).all()):
        return
    sample = int((~(step > 0)).argmax()) + 1
    now, before = series.clock.show(float(times[sample])), series.clock.show(float(times[sample - 1]))
    named = "times have" if column is None else f"column {column!r} has"
    several = "" if column is None else ", or add --series COLUMN (series= in Python) if they are of two series"
    if times[sample] == times[sample - 1]:
        if abs(times[sample]) >= _EXACT and series.clock.kind == "number":
            raise SeriesError(
                f"{named} about {now} at {series.where(sample - 1)} and at {series.where(sample)}; numbers as large as "
                "this are equal in float64 even if their last digits differ: subtract the first time from all, or "
                "write dates"
            )
        raise SeriesError(
            f"{named} {now} twice, at {series.where(sample - 1)} and at {series.where(sample)}; times of a series "
            f"must increase: keep one of the samples{several}"
        )
    fix = "sort the samples by time" if column is None else "sort the rows by time, or add --sort (sort=True in Python)"
    raise SeriesError(
        f"{named} {now} after {before} at {series.where(sample)}; times of a series must increase: {fix}"
        f"{several if len(series) == 1 else ''}"
    )


def _with_splits(series: SeriesSet, column: NameColumn, order: npt.NDArray[np.int64] | None) -> SeriesSet:
    from dataclasses import replace

    codes, names = column.finish()
    codes = codes if order is None else codes[order]
    unknown = [name for name in names.tolist() if name.strip().lower() not in SPLIT_NAMES]
    if unknown:
        sample = int((codes == names.tolist().index(unknown[0])).argmax())
        raise SeriesError(
            f"column {column.name!r} has {unknown[0]!r} at {series.where(sample)}; write train, validation or test"
        )
    first = codes[series.offsets[:-1]]
    other = codes != np.repeat(first, series.lengths)
    if other.any():
        raise SeriesError(
            f"column {column.name!r} has {names[codes[int(other.argmax())]]!r} at {series.where(int(other.argmax()))}, "
            "but another value before in the same series; a series belongs to one split"
        )
    known = np.array([SPLIT_NAMES[name.strip().lower()] for name in names.tolist()])
    return replace(series, splits=known[first])
