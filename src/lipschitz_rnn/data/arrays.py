"""Series from arrays in memory and from .npz files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.assembly import require_increasing
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.spelling import plain_text, spelled_integers

_VALUES, _TARGET, _TIMES = (
    ("X", "x", "values", "data"),
    ("y", "Y", "target", "targets", "labels"),
    ("times", "time", "t"),
)
TimeKind = Literal["number", "date", "duration"]
_KINDS: dict[str, TimeKind] = {"M": "date", "m": "duration"}


def from_arrays(
    X: npt.ArrayLike | Sequence[npt.ArrayLike],
    y: npt.ArrayLike | None = None,
    *,
    times: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    columns: Sequence[str] | None = None,
    ids: Sequence[object] | None = None,
    source: str = "X",
) -> SeriesSet:
    """Series from arrays in the layout of aeon, sktime and the time-series archive.

    Args:
        X: (cases, channels, time), (cases, time) for one channel, or a list of (channels, time_i) or (time_i,). Steps
            at the end of a case that are NaN in every channel are padding, and are dropped.
        y: one label or number per case, (cases,) or (cases, q); text makes classes.
        times: (time,) for all cases, (cases, time), or a list of (time_i,): numbers, or NumPy's dates or durations,
            which count in seconds.
        columns: names of the channels.
        ids: names of the cases.
    """
    cases = _cases(X, source)
    flat = [case.T for case in cases]
    lengths = np.array([_length(case, index, source) for index, case in enumerate(flat)], dtype=np.int64)
    channels = flat[0].shape[1]
    for index, case in enumerate(flat):
        if case.shape[1] != channels:
            raise SeriesError(
                f"case {index} of {source} has {case.shape[1]} channels, but case 0 has {channels}; all need the same"
            )
    if channels == 0:
        raise SeriesError(f"{source} has cases without channels; give arrays (channels, time) with at least one")
    values = np.concatenate([case[:length] for case, length in zip(flat, lengths, strict=True)])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    names = tuple(columns or channel_names(channels))
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise SeriesError(f"the columns of {source} have the name {name!r} twice; give each its own name")
    if len(names) != channels:
        raise SeriesError(f"{len(names)} column names are given for {channels} channels; give one for each")
    goal, classes = _goal(y, len(flat), source)
    labels = np.array([str(name) for name in (ids if ids is not None else range(len(flat)))], dtype=np.str_)
    if len(labels) != len(flat):
        raise SeriesError(f"{len(labels)} ids are given for {len(flat)} series; give one for each")
    series = SeriesSet(
        values=values,
        offsets=offsets,
        ids=labels,
        columns=names,
        times=None if times is None else _times(times, flat, lengths),
        targets=goal,
        target_level=None if goal is None else "series",
        target_names=() if goal is None else ("target",),
        classes=classes,
        spelled=None if y is None else spelled_integers(np.asarray(y)),
        source=source,
    )
    infinite = ~np.isfinite(values) & ~np.isnan(values)
    if infinite.any():
        sample, channel = np.argwhere(infinite)[0]
        raise SeriesError(
            f"{series.where(int(sample))} has {values[sample, channel]} in {names[channel]!r}, which is not finite; "
            "use NaN if the value is missing"
        )
    require_increasing(series, None)
    return series


def channel_names(count: int) -> tuple[str, ...]:
    """The columns of arrays without names."""
    return tuple(f"channel {index}" for index in range(count))


def read_npz(path: Path, *, target: str | None = None, time: str | None = None, **unused: Any) -> SeriesSet:
    """Series from an .npz file with the arrays `X` (cases, channels, time) and, if there are any, `y` and `times`.

    `target` and `time` name other arrays; `ids` and `columns` are read if they are there.
    """
    given = [name for name, value in unused.items() if value not in (None, (), False) and name != "rows_per_chunk"]
    if given:
        raise SeriesError(f"{given[0]} is given, but {path.name} holds arrays, not columns; leave it out")
    if not is_zipfile(path):
        raise SeriesError(f"{path.name} is not an .npz file; save arrays with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, BadZipFile, EOFError) as error:
        raise SeriesError(f"{path.name} cannot be read: {error}; save plain arrays with numpy.savez") from error

    def find(names: Sequence[str], asked: str | None, what: str) -> Any:
        if asked is not None and asked not in arrays:
            raise SeriesError(f"{path.name} has no array {asked!r} for the {what}; it has {', '.join(arrays)}")
        return next((arrays[name] for name in ([asked] if asked else names) if name in arrays), None)

    X = find(_VALUES, None, "values")
    if X is None:
        raise SeriesError(f"{path.name} has no array X; it has {', '.join(arrays) or 'none'}. Save it under the name X")
    goal, when = find(_TARGET, target, "target"), find(_TIMES, time, "times")
    more = {name: [str(v) for v in arrays[name].tolist()] for name in ("ids", "columns") if name in arrays}
    return from_arrays(X, goal, times=when, source=path.name, **more)  # type: ignore[arg-type]


def _cases(X: Any, source: str) -> list[npt.NDArray[Any]]:
    """A list of (channels, time)."""
    try:
        whole = X if isinstance(X, np.ndarray) and X.dtype != object else [case_array(case) for case in X]
        for case in whole[:1]:
            if case.dtype.kind in "cmM":
                raise TypeError(f"its dtype is {case.dtype}")  # NumPy would drop the imaginary part
        cases = [
            np.asarray(case, dtype=case.dtype if case.dtype in (np.float32, np.float64) else np.float64)
            for case in map(unmasked, whole)
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise SeriesError(f"{source} does not hold numbers: {error}; give arrays (channels, time)") from error
    if not cases:
        raise SeriesError(f"{source} has no series; give at least one")
    cases = [case[np.newaxis] if case.ndim == 1 else case for case in cases]
    for index, case in enumerate(cases):
        if case.ndim != 2:
            raise SeriesError(
                f"case {index} of {source} has shape {case.shape}; it must be (channels, time) or (time,)"
            )
    return cases


def case_array(case: Any) -> npt.NDArray[Any]:
    """One case as an array (channels, time) or (time,); a DataFrame has a row a sample, and a column a channel."""
    if hasattr(case, "iloc") and np.ndim(case) == 2:
        return np.asarray(case.to_numpy(dtype=np.float64, na_value=np.nan)).T
    return unmasked(case)


def unmasked(values: Any) -> npt.NDArray[Any]:
    """As an array, with NaN where a masked array is masked, and without the gradient of a tensor."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.filled(values.astype(np.float64), np.nan)
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _length(case: npt.NDArray[Any], index: int, source: str) -> int:
    """Samples of a case (time, channels) without the padding at its end."""
    seen = ~np.isnan(case).all(1)
    if not seen.any():
        raise SeriesError(f"case {index} of {source} is empty: it has no sample that is not NaN; remove the case")
    return int(len(seen) - seen[::-1].argmax())


