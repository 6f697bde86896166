"""Long-format tables, one row a sample: CSV, Parquet and DataFrames, read once, in chunks."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from lipschitz_rnn.data.assembly import assemble
from lipschitz_rnn.data.columns import NameColumn, NumberColumn, TimeColumn
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet

ROWS_PER_CHUNK = 200_000
_TAIL = 1 << 16  # bytes at the end of a file that are checked
_CELLS = (
    "every row needs as many cells as the first line has names: put texts that contain the delimiter in quotes, and "
    "write decimals with a point"
)
_DELIMITERS = (",", ";", "\t", "|")
_QUOTED = re.compile(r'"[^"]*"')  # names may hold delimiters
_NO_HEADER = re.compile(r"sep=.?|#[^,;\t|]*")  # what spreadsheets and instruments write above the names


def from_frame(
    frame: Any,
    *,
    target: str | Sequence[str] | None = None,
    series: str | None = None,
    time: str | None = None,
    features: Sequence[str] | None = None,
    split: str | None = None,
    categories: Sequence[str] = (),
    sort: bool = False,
    source: str = "the DataFrame",
) -> SeriesSet:
    """Series from a pandas DataFrame in long format; the arguments are those of `read`. Levels of the index that
    `series` or `time` name are columns too."""
    pd = _require_pandas()
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"the table is a {type(frame).__name__}; give a pandas DataFrame, or arrays to from_arrays")
    levels = [name for name in (series, time) if name is not None and name in frame.index.names]
    frame = frame.reset_index(levels) if levels else frame
    layout = _Layout([str(name) for name in frame.columns], target, series, time, features, split, categories, source)
    named = frame.set_axis([str(name) for name in frame.columns], axis=1)
    return layout.read([named], sort, "row")


def read_csv(path: Path, *, sort: bool = False, rows_per_chunk: int = ROWS_PER_CHUNK, **columns: Any) -> SeriesSet:
    """Series from a CSV file; the delimiter is the most frequent of comma, semicolon, tab and bar outside the quotes
    of the header."""
    pd = _require_pandas()
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = _header(file, path)
            delimiter = max(_DELIMITERS, key=_QUOTED.sub("", header).count)
            names = [name.strip() for name in next(csv.reader(header.splitlines(True), delimiter=delimiter), [])]
            layout = _Layout(names, source=path.name, **columns)
            _require_whole_end(path, delimiter, len(names))
            decimal = "," if delimiter == ";" else "."
            # All columns are read, and those not needed dropped: with a choice of columns pandas would not see rows
            # that have too many cells.
            chunks = pd.read_csv(
                file,
                sep=delimiter,
                header=None,
                names=range(len(names)),
                dtype={names.index(name): str for name in layout.texts},
                chunksize=rows_per_chunk,
                skipinitialspace=True,
                low_memory=False,
                decimal=decimal,
                skip_blank_lines=False,
            )
            checked = _without_blank_lines(chunks, path, delimiter) if len(names) > 1 else chunks
            named = (_named(chunk, names, layout.used, path, rows_per_chunk) for chunk in checked)
            if decimal == ",":
                features = [name for name in layout.features if name not in layout.categories]
                named = (_with_points(chunk, [*features, *layout.targets]) for chunk in named)
            return layout.read(named, sort, "line")
    except UnicodeDecodeError as error:
        raise SeriesError(f"{path.name} is not text in UTF-8: {error}; save it as CSV in UTF-8") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as error:
        told = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if told is None:
            raise SeriesError(f"{path.name} cannot be read as CSV: {error}; {_CELLS}") from error
        allowed, line, found = (int(number) for number in told.groups())
        raise SeriesError(f"line {line + 1} of {path.name} has {found} cells, not {allowed}; {_CELLS}") from error


def _header(file: IO[str], path: Path) -> str:
    """The first line, with those that a quoted name with line breaks continues on."""
    header = file.readline()
    if not header.strip():
        raise SeriesError(f"{path.name} {'begins with an empty line' if header else 'is empty'}; the first line names "
                          "the columns")  # fmt: skip
    if _NO_HEADER.fullmatch(header.strip()):
        raise SeriesError(
            f"{path.name} begins with {header.strip()!r}; remove the lines above the names of the columns"
        )
    while header.count('"') % 2 and (more := file.readline()):
        header += more
    return header


def _require_whole_end(path: Path, delimiter: str, cells: int) -> None:
    """Raise if the file stops within a row, as a full disk or a broken download leaves it: its last number may be cut.

    Short rows above are no such sign: spreadsheets leave out empty cells at the end of a row.
    """
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL))
        _, end, last = file.read().replace(b"\r", b"\n").rpartition(b"\n")
    found = last.count(delimiter.encode()) + 1
    if end and last.strip() and b'"' not in last and found < cells:  # a quoted text may hold line breaks
        raise SeriesError(
            f"{path.name} stops within its last row: {last.decode(errors='replace')!r} has {found} cells, not {cells}, "
            "and no line break; copy or download the file again, or complete that row"
        )


def _without_blank_lines(chunks: Iterable[Any], path: Path, delimiter: str) -> Iterator[Any]:
    """The chunks; raises if a blank line stands between rows, which pandas reads as a row of empty cells.

    Only delimiters tell it from a sample whose values are all missing, so that the file itself must be looked at.
    """
    checked = False
    for chunk in chunks:
        if not checked and chunk.isna().all(axis=1).any():
            checked, blank = True, None
            with open(path, encoding="utf-8-sig", newline="") as file:
                rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
                for number, cells in enumerate(rows, start=1):
                    if not any(cells[:1]) and len(cells) <= 1:
                        blank = blank or number
                    elif blank is not None:
                        raise SeriesError(
                            f"line {blank} of {path.name} is blank; remove it, or write its delimiters if it is a "
                            "sample whose values are all missing"
                        )
        yield chunk


def _named(chunk: Any, names: Sequence[str], used: Sequence[str], path: Path, rows_per_chunk: int) -> Any:
    """The used columns of a chunk under their names."""
    import pandas as pd

    if not isinstance(chunk.index, pd.RangeIndex):  # more cells than names in the first row: pandas makes an index
        raise SeriesError(f"line 2 of {path.name} has more than {len(names)} cells; {_CELLS}")
    if len(chunk) < rows_per_chunk and len(names) > 1:  # blank lines at the end of the file
        filled = chunk.notna().any(axis=1).to_numpy()
        chunk = chunk.iloc[: len(filled) - int(filled[::-1].argmax()) if filled.any() else 0]
    place = {name: index for index, name in enumerate(names)}  # those that are used occur once
    return chunk[[place[name] for name in used]].set_axis(list(used), axis=1)


def _with_points(chunk: Any, columns: Sequence[str]) -> Any:
    """Numbers with a decimal comma in columns that were read as text, with a point.

    A column with decimal points too is left as it is: what is meant by 1.234 is not known.
    """
    import pandas as pd

    for name in columns:
        texts = chunk[name]
        if pd.api.types.is_numeric_dtype(texts):  # also bool
            continue
        pointed = texts.str.replace(",", ".", regex=False)
        number = pd.to_numeric(pointed, errors="coerce").notna()
        written = texts[number]
        if not all(written.str.contains(mark, regex=False).any() for mark in ",."):
            chunk[name] = pointed.where(number, texts)
    return chunk


def read_parquet(path: Path, *, sort: bool = False, rows_per_chunk: int = ROWS_PER_CHUNK, **columns: Any) -> SeriesSet:
    """Series from a Parquet file."""
    _require_pandas()
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            layout = _Layout(names, source=path.name, **columns)
            batches = file.iter_batches(rows_per_chunk, columns=list(layout.used))
            return layout.read((batch.to_pandas(ignore_metadata=True) for batch in batches), sort, "row")
    except pyarrow.ArrowInvalid as error:
        raise SeriesError(f"{path.name} cannot be read as Parquet: {error}; write it again") from error


class _Layout:
    """Which column plays which part, checked against the names in the file."""

    def __init__(
        self,
        names: Sequence[str],
        target: str | Sequence[str] | None = None,
        series: str | None = None,
        time: str | None = None,
        features: Sequence[str] | None = None,
        split: str | None = None,
        categories: Sequence[str] = (),
        source: str = "the data",
    ) -> None:
        series, time, split = (None if name is None else str(name) for name in (series, time, split))
        self.source, self.series, self.time, self.split = source, series, time, split
        self.targets = _names(() if target is None else target)
        self.categories = _names(categories)
        repeated = {name for name, count in Counter(names).items() if count > 1}
        parts = [name for name in (series, time, *self.targets, split) if name is not None]
        # A column without a name is the index that pandas writes: row numbers, which would give classes away.
        others = [name for name in names if name and name not in parts]
        self.features = tuple(others) if features is None else _names(features)
        self.used = list(dict.fromkeys([*parts, *self.features]))
        # Read as they are written: names, and labels and categories such as 01.
        self.texts = {name for name in (series, split, *self.targets, *self.categories) if name is not None}
        hint = "; commas, semicolons, tabs or bars separate columns" if len(names) == 1 else ""
        known = set(names)
        for name in (*self.used, *self.categories):
            if name not in known:
                raise SeriesError(
                    f"{source} has no column {name!r}; it has {', '.join(map(repr, names)) or 'none'}. "
                    f"Correct the name in the command, or in the first line of the file{hint}"
                )
            if name in repeated:
                raise SeriesError(f"{source} has several columns {name!r}; give each its own name")
        named = [*parts, *self.features]
        if len(set(named)) != len(named):
            name = next(name for name in named if named.count(name) > 1)
            raise SeriesError(f"column {name!r} is named twice (as series, time, target or feature); name it once")
        if not self.features:
            beside = f" besides {', '.join(map(repr, parts))}" if parts else ""
            raise SeriesError(f"{source} has no feature column{beside}; add one")

    def read(self, chunks: Iterable[Any], sort: bool, word: str) -> SeriesSet:
        def place(row: int) -> str:
            return f"{word} {row + (2 if word == 'line' else 1)} of {self.source}"

        ids = None if self.series is None else NameColumn(self.series, place)
        split = None if self.split is None else NameColumn(self.split, place)
        times = None if self.time is None else TimeColumn(self.time, place)
        features = [NumberColumn(name, place, name in self.categories) for name in self.features]
        targets = [NumberColumn(name, place, name in self.categories, labels=True) for name in self.targets]
        collectors = [column for column in (ids, split, times, *features, *targets) if column is not None]
        rows = 0
        for chunk in _not_empty(chunks):
            for column in collectors:
                column.add(chunk[column.name].reset_index(drop=True), rows)
            rows += len(chunk)
        if rows == 0:
            raise SeriesError(f"{self.source} has no rows below its header; add at least one sample")
        return assemble(ids, split, times, features, targets, rows, sort=sort, source=self.source, word=word)


def _names(given: Any) -> tuple[str, ...]:
    """Names of columns as texts; one may be given alone. Columns of a DataFrame may have numbers for names."""
    return (str(given),) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(map(str, given))


def _not_empty(chunks: Iterable[Any]) -> Iterator[Any]:
    return (chunk for chunk in chunks if len(chunk))


def _require_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "tables need pandas and pyarrow; install them with: pip install lipschitz-rnn[data]"
        ) from error
    return pandas


def require_file(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    if not place.is_file():
        if place.exists():
            raise SeriesError(f"{place} is {'a folder' if place.is_dir() else 'a device'}, not a file; check the path")
        raise SeriesError(f"there is no file {place}; check the path")
    return place
