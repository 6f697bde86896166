"""What a model predicts: classes or numbers, per series, per sample, or the next values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.spelling import plain_text

Kind = Literal["classify", "regress", "sequence", "forecast"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_MOST_CLASSES = 30  # whole numbers with at most this many values are taken for classes if nobody says


@dataclass(frozen=True)
class Target:
    """The target of a model, as plain values that survive JSON.

    A network gives `size` outputs: logits of `classes`; or numbers, which are `output * scale + center` in the unit of
    the data. A forecast's network gives the change from the last value of `columns` to the next sample.
    """

    kind: Kind
    names: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    columns: tuple[int, ...] = ()
    """forecast: the positions of the predicted columns among the raw columns."""

    @property
    def size(self) -> int:
        return len(self.names) if self.classes is None else len(self.classes)

    @property
    def readout(self) -> Literal["last", "all"]:
        return "last" if self.kind in ("classify", "regress") else "all"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Target:
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
        }
        return cls(**plain)


def guess_kind(series: SeriesSet) -> Kind:
    """The task that fits the target: forecast without one, sequence if it changes within series, and so on.

    A target that changes in less than half of the series is taken for a mistake in them, which the task then names.
    """
    goal = series.targets
    if goal is None:
        return "forecast"
    if series.target_level == "sample":
        several = series.lengths > 1
        changing = np.add.reduceat(_changes(series), series.offsets[:-1], dtype=np.int64) > 0
        if changing.any() and int(changing.sum()) >= 0.5 * int(several.sum()):
            return "sequence"
    return "classify" if _looks_like_classes(series) else "regress"


def _looks_like_classes(series: SeriesSet) -> bool:
    goal = series.targets
    assert goal is not None
    if series.classes is not None:
        return True
    most = min(_MOST_CLASSES, max(2, len(series) // 4))
    return goal.shape[1] == 1 and few_whole_numbers(goal[:, 0], most)


def few_whole_numbers(values: npt.NDArray[Any], most: int = _MOST_CLASSES) -> bool:
    """Whether the values that are known are whole numbers, and at most so many different ones."""
    known = values[~np.isnan(values)]
    return bool((known == np.round(known)).all()) and len(np.unique(known)) <= most


def prepare_target(series: SeriesSet, kind: Kind) -> SeriesSet:
    """The series with the target as the task needs it: per series or per sample, classes or numbers, all present.

    A sequence's target is classes if it is text, else numbers; a whole-number target stays a number.
    """
    if kind not in KINDS:
        raise ValueError(f"task is {kind!r}; it must be one of {', '.join(KINDS)}")
    if kind == "forecast":
        return series
    if series.targets is None:
        raise SeriesError(f"{kind} needs a target, but {series.source} has none; name its column with --target")
    _require_present(series)
    if kind == "sequence":
        if series.target_level != "sample":
            raise SeriesError(
                f"sequence needs a target on every row; {series.source} has one per series: use classify or regress"
            )
        return series
    series = _per_series(series)
    if kind == "classify":
        return _as_classes(series)
    if series.classes is not None:
        raise SeriesError(
            f"regress needs numbers, but the target {series.target_names[0]!r} holds texts such as "
            f"{series.classes[0]!r}; use --task classify, or write numbers without leading zeros"
        )
    return series


def _require_present(series: SeriesSet) -> None:
    goal = series.targets
    assert goal is not None
    missing = goal < 0 if series.classes is not None else np.isnan(goal).any(1)
    if missing.any():
        row = int(missing.argmax())
        sample = row if series.target_level == "sample" else int(series.offsets[row])
        raise SeriesError(
            f"the target {series.target_names[0]!r} is missing (empty, NaN, NA or None) at {series.where(sample)}; "
            "write its value, or remove the series"
        )


def _changes(series: SeriesSet) -> npt.NDArray[np.bool_]:
    """(total,): where the target differs from the first of its series."""
    goal = series.targets
    assert goal is not None
    flat = (goal if series.spelled is None else series.spelled[0]).reshape(len(goal), -1)
    first = np.repeat(flat[series.offsets[:-1]], series.lengths, axis=0)
    return ((flat != first) & ~(_missing(flat) & _missing(first))).any(1)


def _missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.isnan(values) if values.dtype.kind == "f" else values < 0


def _per_series(series: SeriesSet) -> SeriesSet:
    if series.target_level == "series":
        return series
    goal = series.targets
    assert goal is not None
    changes = _changes(series)
    if changes.any():
        sample = int(changes.argmax())
        start = int(series.offsets[np.searchsorted(series.offsets, sample, side="right") - 1])
        now, before = (_shown(series, place) for place in (sample, start))
        raise SeriesError(
            f"the target {series.target_names[0]!r} is {now} at {series.where(sample)}, but {before} at "
            f"{series.where(start)}; classify and regress need one value per series. Correct it, or use --task sequence"
        )
    begins = series.offsets[:-1]
    spelled = None if series.spelled is None else (series.spelled[0][begins], series.spelled[1])
    return replace(series, targets=goal[begins], target_level="series", spelled=spelled)


def _shown(series: SeriesSet, row: int) -> str:
    assert series.targets is not None
    value = series.targets[row]
    if series.classes is not None:
        return repr(series.classes[int(value)])
    if series.spelled is not None:
        codes, texts = series.spelled
        return texts[codes[row]]
    return ", ".join(f"{number:g}" for number in np.atleast_1d(value))


def _as_classes(series: SeriesSet) -> SeriesSet:
    goal = series.targets
    assert goal is not None
    if series.classes is not None:
        used = np.unique(goal)
    else:
        if goal.shape[1] != 1:
            raise SeriesError(f"classify needs one target column, but there are {goal.shape[1]}; name one")
        codes, names = (goal[:, 0], None) if series.spelled is None else series.spelled
        used, goal = np.unique(codes, return_inverse=True)
        texts = tuple(str(plain_text(each)) if names is None else names[each] for each in used.tolist())
        series = replace(series, targets=goal.astype(np.int64), classes=texts, spelled=None)
    if len(used) < 2:
        assert series.classes is not None
        only = series.classes[int(goal.reshape(-1)[0])]
        raise SeriesError(
            f"the target {series.target_names[0]!r} has one class only, {only!r}; a classifier needs at least two"
        )
    return series


def number_scale(values: npt.NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every target column, from training data; a constant one has scale 1."""
    center, scale = np.nanmean(values, 0), np.nanstd(values, 0)
    flat = scale <= 1e-12 * np.maximum(np.nanmax(np.abs(values), 0), 1e-300)
    return tuple(center.tolist()), tuple(np.where(flat, 1.0, scale).tolist())
