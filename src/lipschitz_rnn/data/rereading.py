"""Reads a file for a trained model, the way its training file was read: the same columns, texts and kind of times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.reading import read
from lipschitz_rnn.data.saving import SavedModels
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.spelling import position_in


def read_for(
    saved: SavedModels,
    path: str | os.PathLike[str],
    *,
    series: str | None = None,
    time: str | None = None,
    sort: bool = False,
    ignore_unknown: bool = False,
) -> SeriesSet:
    """The series of a file with the columns of the model; other columns of the file are not read.

    Args:
        series, time: the columns; by default those of the training file, as `saved.extra["reading"]` has them.
        sort: sort the samples of each series by time.
        ignore_unknown: texts that the training data did not have count as missing; otherwise they raise.

    Raises:
        SeriesError: a column is missing, holds another kind of values, or a text is unknown; the message names it.
    """
    fitted = saved.preprocessing.fitted
    reading: Mapping[str, Any] = saved.extra.get("reading") or {}
    series, time = series or reading.get("series"), time or reading.get("time")
    columns: dict[str, Any] = {"features": fitted.columns, "categories": tuple(fitted.categories)}
    columns |= {"series": series, "time": time if fitted.gap is not None else None, "sort": sort}
    table = Path(path).suffix.lower() in (".csv", ".parquet")
    found = read(path, **columns if table else {})
    if not table and len(found.columns) > len(fitted.columns):  # arrays have no names by which to leave some out
        raise SeriesError(
            f"{found.source} has {len(found.columns)} channels, but the model was trained with {len(fitted.columns)}; "
            "give those in the order of training"
        )
    found = found.with_columns(fitted.columns)
    trained, now = reading.get("clock"), found.clock.kind
    if found.times is not None and trained is not None and (trained == "number") != (now == "number"):
        raise SeriesError(
            f"the times of {found.source} are {now}s, but the model was trained with {trained}s; write them that way"
        )
    if fitted.gap is not None and found.times is None and not (fitted.regular or fitted.time_use == "ignored"):
        raise SeriesError(f"the model needs times, but {found.source} has none; name their column with --time")
    return _known(found, fitted.categories, ignore_unknown)


def _known(found: SeriesSet, tables: Mapping[str, tuple[str, ...]], ignore_unknown: bool) -> SeriesSet:
    values = found.values
    for name, table in tables.items():
        if name not in found.categories:
            continue  # with_categories says what is wrong
        texts = found.categories[name]
        known = {text: index for index, text in enumerate(table)}
        unknown = [index for index, text in enumerate(texts) if position_in(known, text) is None]
        place = found.columns.index(name)
        codes = found.values[:, place]
        used = np.isin(codes, unknown)
        if used.any() and not ignore_unknown:
            sample = int(used.argmax())
            raise SeriesError(
                f"column {name!r} has {texts[int(codes[sample])]!r} at {found.where(sample)}, which the model does not "
                f"know; it knows {', '.join(map(repr, table[:20]))}{', …' if len(table) > 20 else ''}. Correct it, or "
                "count it as missing with --ignore-unknown"
            )
        values = np.where(used[:, None] & (np.arange(values.shape[1]) == place), np.nan, values)
    return replace(found, values=values)
