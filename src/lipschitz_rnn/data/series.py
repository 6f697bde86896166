"""`SeriesSet`: many series of different lengths in flat arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipschitz_rnn.data.clock import Clock
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.spelling import Spelled, position_in

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SeriesSet:
    """n series with `total` samples of p features, one after another in flat arrays.

    Series i has the samples `offsets[i]` to `offsets[i + 1]`. Every series has at least one sample, and its times
    increase strictly. A missing value is NaN. A text column is stored as numbers: positions in its table in
    `categories`, and -1 for a text that is not in the table. Build sets with `lipschitz_rnn.data.read`, `from_frame`
    or `from_arrays`, which check all this.
    """

    values: Floats
    """(total, p), float32 or float64."""
    offsets: Integers
    """(n + 1,), from 0 to total."""
    ids: npt.NDArray[Any]
    """(n,) text."""
    columns: tuple[str, ...]
    """p names."""
    times: npt.NDArray[np.float64] | None = None
    """(total,): numbers of the file, or seconds since `clock.origin` if they are dates or durations."""
    targets: npt.NDArray[Any] | None = None
    """Numbers (·, q) in float64 with NaN for missing ones, or int64 positions (·,) in `classes`, -1 if missing."""
    target_level: Literal["series", "sample"] | None = None
    """Whether the first axis of `targets` counts series or samples."""
    target_names: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    """The labels, if the target is text or `as_classes` was called."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column name -> its texts, for text columns."""
    spelled: Spelled | None = None
    """Targets that are numbers as their file writes them, for the names of classes, if the numbers do not tell."""
    splits: npt.NDArray[Any] | None = None
    """(n,) "train", "validation" or "test", if a column gave them."""
    clock: Clock = field(default_factory=Clock)
    rows: Integers | None = None
    """(total,): where each sample was in its file, counted from 0."""
    source: str = "the data"
    row_word: str = "row"
    """How the file counts: "line" for CSV, where the first sample is on line 2."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def fingerprint(self) -> str:
        """A checksum of all values, times, targets and names: other data, or another order of series, have another."""
        digest = hashlib.sha256()
        for part in (self.values, self.offsets, self.times, self.targets):
            digest.update(b"-" if part is None else np.ascontiguousarray(part).data)
        names = [self.ids.tolist(), self.columns, self.classes, self.categories]
        splits = None if self.splits is None else self.splits.tolist()
        digest.update(json.dumps([*names, splits], sort_keys=True).encode())
        return digest.hexdigest()

    @property
    def total(self) -> int:
        return int(self.offsets[-1])

    @property
    def lengths(self) -> Integers:
        """(n,): samples of each series."""
        return np.diff(self.offsets)

    @property
    def gaps(self) -> npt.NDArray[np.float64]:
        """The times between samples of the same series, of all series one after another; none without times."""
        if self.times is None:
            return np.empty(0)
        inside = np.ones(max(self.total - 1, 0), dtype=bool)
        inside[self.offsets[1:-1] - 1] = False
        return np.diff(self.times)[inside]

    def __getitem__(self, part: slice) -> SeriesSet:
        """A range of series, as views."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            return self.select(np.arange(start, stop, step))
        return self._cut(slice(start, max(start, stop)), slice(self.offsets[start], self.offsets[max(start, stop)]))

    def select(self, indices: npt.ArrayLike) -> SeriesSet:
        """The series at `indices`, in that order. Consecutive ones are views, others are copied."""
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and bool((np.diff(wanted) == 1).all()):
            return self[int(wanted[0]) : int(wanted[-1]) + 1]
        lengths = self.lengths[wanted]
        starts = np.repeat(self.offsets[wanted] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        samples = starts + np.arange(int(lengths.sum()))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return replace(self._cut(wanted, samples), offsets=offsets)

    def segments(self, series: Integers, starts: Integers, stops: Integers) -> SeriesSet:
        """The samples `starts` to `stops` (positions in the flat arrays) as series, each part of `series`; a copy."""
        lengths = stops - starts
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        samples = np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        return replace(self._cut(series, samples), offsets=offsets)

    def _cut(self, series: Any, samples: Any) -> SeriesSet:
        def cut(array: npt.NDArray[Any] | None, of: Any) -> Any:
            return None if array is None else array[of]

        offsets = self.offsets
        if isinstance(series, slice):
            offsets = offsets[series.start : series.stop + 1] - offsets[series.start]
        goals = series if self.target_level == "series" else samples
        return replace(
            self,
            values=self.values[samples],
            offsets=offsets,
            ids=self.ids[series],
            times=cut(self.times, samples),
            targets=cut(self.targets, goals),
            spelled=None if self.spelled is None else (self.spelled[0][goals], self.spelled[1]),
            splits=cut(self.splits, series),
            rows=cut(self.rows, samples),
        )

    def padded(self, indices: npt.ArrayLike | None = None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Raw values (B, T, p) with NaN beyond the end, times (B, T) float64 or None, and lengths (B,), as tensors.

        This is what `SeriesModel` and `Preprocessing` take.
        """
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        lengths = torch.from_numpy(self.lengths[wanted])
        place, inside = padded_positions(torch.from_numpy(self.offsets[wanted]), lengths)
        values = torch.from_numpy(np.ascontiguousarray(self.values))[place]
        values = values.masked_fill(~inside.unsqueeze(-1), torch.nan)
        times = None if self.times is None else torch.from_numpy(np.ascontiguousarray(self.times))[place]
        return values, times, lengths

    def where(self, sample: int) -> str:
        """A sample's place for messages, e.g. "line 17 of log.csv (series 'a')"."""
        series = int(np.searchsorted(self.offsets, sample, side="right")) - 1
        name = f"series {str(self.ids[series])!r}"
        if self.rows is None:
            return f"sample {sample - int(self.offsets[series])} of {name} in {self.source}"
        row = int(self.rows[sample]) + (2 if self.row_word == "line" else 1)
        return f"{self.row_word} {row} of {self.source} ({name})"

    def with_categories(self, tables: Mapping[str, Sequence[str]]) -> SeriesSet:
        """The same series with text columns numbered by other tables, e.g. those of a trained model.

        A text that a table does not have becomes -1, which no input of the network stands for.
        """
        values = self.values
        for column, table in tables.items():
            if column not in self.categories and not np.isnan(self.values[:, self.columns.index(column)]).all():
                raise SeriesError(
                    f"column {column!r} of {self.source} holds numbers, but the model was trained with texts in it; "
                    "give the file that the model knows, or read it with this column in categories"
                )
            position = {text: index for index, text in enumerate(table)}
            places = [position_in(position, text) for text in self.categories.get(column, ())]
            new = np.array([-1 if each is None else each for each in places] or [-1], dtype=values.dtype)
            place = self.columns.index(column)
            codes = values[:, place]
            if values is self.values:
                values = values.copy()
            known = ~np.isnan(codes)
            values[known, place] = np.where(codes[known] < 0, -1, new[codes[known].astype(np.int64)])
        for column in self.categories:
            if column not in tables:
                raise SeriesError(
                    f"column {column!r} of {self.source} holds texts, but the model was trained with numbers in it; "
                    "write numbers, or leave the cell empty if the value is missing"
                )
        return replace(self, values=values, categories={name: tuple(table) for name, table in tables.items()})

    def with_columns(self, columns: Sequence[str]) -> SeriesSet:
        """The same series with these feature columns, in this order."""
        if tuple(columns) == self.columns:
            return self
        missing = [name for name in columns if name not in self.columns]
        if missing:
            raise SeriesError(
                f"{self.source} has no column {missing[0]!r}; the model needs {', '.join(map(repr, columns))}, the "
                f"file has {', '.join(map(repr, self.columns))}"
            )
        values = self.values[:, [self.columns.index(name) for name in columns]]
        kept = {name: table for name, table in self.categories.items() if name in columns}
        return replace(self, values=values, columns=tuple(columns), categories=kept)


def padded_positions(starts: Tensor, lengths: Tensor, longest: int | None = None) -> tuple[Tensor, Tensor]:
    """Flat positions (B, T) of series in a padded batch, and whether a step is inside its series.

    Padding repeats the last sample, so that every position exists. `longest`: T, if it is known; reading it from
    `lengths` waits for a GPU.
    """
    steps = torch.arange(int(lengths.max()) if longest is None else longest, device=lengths.device)
    inside = steps < lengths.unsqueeze(-1)
    return starts.unsqueeze(-1) + torch.minimum(steps, lengths.unsqueeze(-1) - 1), inside
