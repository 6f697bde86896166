"""Formats scores and times for readers: percent if the metric is a fraction, and a range over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def show_score(value: float | None, percent: bool) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if percent else f"{value:#.4g}".removesuffix(".")  # 1.430, so that columns align


def show_scores(values: Sequence[float | None], percent: bool) -> str:
    """For one seed its score, for several "mean (minimum to maximum)"."""
    finite = [value for value in values if value is not None]
    if len(finite) < 2:
        return show_score(finite[0] if finite else None, percent)
    mean = show_score(sum(finite) / len(finite), percent)
    return f"{mean} ({show_score(min(finite), percent)} to {show_score(max(finite), percent)})"


def spread(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Minimum, mean and maximum; each is None if there are no values."""
    if not values:
        return None, None, None
    return min(values), sum(values) / len(values), max(values)


def show_duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def rounded(value: Any, digits: int | None) -> Any:
    """Rounded to significant digits, to keep files small; six are enough for four decimals of a percentage."""
    return float(f"{value:.{digits}g}") if digits is not None and isinstance(value, float) else value


def show_plain(value: object) -> str:
    """A JSON value as text for a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{key} = {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def show_seeds(seeds: Sequence[int]) -> str:
    """Seeds in the format of `--seeds`: 0-11, or 3,5,8."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def counted(number: int, noun: str) -> str:
    """For example 1 task, 3 tasks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
