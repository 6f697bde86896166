"""Time columns: numbers, dates and durations become one float64 per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

NANOSECONDS = 1_000_000_000


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
        nanoseconds = self.origin + round(time * NANOSECONDS)
        return str(np.datetime64(nanoseconds, "ns"))

    def from_nanoseconds(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (values - self.origin) / NANOSECONDS


def read_clock(values: Any, kind: str | None) -> tuple[str, npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """One chunk of a time column (a pandas Series): its kind, numbers, and which rows could not be read.

    Numbers are float64; dates and durations are int64 nanoseconds (dates in UTC; a date without a time zone counts
    as UTC). `kind`: that of the chunks before, which this one must share.
    """
    import pandas as pd

    found = _kind_of(values) if kind is None else kind
    missing = values.isna().to_numpy()
    if found == "number":
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        return found, numbers, ~np.isfinite(numbers)
    if found == "duration":
        parsed = values if pd.api.types.is_timedelta64_dtype(values) else pd.to_timedelta(values, errors="coerce")
    else:
        parsed = _dates(values)
    bad = parsed.isna().to_numpy() | missing
    return found, parsed.dt.as_unit("ns").astype("int64").to_numpy(), bad


def _dates(values: Any) -> Any:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values):
        return values.dt.tz_localize("UTC") if values.dt.tz is None else values.dt.tz_convert("UTC")
    parsed = pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
    if bool(parsed.isna().all()):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a format that it cannot infer, and so reads value by value
            parsed = pd.to_datetime(values, errors="coerce", utc=True)
    return parsed


def _kind_of(values: Any) -> str:
    """Decided by the first value: later values that do not fit are reported with their rows."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values):
        return "date"
    if pd.api.types.is_timedelta64_dtype(values):
        return "duration"
    if pd.api.types.is_numeric_dtype(values):
        return "number"
    first = values.dropna().head(1)
    if first.empty or not pd.to_numeric(first, errors="coerce").isna().any():
        return "number"
    if not pd.to_timedelta(first.astype(str), errors="coerce").isna().any():
        return "duration"
    return "date"
