"""Time columns: numbers, dates and durations become one float64 per sample."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

NANOSECONDS = 1_000_000_000
# pandas would also read "13.01.2026" as a duration, of 13 nanoseconds and some.
_DURATION = re.compile(
    r"[-+]?(\d+\s*days?,?\s+)?[-+]?\d+:\d{1,2}(:\d{1,2}(\.\d+)?)?|[-+]?P[\dWD.,]*(T[\dHMS.,]+)?"
    r"|[-+]?\d+(\.\d+)?\s*(ns|us|µs|ms|s|sec|seconds?|min|minutes?|m|h|hours?|d|D|days?|W|weeks?)"
)
_CALENDAR = re.compile(r"[-+]?P([\d.,]+[WD])*[\d.,]+[YM]")  # PT1M is a minute, P1M a month
_DOTTED = re.compile(r"\d{1,2}\.\d{1,2}\.\d{2}")
_SHORT_YEAR = re.compile(r"(\d{1,2}([-./])\d{1,2}\2)(\d{2})(?!\d)")
# Day and month are both numbers, and the year comes last.
_SWAPPABLE = re.compile(r"(?<!\d[-./ ])\b\d{1,2}([-./ ])[-./, ]*\d{1,2}[-./, ]+\d")
_HALF_DAY = re.compile(r"\d{1,2}(:\d\d)?(:\d\d)?(\.\d+)?(\s*)[AaPp]\.?[Mm]\b\.?")


@dataclass(frozen=True)
class Clock:
    """What the times of a `SeriesSet` mean."""

    kind: Literal["number", "date", "duration"] = "number"
    origin: int = 0
    """Nanoseconds since 1970 (UTC) at time 0, for dates; so that float64 keeps what a date resolves."""

    @property
    def unit(self) -> str:
        """The word for one unit of time."""
        return "unit" if self.kind == "number" else "second"

    def show(self, time: float) -> str:
        """A time as text: an ISO date in UTC, or a number."""
        if self.kind != "date":
            return f"{time:.12g}"
        # After some months float64 tells nanoseconds no longer apart. Rounded to the next power of ten that it does,
        # dates come out as they are in their file.
        step = 10 ** max(0, math.ceil(math.log10(math.ulp(time) * NANOSECONDS)))
        whole = math.floor(time)
        nanoseconds = whole * NANOSECONDS + round((time - whole) * NANOSECONDS / step) * step
        return str(np.datetime64(self.origin + nanoseconds, "ns"))

    def from_nanoseconds(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (values - self.origin) / NANOSECONDS


@dataclass(frozen=True)
class Reading:
    """How a column of times is read, decided by its first value: later values that do not fit are mistakes."""

    kind: Literal["number", "date", "duration"]
    format: str = "ISO8601"
    """For dates: as `pandas.to_datetime` takes it."""


def read_clock(values: Any, reading: Reading | None) -> tuple[Reading, npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """One chunk of a time column (a pandas Series): how it was read, its numbers, and which rows could not be read.

    Numbers are float64; dates and durations are int64 nanoseconds (dates in UTC; a date without a time zone counts
    as UTC). `reading`: that of the chunks before.
    """
    import pandas as pd

    found = _reading_of(values) if reading is None else reading
    if found.kind == "number":
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        return found, numbers, ~np.isfinite(numbers)
    if found.kind == "duration":
        parsed = values if pd.api.types.is_timedelta64_dtype(values) else _durations(values)
    else:
        parsed = _dates(values, found.format)
    bad = (parsed.isna() | values.isna()).to_numpy()
    return found, parsed.dt.as_unit("ns").astype("int64").to_numpy(), bad


def _dates(values: Any, how: str) -> Any:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values):
        return values.dt.tz_localize("UTC") if values.dt.tz is None else values.dt.tz_convert("UTC")
    return pd.to_datetime(values, errors="coerce", utc=True, format=how)


def _durations(values: Any) -> Any:
    import pandas as pd

    texts = values.astype(str).str.strip()
    calendar = texts[texts.map(lambda text: bool(_CALENDAR.match(text)))]
    if len(calendar):
        raise ValueError(f"{calendar.iloc[0]!r} counts in months or years, which differ in length")
    return pd.to_timedelta(texts.where(texts.map(lambda text: bool(_DURATION.fullmatch(text)))), errors="coerce")


def _reading_of(values: Any) -> Reading:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values):
        return Reading("date")
    if pd.api.types.is_timedelta64_dtype(values):
        return Reading("duration")
    first = values.dropna().head(1)
    if first.empty or not pd.to_numeric(first, errors="coerce").isna().any():
        return Reading("number")
    if not _durations(first).isna().any():
        return Reading("duration")
    if not _dates(first, "ISO8601").isna().any():
        return Reading("date")
    return Reading("date", _format_of(str(first.iloc[0]).strip()))


def _format_of(text: str) -> str:
    """How a date is written that is not an ISO date: 1.2.2026 and 1.2.26 are the first of February, 1/2/2026 and
    1/2/26 the second of January, unless a number above 12 must be the day."""
    swappable, half_day = _SWAPPABLE.search(text), _HALF_DAY.search(text)
    if swappable is None:
        return (None if half_day else _guessed(text)) or "mixed"
    # Never "mixed", which would decide between day and month row by row. pandas knows whole days and long years only.
    whole = text if half_day is None else f"{text[: half_day.start()]}00:00{text[half_day.end() :]}"
    short = _SHORT_YEAR.match(whole)
    guess = _guessed(whole if short is None else f"{short[1]}20{whole[short.start(3) :]}")
    if guess is None:  # nothing is read this way either, and the message names the first date
        guess = "%d.%m.%Y" if swappable[1] == "." else "%m/%d/%Y".replace("/", swappable[1])
    if half_day is not None:
        minutes, seconds, fraction, space = half_day.groups(default="")
        clock = f"%I{minutes and ':%M'}{seconds and ':%S'}{fraction and '.%f'}{space}%p"
        guess = guess.replace("%H:%M", clock)
    return guess if short is None else guess.replace("%Y", "%y")


def _guessed(text: str) -> str | None:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a first number above 12 must be the day
        found: str | None = pd.tseries.api.guess_datetime_format(text, dayfirst=bool(_DOTTED.match(text)))
    return found
