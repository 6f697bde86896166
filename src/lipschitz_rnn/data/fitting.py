"""What preprocessing learns from training data: scales, holes, categories, and the typical time between samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.series import SeriesSet

Scaling = Literal["standard", "robust", "minmax", "none"]
Missing = Literal["auto", "mask", "forward", "since"]
TimeUse = Literal["auto", "step", "input", "ignored"]
LARGEST = 1e30  # squares and differences of larger values overflow in float32
_REGULAR = 1e-3  # gaps that differ by less from the typical one count as equal
_CONSTANT = 1e-12  # a spread below this, relative to the largest value, is rounding


@dataclass(frozen=True)
class Fitted:
    """Everything that `Preprocessing` learned, as plain values: it survives JSON."""

    columns: tuple[str, ...]
    categories: dict[str, tuple[str, ...]]
    scaling: str
    missing: str
    center: tuple[float, ...]
    scale: tuple[float, ...]
    """One per column; 0 and 1 for categories. A value enters as (value - center) / scale."""
    numbers: tuple[int, ...]
    """Number columns that the network sees: those that vary."""
    holes: tuple[int, ...]
    """Columns with missing values in training: they get a channel of their own for `mask` and `since`."""
    time_use: str
    """"step": the unit takes the time between samples; "input": it is an input; "ignored": it is not used."""
    gap: float | None
    """The median time between samples, in the times' own unit; None without times."""
    regular: bool
    """Whether all gaps in training were equal."""
    step_size: float
    """The timespan that stands for one typical gap."""
    longest_gap: float
    """Longer gaps count as this many typical ones."""
    notes: tuple[str, ...]
    """What was found and done, in words."""
    ahead: bool = False
    """Forecasts of irregular series: the time of a sample is that to the next one, which is predicted, instead of that
    since the last one, and is an input too. False in models of versions that did not look ahead."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Fitted:
        known = {item.name for item in fields(cls)}
        record = {"ahead": False} | record
        if set(record) != known:
            odd = sorted(set(record) ^ known)[0]
            raise ValueError(f"the record of the preprocessing has or lacks {odd!r}; use the version that wrote it")
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
        }
        plain["categories"] = {name: tuple(table) for name, table in record["categories"].items()}
        return cls(**plain)


def fit(
    series: SeriesSet,
    scaling: Scaling,
    missing: Missing,
    time_use: TimeUse,
    step_size: float | None,
    longest: float,
    ahead: bool = False,
) -> Fitted:
    for name, value, kind in (
        ("scaling", scaling, Scaling),
        ("missing", missing, Missing),
        ("times", time_use, TimeUse),
    ):
        if value not in get_args(kind):
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, get_args(kind)))}")
    if series.total == 0:
        raise SeriesError(f"{series.source} has no training sample; choose other fractions for the splits")
    notes: list[str] = []
    center, scale, numbers, holes = [], [], [], []
    for index, name in enumerate(series.columns):
        column = series.values[:, index]
        seen = column[~np.isnan(column)].astype(np.float64)
        category = name in series.categories
        if len(seen) == 0:
            notes.append(f"column {name!r} has no value in the training series and is not used")
        elif len(seen) < len(column):
            holes.append(index)
        if category and len(seen):
            texts = series.categories[name]
            notes.append(f"column {name!r} holds texts: {_listed(texts)}, one input each")
            trained = set(seen.astype(np.int64).tolist())
            _note_untrained(notes, name, tuple(text for code, text in enumerate(texts) if code not in trained))
        c, s = (0.0, 1.0) if category or len(seen) == 0 else _spread(seen, scaling, series, index)
        if s == 0.0:
            notes.append(f"column {name!r} is always {c:g} in the training series and is not used")
            s = 1.0
        elif not category and len(seen):
            numbers.append(index)
            _note_outliers(notes, name, seen, scaling, c, s)
        center.append(c)
        scale.append(s)
    if holes:
        share = float(np.isnan(series.values[:, holes]).mean())
        told = {"mask": "the value is 0 and a second input says that it is missing", "forward": "the last value stays",
                "since": "the last value stays and a second input says for how long"}  # fmt: skip
        missing = "mask" if missing == "auto" else missing
        named = ", ".join(repr(series.columns[index]) for index in holes)
        notes.append(f"{named}: {share:.1%} missing; {told[missing]}")
    missing = "mask" if missing == "auto" else missing
    gap, regular, use = _time(series, time_use, step_size, longest, ahead, notes)
    if not numbers and not holes and not series.categories and use != "input":
        raise SeriesError(
            f"no feature of {series.source} varies in the training series ({', '.join(map(repr, series.columns))}); "
            "add a column that does"
        )
    return Fitted(
        series.columns,
        {name: series.categories[name] for name in series.columns if name in series.categories},
        scaling,
        missing,
        tuple(center),
        tuple(scale),
        tuple(numbers),
        tuple(holes),
        use,
        gap,
        regular,
        1.0 if step_size is None else float(step_size),
        float(longest),
        tuple(notes),
        ahead and use != "ignored" and not regular,
    )


def _spread(seen: npt.NDArray[np.float64], scaling: Scaling, series: SeriesSet, index: int) -> tuple[float, float]:
    """Center and scale of a column; scale 0 if it does not vary."""
    largest = float(np.abs(seen).max())
    if largest > LARGEST:
        sample = int(np.nanargmax(np.abs(series.values[:, index])))
        raise SeriesError(
            f"column {series.columns[index]!r} has {series.values[sample, index]:g} at {series.where(sample)}; values "
            f"may be up to {LARGEST:g}: write it in another unit, or leave the cell empty if the value is missing"
        )
    low, high = float(seen.min()), float(seen.max())
    if high - low <= _CONSTANT * largest:
        return low, 0.0
    if scaling == "none":
        return 0.0, 1.0
    if scaling == "minmax":
        return 0.5 * (low + high), 0.5 * (high - low)
    if scaling == "robust":
        first, middle, third = np.percentile(seen, (25, 50, 75))
        spread = float(third - first) / 1.349  # the standard deviation of a normal distribution
        if spread > _CONSTANT * largest:
            return float(middle), spread
    return float(seen.mean()), float(seen.std())


def _listed(texts: tuple[str, ...], most: int = 8) -> str:
    return f"{', '.join(map(repr, texts[:most]))}{f' and {len(texts) - most} more' if len(texts) > most else ''}"


def _note_untrained(notes: list[str], name: str, texts: tuple[str, ...]) -> None:
    """Texts of validation and test series have inputs too, whose weights stay as they were drawn."""
    if texts:
        occur, inputs = ("occurs", "its input is") if len(texts) == 1 else ("occur", "their inputs are")
        notes.append(
            f"{_listed(texts)} of column {name!r} {occur} only outside the training series; {inputs} not trained"
        )


def _note_outliers(
    notes: list[str], name: str, seen: npt.NDArray[np.float64], scaling: Scaling, center: float, scale: float
) -> None:
    worst = float(np.abs(seen - center).max()) / scale
    if scaling == "standard" and worst > 50.0:
        notes.append(f"column {name!r} has a value {worst:.0f} standard deviations from its mean; try --scaling robust")


def _time(
    series: SeriesSet, use: TimeUse, step_size: float | None, longest: float, ahead: bool, notes: list[str]
) -> tuple[float | None, bool, str]:
    if not longest >= 1.0:
        raise ValueError(f"longest_gap is {longest!r}; it must be at least 1, in typical gaps")
    if series.times is None:
        if use in ("step", "input"):
            raise SeriesError(f"times are to be used, but {series.source} has none; name the column with --time")
        return None, True, "ignored"
    gaps = series.gaps
    gap = float(np.median(gaps)) if len(gaps) else 1.0
    regular = bool(len(gaps) == 0 or (np.abs(gaps / gap - 1.0) < _REGULAR).all())
    unit = series.clock.unit if gap == 1.0 else f"{series.clock.unit}s"
    if use == "step" and step_size is None:
        raise ValueError('times="step" needs a unit with continuous time; use "input" or "ignored"')
    chosen = use if use != "auto" else "step" if step_size is not None else "ignored" if regular else "input"
    kind = "regular" if regular else f"irregular, at most {gaps.max() / gap:.3g} times the typical gap"
    if chosen == "step":
        then = ", and the time to the sample that is predicted is an input" if ahead and not regular else ""
        notes.append(f"times are {kind}: a typical gap of {gap:.4g} {unit} counts as one step of {step_size:g}{then}")
    elif chosen == "input":
        which = "to the sample that is predicted" if ahead and not regular else "since the last sample"
        notes.append(f"times are {kind}: the time {which} is an input, in typical gaps of {gap:.4g} {unit}")
    else:
        notes.append(f"times are {kind} (typical gap {gap:.4g} {unit}) and are not used")
    if chosen != "ignored" and not regular and float(gaps.max()) > longest * gap:
        notes.append(f"gaps above {longest:g} typical ones count as {longest:g}")
    return gap, regular, chosen
