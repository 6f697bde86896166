"""Scores and times as a reader wants them: percent where the metric is a fraction, and a range over seeds."""

from __future__ import annotations

from collections.abc import Sequence


def show_score(value: float | None, percent: bool) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if percent else f"{value:.4g}"


def show_scores(values: Sequence[float | None], percent: bool) -> str:
    """One seed: its score. Several: mean (minimum to maximum)."""
    finite = [value for value in values if value is not None]
    if len(finite) < 2:
        return show_score(finite[0] if finite else None, percent)
    mean = show_score(sum(finite) / len(finite), percent)
    return f"{mean} ({show_score(min(finite), percent)} to {show_score(max(finite), percent)})"


def spread(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Minimum, mean and maximum; None for each where there is no value."""
    if not values:
        return None, None, None
    return min(values), sum(values) / len(values), max(values)


def show_duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
