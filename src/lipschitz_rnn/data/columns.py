"""Collects the columns of a long-format table chunk by chunk, and checks them with the row of the first mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.clock import Clock, Reading, read_clock
from lipschitz_rnn.data.errors import SeriesError, shown
from lipschitz_rnn.data.spelling import Spelled, Spellings, plain_text

MOST_CATEGORIES = 200  # one input each; more are names or free text, from which nothing general is learned
# 1,5 or 1,234.5 or 1.234,5
_COMMA = re.compile(r"[-+]?(\d*,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+(,\d+)?)([eE][-+]?\d+)?")
_WHOLE = re.compile(r"\s*([-+]?(?:0|[1-9]\d*))\.0*\s*")
_CODE = re.compile(r"[-+]?0\d+")
_QUANTITY = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\s*([^\W\d_]{1,6}(?:/[^\W\d_]{1,3})?|[%°‰]\s*[CF]?)")
_SIZES = 10  # more different quantities than this are measurements; fewer may be sizes, such as 5V and 12V
Place = Callable[[int], str]  # row, counted from 0 -> its name in messages


class NumberColumn:
    """A feature or target: numbers with NaN for missing ones, or texts as positions in a table.

    A column is text if none of its values is a number. A mixture is a mistake, unless `text` says that the column
    holds categories. With `labels`, True and False are texts, and so are numbers with leading zeros, such as 01.
    """

    def __init__(self, name: str, place: Place, text: bool = False, labels: bool = False) -> None:
        self.name, self._place = name, place
        self.kind: str | None = "text" if text else None
        self._declared, self._labels, self._coded = text, labels, False
        self.table: dict[str, int] = {}
        self._parts: list[npt.NDArray[np.float64]] = []
        self._spellings = Spellings()

    def add(self, values: Any, start: int) -> None:
        """Add a chunk (a pandas Series) whose first row is `start`."""
        import pandas as pd

        kinds = pd.api.types
        if (
            kinds.is_datetime64_any_dtype(values)
            or kinds.is_timedelta64_dtype(values)
            or kinds.is_complex_dtype(values)
            or isinstance(values.dtype, pd.PeriodDtype)
        ):
            raise SeriesError(
                f"column {self.name!r} holds {values.dtype}, not numbers or texts; name it with --time (time= in "
                "Python) if it is the time, or leave it out of --features"
            )
        _require_single(values, self.name, self._place, start)
        mixed = self._labels and (kinds.is_bool_dtype(values) or kinds.is_object_dtype(values))
        if mixed and values.map(lambda value: isinstance(value, bool | np.bool_)).any():
            values = values.map(plain_text)
        try:
            self._parts.append(self._numbers(values, start))
        except SeriesError:
            raise
        except (TypeError, ValueError, OverflowError) as error:  # what is in the cells can be anything
            raise SeriesError(f"column {self.name!r} near {self._place(start)} cannot be read: {error}") from error

    def _numbers(self, values: Any, start: int) -> npt.NDArray[np.float64]:
        import pandas as pd

        if self._declared or not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)):
            numbers = self._read_objects(values, start)
        else:
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
            self._require("number", ~np.isnan(numbers), values, start)
            self._spell(values)
        if self.kind != "text" and np.isinf(numbers).any():
            row = int(np.isinf(numbers).argmax())
            raise SeriesError(
                f"column {self.name!r} has {shown(values.iloc[row])} at {self._place(start + row)}, which is not "
                "finite; leave the cell empty if the value is missing"
            )
        return numbers

    def _read_objects(self, values: Any, start: int) -> npt.NDArray[np.float64]:
        import pandas as pd

        if self._declared:
            texts = pd.Series([category_text(value) for value in values], dtype=object)
        else:
            texts = values.astype(object).where(values.notna(), None)
        stripped = texts.map(lambda value: value.strip() if isinstance(value, str) else value)
        present = (stripped.notna() & (stripped != "")).to_numpy(dtype=bool)
        if not self._declared and not self._codes_in(stripped[present]):
            numbers = pd.to_numeric(stripped.where(present, None), errors="coerce").to_numpy(
                np.float64, na_value=np.nan
            )
            is_number = ~np.isnan(numbers)
            if is_number.any() or not present.any():
                self._require("number", present, values, start)
                if (present & ~is_number).any():
                    self._mixed(int((present & ~is_number).argmax()), values, start)
                self._spell(stripped.where(present, None))
                return numbers
            self._require_no_commas(stripped[present], values, start)
            self._require_no_units(stripped[present], values, start)
        if not self._declared:
            self._require("text", present, values, start)
        return self._codes(stripped.to_numpy(dtype=object), present)

    def _spell(self, values: Any) -> None:
        if self._labels:
            self._spellings.add(values)

    def _codes_in(self, texts: Any) -> bool:
        """Whether labels have leading zeros, which they would lose as numbers; then later rows are texts too."""
        if self._labels and not self._coded:
            self._coded = any(isinstance(text, str) and _CODE.fullmatch(text) for text in texts.unique())
        return self._coded

    def _require_no_commas(self, texts: Any, values: Any, start: int) -> None:
        """Raise if all texts are numbers like 1,5 or 1.234,5: as categories they would lose their order."""
        if len(texts) and all(isinstance(text, str) and _COMMA.fullmatch(text) for text in texts):
            row = int(texts.index[0])
            raise SeriesError(
                f"column {self.name!r} has {shown(values.iloc[row])} at {self._place(start + row)}; numbers are "
                "written with a decimal point and without separators of thousands (a decimal comma is read if "
                f"semicolons separate the columns). Correct the file, or name the column with --categories {self.name} "
                "(categories= in Python) if it holds categories"
            )

    def _require_no_units(self, texts: Any, values: Any, start: int) -> None:
        """Raise if all texts are measurements like 1.5 kg, which would become a category each."""
        different = texts.unique()
        found = [_QUANTITY.fullmatch(text) if isinstance(text, str) else None for text in different]
        units = {None if match is None else match[1] for match in found}
        if len(units) != 1 or None in units or not (len(different) > _SIZES or any("." in text for text in different)):
            return
        row = int(texts.index[0])
        raise SeriesError(
            f"column {self.name!r} has {shown(values.iloc[row])} at {self._place(start + row)}; write numbers without "
            f"the unit {units.pop()!r}, e.g. with the unit in the name of the column, or name the column with "
            f"--categories {self.name} (categories= in Python) if it holds categories"
        )

    def _codes(self, texts: npt.NDArray[Any], present: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        codes = np.full(len(texts), np.nan)
        if present.any():
            names, inverse = np.unique(texts[present].astype(str), return_inverse=True)
            for name in names.tolist():
                self.table.setdefault(name, len(self.table))
            codes[present] = np.array([self.table[name] for name in names.tolist()], dtype=np.float64)[inverse]
        return codes

    def _require(self, kind: str, present: npt.NDArray[np.bool_], values: Any, start: int) -> None:
        if self.kind is None and present.any():
            self.kind = kind
        elif self.kind not in (None, kind) and present.any():
            self._mixed(int(present.argmax()), values, start)

    def _mixed(self, row: int, values: Any, start: int) -> None:
        cell = values.iloc[row]
        if self.kind != "text" and isinstance(cell, str) and _COMMA.fullmatch(cell.strip()):
            raise SeriesError(
                f"column {self.name!r} has {shown(cell)} at {self._place(start + row)}, but numbers in other rows: it "
                "mixes decimal points and commas, or separates thousands; write all numbers alike, as 1234.5, or as "
                "1234,5 if semicolons separate the columns, or name the column with "
                f"--categories {self.name} (categories= in Python) if it holds categories"
            )
        raise SeriesError(
            f"column {self.name!r} has {shown(values.iloc[row])} at {self._place(start + row)}, but numbers in other "
            "rows; write a number, leave the cell empty if the value is missing, or name the column with "
            f"--categories {self.name} (categories= in Python) if it holds categories"
            if self.kind != "text"
            else f"column {self.name!r} has the number {shown(values.iloc[row])} at {self._place(start + row)}, but "
            f"texts in the rows before; correct the cell, or name the column with --categories {self.name} "
            "(categories= in Python) if it holds categories"
        )

    def spelled(self) -> Spelled | None:
        """How the file writes labels that are numbers, if their numbers do not tell."""
        return self._spellings.finish() if self._labels and self.kind == "number" else None

    def finish(self, most: int | None = MOST_CATEGORIES) -> tuple[npt.NDArray[np.float64], tuple[str, ...] | None]:
        """All rows, and the table of texts, sorted, or None for numbers."""
        numbers = np.concatenate(self._parts) if self._parts else np.empty(0)
        self._parts = []
        if self.kind != "text":
            return numbers, None
        names = sorted(self.table)
        if most is not None and len(names) > most:
            raise SeriesError(
                f"column {self.name!r} holds {len(names):,} different texts, e.g. {shown(names[0])}; at most {most} "
                "make categories. Name the columns to use with --features (features= in Python)"
            )
        order = np.empty(max(len(names), 1))
        order[[self.table[name] for name in names]] = np.arange(len(names))
        known = ~np.isnan(numbers)
        numbers[known] = order[numbers[known].astype(np.int64)]
        return numbers, tuple(names)


class NameColumn:
    """The series' ids or the splits: texts as positions in the order of their first appearance."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self._place = name, place
        self.table: dict[str, int] = {}
        self._parts: list[npt.NDArray[np.int64]] = []

    def add(self, values: Any, start: int) -> None:
        import pandas as pd

        _require_single(values, self.name, self._place, start)
        codes, names = pd.factorize(values)  # in the order of appearance; -1 for missing
        texts = [plain_text(name) for name in names]
        for index, name in enumerate(texts):
            if name is None or not name.strip():
                codes[codes == index] = -1
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            raise SeriesError(
                f"column {self.name!r} is empty at {self._place(start + row)}, or has a word for a missing value "
                "such as NA or None; every row needs a value there"
            )
        self._parts.append(
            np.array([self.table.setdefault(str(name), len(self.table)) for name in texts], dtype=np.int64)[codes]
            if texts
            else np.empty(0, dtype=np.int64)
        )

    def finish(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        codes = np.concatenate(self._parts) if self._parts else np.empty(0, dtype=np.int64)
        self._parts = []
        return codes, np.array(list(self.table), dtype=np.str_)


class TimeColumn:
    """The times of the samples."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self._place = name, place
        self._reading: Reading | None = None
        self._parts: list[npt.NDArray[Any]] = []

    def add(self, values: Any, start: int) -> None:
        try:
            self._reading, numbers, bad = read_clock(values, self._reading)
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            raise SeriesError(
                f"column {self.name!r} cannot be read as times near {self._place(start)}: {error}; write numbers, ISO "
                "dates (2026-01-31T12:00:00Z) or durations (00:00:05)"
            ) from error
        if bad.any():
            row = int(bad.argmax())
            what = {"number": "a finite number", "date": "a date", "duration": "a duration"}[self._reading.kind]
            raise SeriesError(
                f"column {self.name!r} has {shown(values.iloc[row])} at {self._place(start + row)}, which is not "
                f"{what} like the times before it{self._format()}; write the time, or remove the row"
            )
        self._parts.append(numbers)

    def _format(self) -> str:
        """How dates that are not ISO dates are read, in words: the first row decides between day and month."""
        how = "" if self._reading is None or self._reading.kind != "date" else self._reading.format
        return f" (read as {how}, by the first of them; dates such as 2026-01-31 leave no doubt)" if "%" in how else ""

    def finish(self) -> tuple[npt.NDArray[np.float64], Clock]:
        numbers = np.concatenate(self._parts) if self._parts else np.empty(0)
        self._parts = []
        if self._reading is None or self._reading.kind == "number":
            return numbers.astype(np.float64), Clock()
        clock = Clock("date", int(numbers.min())) if self._reading.kind == "date" else Clock("duration")
        return clock.from_nanoseconds(numbers.astype(np.int64)), clock


def _require_single(values: Any, name: str, place: Place, start: int) -> None:
    """Raise if a cell of a Parquet file or a DataFrame holds several values, or bytes."""
    import pandas as pd

    if not pd.api.types.is_object_dtype(values):
        return
    odd = values.map(lambda value: isinstance(value, list | tuple | dict | set | bytes | np.ndarray)).to_numpy(bool)
    if odd.any():
        row = int(odd.argmax())
        raise SeriesError(
            f"column {name!r} has {shown(values.iloc[row])} ({type(values.iloc[row]).__name__}) at "
            f"{place(start + row)}; a cell holds one number or text: give every value a column of its own, or leave "
            "the column out of --features (features= in Python)"
        )


def category_text(value: Any) -> str | None:
    """A category as text: 1 and 1.0 are the same, 1 and 01 are not."""
    whole = _WHOLE.fullmatch(value) if isinstance(value, str) else None
    return plain_text(value) if whole is None else whole[1]