def _goal(y: Any, cases: int, source: str) -> tuple[npt.NDArray[Any] | None, tuple[str, ...] | None]:
    if y is None:
        return None, None
    goal = np.asarray(y)
    if goal.ndim not in (1, 2) or len(goal) != cases:
        raise SeriesError(f"the target of {source} has shape {goal.shape}; it must be ({cases},) or ({cases}, q)")
    if goal.dtype.kind in "biuf":
        return goal.reshape(cases, -1).astype(np.float64), None
    texts = [plain_text(value) for value in goal.reshape(-1).tolist()]
    texts = [None if text is None or not text.strip() else text for text in texts]  # as an empty cell of a file
    if goal.size != cases:
        raise SeriesError(f"the target of {source} is text with shape {goal.shape}; give one label per series")
    classes = sorted({text for text in texts if text is not None})
    position = {text: index for index, text in enumerate(classes)}
    return np.array([-1 if text is None else position[text] for text in texts], dtype=np.int64), tuple(classes)


def seconds(times: Any) -> npt.NDArray[np.float64]:
    """Times as numbers: dates and durations in seconds, whatever the unit of their dtype; NaN where one is missing."""
    row = _time_array(times)
    if row.dtype.kind not in "mM":
        return row.astype(np.float64)
    nanoseconds = row.astype(f"{row.dtype.kind}8[ns]").astype(np.int64) / 1e9
    return np.where(np.isnat(row), np.nan, nanoseconds)


def kind_of_times(times: Any) -> TimeKind:
    """What (time,), (cases, time) or a list of (time_i,) holds; raises if cases differ."""
    rows = [times] if np.ndim(times[0]) == 0 else times
    kinds = [_KINDS.get(_time_array(row).dtype.kind, "number") for row in rows]
    for index, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise SeriesError(
                f"the times of case {index} are {kind}s, but those of case 0 are {kinds[0]}s; write all of them alike"
            )
    return kinds[0]


def _time_array(times: Any) -> npt.NDArray[Any]:
    row = np.asarray(times)
    return _plain_times(row) if row.dtype == object and row.size else row


def _plain_times(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Dates with a time zone and durations, which are Python's or pandas's objects, as NumPy's."""
    first = row.flat[0]
    if hasattr(first, "total_seconds"):
        return row.astype("m8[ns]")
    if hasattr(first, "tzinfo"):
        plain = [each.astimezone(UTC).replace(tzinfo=None) if each.tzinfo else each for each in row.flat]
        return np.array(plain, dtype="M8[ns]").reshape(row.shape)
    return row


def _times(times: Any, cases: list[npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    try:
        single = np.ndim(times[0]) == 0
        rows = [seconds(times)] * len(cases) if single else [seconds(row) for row in times]
    except (TypeError, ValueError, IndexError) as error:
        raise SeriesError(f"times do not hold numbers: {error}; give (time,), (cases, time) or a list") from error
    kind_of_times(times)
    if len(rows) != len(cases):
        raise SeriesError(f"times are given for {len(rows)} series, but there are {len(cases)}; give one row for each")
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if row.ndim != 1 or len(row) < length:
            raise SeriesError(
                f"the times of case {index} have shape {row.shape}; they must be {length} finite numbers, one a sample"
            )
        if not np.isfinite(row[:length]).all():
            sample = int((~np.isfinite(row[:length])).argmax())
            raise SeriesError(
                f"the time of sample {sample} of case {index} is {row[sample]}; give a finite one, or remove the sample"
            )
    return np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)])
