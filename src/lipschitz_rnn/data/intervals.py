"""Prediction intervals from the errors on series that did not train (split conformal prediction)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_KEPT = 500  # errors of a step and target; of more, every so many are kept, and the next larger one counts


@dataclass(frozen=True)
class Intervals:
    """How far predictions were off on validation data: by step ahead (one step for regressions) and by target.

    An interval is the prediction ± the error that a share of the validation errors does not exceed. If a new series
    and the validation series are exchangeable, i.e. they come from the same source in any order, then the interval
    contains the true value with at least that probability, as a mean over such series; whatever the network and the
    distribution, as long as the validation series did not choose between networks; where they chose the epoch, it is a
    little less. With several values per series, or forecasts along one series, errors depend on each other, and the
    probability is approximate. It does not hold for data that drift away.
    """

    errors: tuple[tuple[tuple[float, ...], ...], ...]
    """[step][target]: the absolute errors, increasing; thinned to 500."""
    counts: tuple[tuple[int, ...], ...]
    """[step][target]: how many there were."""
    series: int
    """How many series they are from."""

    @classmethod
    def fit(cls, errors: npt.NDArray[np.float64], series: int) -> Intervals:
        """errors: (n, steps, targets), NaN where the true value is not known."""
        kept, counts = [], []
        for step in range(errors.shape[1]):
            columns = [np.sort(column[np.isfinite(column)]) for column in np.abs(errors[:, step]).T]
            kept.append(tuple(tuple(column[_ranks(len(column)) - 1].tolist()) for column in columns))
            counts.append(tuple(len(column) for column in columns))
        return cls(tuple(kept), tuple(counts), series)

    @property
    def steps(self) -> int:
        return len(self.errors)

    def half_widths(self, coverage: float, steps: int = 1) -> npt.NDArray[np.float64]:
        """(steps, targets): how far lower and upper ends are from the prediction."""
        if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage is {coverage!r}; it must be a number between 0 and 1, e.g. 0.9")
        if steps > self.steps:
            raise ValueError(
                f"intervals are known for {self.steps} step(s) ahead, but {steps} are asked for; train with a horizon "
                f"of {steps}"
            )
        result = np.empty((steps, len(self.counts[0])))
        for step in range(steps):
            for target, count in enumerate(self.counts[step]):
                rank = math.ceil((count + 1) * coverage - 1e-9)
                if rank > count:
                    needed = math.ceil(coverage / (1.0 - coverage) - 1e-9)
                    ahead = f" {step + 1} step(s) ahead" if self.steps > 1 else ""
                    raise ValueError(
                        f"coverage is {coverage:g}, which needs at least {needed} validation errors{ahead}, but there "
                        f"are {count}; ask for less, or train with a larger validation part"
                    )
                place = int(np.searchsorted(_ranks(count), rank))
                result[step, target] = self.errors[step][target][place]
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors to six digits, rounded up."""
        digits = [[[_rounded_up(error) for error in column] for column in step] for step in self.errors]
        return {"errors": digits, "counts": [list(step) for step in self.counts], "series": self.series}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Intervals:
        errors = tuple(tuple(tuple(map(float, column)) for column in step) for step in record["errors"])
        return cls(errors, tuple(tuple(map(int, step)) for step in record["counts"]), int(record["series"]))


def _ranks(count: int) -> npt.NDArray[np.int64]:
    """The ranks, from 1, of the errors that are kept of so many; the largest is among them."""
    return np.unique(np.ceil(np.linspace(1, count, min(count, _KEPT))).astype(np.int64)) if count else np.empty(0, int)


def _rounded_up(error: float) -> float:
    return float(f"{error * (1.0 + 5.1e-6):.6g}")  # six digits differ by at most 5e-6
