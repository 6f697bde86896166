"""`read`: one call for every kind of file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lipschitz_rnn.data.arrays import read_npz
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.tables import ROWS_PER_CHUNK, read_csv, read_parquet, require_file
from lipschitz_rnn.data.ts_format import read_ts

READERS = {".csv": read_csv, ".parquet": read_parquet, ".npz": read_npz, ".ts": read_ts}


def is_file_name(name: str) -> bool:
    """Whether an argument means a file of series: an existing file, or a name with a known ending."""
    try:
        return Path(name).suffix.lower() in READERS or Path(name).is_file()
    except (OSError, ValueError):
        return False


def read(
    path: str | os.PathLike[str],
    *,
    target: str | Sequence[str] | None = None,
    series: str | None = None,
    time: str | None = None,
    features: Sequence[str] | None = None,
    split: str | None = None,
    categories: Sequence[str] = (),
    sort: bool = False,
    rows_per_chunk: int = ROWS_PER_CHUNK,
) -> SeriesSet:
    """Read series from a .csv, .parquet, .npz or .ts file. The file is read once; tables are read in chunks.

    Args:
        target: the column to predict, or several columns of numbers. Whether it belongs to series or to samples is
            decided later, by the task.
        series: the column that names the series of a row. None: the whole table is one series.
        time: the column with the times: numbers, dates (without a time zone: UTC) or durations. They must increase
            within a series.
        features: the input columns; by default all others. Text columns become categories.
        split: a column with train, validation or test for every series.
        categories: columns of numbers that are categories all the same, e.g. codes.
        sort: sort the samples of each series by time.
        rows_per_chunk: how many rows of a table are held as text at a time.

    Raises:
        SeriesError: (a ValueError) with the row, column and value of the first mistake, and the fix.
    """
    place = require_file(path)
    reader = READERS.get(place.suffix.lower())
    if reader is None:
        raise SeriesError(f"{place.name} ends in {place.suffix!r}; give a file that ends in {', '.join(READERS)}")
    return reader(  # type: ignore[operator]
        place,
        target=target,
        series=series,
        time=time,
        features=features,
        split=split,
        categories=tuple(categories),
        sort=sort,
        rows_per_chunk=rows_per_chunk,
    )
