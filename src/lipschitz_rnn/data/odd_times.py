"""Times that can be used, but are probably not meant so: another unit than in training, dates written as numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.fitting import Fitted
from lipschitz_rnn.data.series import SeriesSet

_FACTOR = 10.0  # a typical gap so much longer or shorter than in training: another unit of time, more likely than not
# Numbers that read as dates of the years 1900 to 2199, by the number of digits: 20260131, 202601311200, 20260131120000.
_DATES = {8: (), 12: (24, 60), 14: (24, 60, 60)}


def other_unit(series: SeriesSet, fitted: Fitted) -> str | None:
    """What to say if the typical gap of series to predict is far from that of the training; None if it is not."""
    return None if series.times is None else other_gaps(series.gaps, fitted, series.source)


def other_gaps(gaps: npt.NDArray[np.float64], fitted: Fitted, source: str) -> str | None:
    """The same for times between samples, which are at least one; `source` is where they come from."""
    used = fitted.time_use != "ignored" or fitted.missing == "since"
    if fitted.gap is None or not used or len(gaps) == 0:
        return None
    typical = float(np.median(gaps))
    ratio = typical / fitted.gap
    if 1.0 / _FACTOR <= ratio <= min(_FACTOR, fitted.longest_gap):
        return None
    if ratio > 1.0:
        clipped = float((gaps > fitted.longest_gap * fitted.gap).mean())
        effect = f"{clipped:.0%} of the gaps are above {fitted.longest_gap:g} typical ones and count as that many"
    else:
        effect = "the state hardly moves from one sample to the next"
    return (
        f"the typical gap between samples of {source} is {typical:.4g}, {ratio:.3g} times that of the training "
        f"({fitted.gap:.4g}): {effect}. If these times are in another unit, write them in that of the training "
        "(seconds, for dates); if the series are sampled at another rate, train with such series"
    )


def far_ahead(gaps: npt.NDArray[np.float64], fitted: Fitted) -> str | None:
    """What to say if forecasts are asked for further apart than the longest gap that counts; None if they are not."""
    if fitted.gap is None or fitted.time_use == "ignored" or gaps.size == 0:
        return None
    longest = fitted.longest_gap * fitted.gap
    count = int((gaps > longest * (1.0 + 1e-9)).sum())
    if count == 0:
        return None
    return (
        f"{count} of {gaps.size} forecasts are up to {gaps.max():.4g} after the sample before, and gaps above "
        f"{longest:.4g} ({fitted.longest_gap:g} typical ones of the training) count as that. Forecast in shorter "
        "steps, or train with a larger longest_gap (--longest-gap)"
    )


def dates_as_numbers(series: SeriesSet) -> str | None:
    """What to say if times such as 20260131 were read as numbers; None if there are none."""
    if series.times is None or series.clock.kind != "number":
        return None
    if not _read_as_dates(series.times):
        return None
    return (
        f"times such as {series.times[0]:.0f} look like dates, but count as numbers: from one month to the next they "
        "jump. Write them as 2026-01-31 or 2026-01-31T12:00:00"
    )


def _read_as_dates(times: npt.NDArray[np.float64]) -> bool:
    if len(times) < 2 or times.min() < 19e6 or times.max() >= 22e12 or not (times == np.floor(times)).all():
        return False
    digits = len(str(int(times.min())))
    if digits not in _DATES or len(str(int(times.max()))) != digits:
        return False
    rest = times.astype(np.int64)
    for limit in reversed(_DATES[digits]):
        rest, part = np.divmod(rest, 100)
        if (part >= limit).any():
            return False
    years, months, days = rest // 10_000, rest // 100 % 100, rest % 100
    return bool(((years >= 1900) & (years < 2200) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())
