"""What users pass to `fit` and `predict`, checked and as a `SeriesSet`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data import SeriesError, SeriesSet, from_arrays
from lipschitz_rnn.data.arrays import TimeKind, case_array, kind_of_times, unmasked
from lipschitz_rnn.estimators.names import by_name

_LAYOUT = "give an array (cases, channels, time) or (cases, time), or a list of arrays (channels, time_i)"
_DATED = (
    "the dates in the index of X are not used: all samples count as equally far apart; if they are not, pass the dates "
    "as times= to fit, and to what follows"
)


@dataclass(frozen=True)
class Given:
    """What a user passed, as series, and what only its first form tells."""

    series: SeriesSet
    names: tuple[str, ...] | None
    """The columns, if all series are DataFrames with names."""
    clock: TimeKind | None
    """What the times are; None without times."""
    notes: tuple[str, ...]
    """What is not used, in words."""


def as_series(X: Any, times: Any = None, *, owner: str = "this estimator", names: Sequence[str] | None = None) -> Given:
    """Series from (cases, channels, time), (cases, time) or a list of (channels, time_i).

    `names`: the columns of the fit, by which those of DataFrames are found.
    """
    X, found = by_name(X, names)
    dated = times is None and isinstance(X, list | tuple) and any(map(_has_dates, X))
    X = _plain(X, owner)
    if isinstance(X, np.ndarray):
        if X.ndim not in (2, 3):
            hint = " Reshape your data: X.reshape(1, -1) is one series of one channel." if X.ndim == 1 else ""
            raise SeriesError(f"X has shape {X.shape}, but {owner} expects series: {_LAYOUT}.{hint}")
        if len(X) == 0:
            raise SeriesError(f"X has shape {X.shape}: found array with 0 sample(s), while a minimum of 1 is required")
        if X.shape[-1] == 0 or X.shape[1] == 0:
            raise SeriesError(
                f"X has shape {X.shape}: 0 feature(s) (shape={X.shape}) while a minimum of 1 is required; {_LAYOUT}"
            )
    elif len(X) == 0:
        raise SeriesError(f"X has no series: found 0 sample(s), while a minimum of 1 is required; {_LAYOUT}")
    series = from_arrays(X, times=times, columns=found)
    return Given(series, found, None if times is None else kind_of_times(times), (_DATED,) if dated else ())


def require_channels(series: SeriesSet, expected: int, owner: str) -> None:
    """Raise if the series have other channels than those of the training."""
    found = len(series.columns)
    if found != expected:
        raise SeriesError(
            f"X has {found} features, but {owner} is expecting {expected} features as input: the channels of the "
            "series it was fitted on"
        )


def _has_dates(case: Any) -> bool:
    """Whether a case is a table of pandas with dates or durations for row names."""
    return getattr(getattr(getattr(case, "index", None), "dtype", None), "kind", "") in ("m", "M")


def _plain(X: Any, owner: str) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
    """An array of numbers, or a list of such arrays."""
    if hasattr(X, "tocsr"):
        raise TypeError(f"X is a sparse {type(X).__name__}, but {owner} needs dense data; use X.toarray()")
    if isinstance(X, str | bytes) or not (hasattr(X, "__len__") or hasattr(X, "__array__")):
        raise TypeError(f"X is {X!r} ({type(X).__name__}); {_LAYOUT}")
    if isinstance(X, list | tuple):
        cases = [_numbers(case, case_array) for case in X]
        shapes = {case.shape for case in cases}
        return np.stack(cases) if len(shapes) == 1 and cases and cases[0].ndim in (1, 2) else cases
    array = unmasked(X)
    if array.dtype == object and array.ndim == 1 and len(array) and np.ndim(array[0]) > 0:
        return [_numbers(case, case_array) for case in array]  # an array of arrays of unequal length
    return _numbers(array)


def _numbers(values: Any, convert: Callable[[Any], npt.NDArray[Any]] = unmasked) -> npt.NDArray[Any]:
    if hasattr(values, "tocsr"):
        raise TypeError(f"a series is a sparse {type(values).__name__}; give dense arrays")
    try:
        array = convert(values)
    except (TypeError, ValueError) as error:
        raise SeriesError(f"X does not hold numbers: {error}; {_LAYOUT}") from error
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X has dtype {array.dtype}; give its real and imaginary parts")
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            # TypeError as NumPy raises it for values that are no numbers at all, e.g. a dict.
            message = f"X does not hold numbers: {error}; {_LAYOUT}"
            raise (TypeError if isinstance(error, TypeError) else SeriesError)(message) from error
    return array
