"""`LipschitzRNNRegressor`: one number, or several, per series."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length, column_or_1d

from lipschitz_rnn.data import SeriesSet
from lipschitz_rnn.data.fitting import LARGEST
from lipschitz_rnn.estimators.base import PARAMETERS, SeriesEstimator
from lipschitz_rnn.estimators.fitting import Trained, in_ordinary_mode, validation_part
from lipschitz_rnn.estimators.task import EstimatorTask

Array = npt.NDArray[Any]


class LipschitzRNNRegressor(RegressorMixin, SeriesEstimator):
    __doc__ = f"""Predict numbers from whole series with a recurrent network.

    Series may differ in length, have NaN for missing values, and come with the times of their samples. The numbers are
    scaled for training, and predicted in their own unit.

    Parameters:
{PARAMETERS.lstrip(chr(10))}
    Attributes:
        n_outputs_: numbers per series.
        models_, history_, n_features_in_, feature_names_in_, n_iter_, notes_: as in `SeriesEstimator`.
    """

    n_outputs_: int

    @in_ordinary_mode
    def fit(self, X: Any, y: Any, times: Any = None) -> Self:
        """Train on series and their numbers.

        Args:
            X: (cases, channels, time), (cases, time) for one channel, or a list of (channels, time_i); NaN is missing.
                Steps at the end of a case that are NaN in every channel are padding.
            y: (cases,) or (cases, q) numbers.
            times: of the samples: (time,) for all cases, (cases, time), or a list of (time_i,).
        """
        parameters, generator = self._begin()
        given, continues = self._to_fit(X, times)
        series = given.series
        goals, flat = _numbers(y, series, type(self).__name__)
        if continues and goals.shape[1] != self.n_outputs_:
            raise ValueError(
                f"warm_start goes on with a model for {self.n_outputs_} numbers per series, but y has "
                f"{goals.shape[1]}; give y with as many, or set warm_start=False"
            )
        names = ("y",) if goals.shape[1] == 1 else tuple(f"y{index}" for index in range(goals.shape[1]))
        series = replace(series, targets=goals, target_level="series", target_names=names, spelled=None)
        held = validation_part(len(series), self.validation_fraction, generator)
        rest = np.setdiff1d(np.arange(len(series)), held)
        judged = held if len(held) else rest
        task = EstimatorTask(
            series,
            "regress",
            splits={"train": rest, "validation": judged, "test": judged},  # type: ignore[dict-item]
            **self._task_options(parameters, continues),
        )
        trained = self._train(task, parameters, generator, len(held) > 0, continues)
        self._keep(trained, given, task.notes(), continues)
        self._calibrate(trained, task, len(held) > 0)
        self.n_outputs_, self._flat = goals.shape[1], flat
        return self

    def predict(self, X: Any, times: Any = None) -> Array:
        """(cases,), or (cases, q) if `fit` had such targets: the mean of the networks."""
        mean: Array = np.mean(self._outputs(X, times), axis=0)
        return mean[:, 0] if self._flat else mean

    def predict_interval(self, X: Any, coverage: float = 0.9, times: Any = None) -> Array:
        """(cases, 2): a lower and an upper end between which the true number lies with probability `coverage`;
        (cases, q, 2) if `fit` had targets (cases, q), for each number by itself.

        The prediction ± the error that this share of the validation cases does not exceed, so `fit` needs a
        validation_fraction. New series must come from the same source as those of `fit`.
        """
        mean = np.mean(self._outputs(X, times), axis=0)
        widths = self._half_widths(coverage)
        ends: Array = np.stack((mean - widths, mean + widths), -1)
        return ends[:, 0] if self._flat else ends

    def _extra(self) -> dict[str, Any]:
        return {"flat": self._flat}

    def _restore(self, trained: Trained, extra: dict[str, Any]) -> None:
        self.n_outputs_ = trained.models[0].target.size
        self._flat = bool(extra.get("flat", self.n_outputs_ == 1))
        super()._restore(trained, extra)

    def score(self, X: Any, y: Any, sample_weight: Any = None, times: Any = None) -> float:
        """R², the share of the variance that is explained."""
        return float(r2_score(y, self.predict(X, times), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _numbers(y: Any, series: SeriesSet, owner: str) -> tuple[npt.NDArray[np.float64], bool]:
    """(cases, q) in float64, and whether the user gave (cases,)."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None; give one number per series")
    found = np.asarray(y)
    if found.ndim not in (1, 2):
        found = column_or_1d(y)  # raises with the shape
    if found.dtype.kind in "mM":
        raise TypeError(f"y has dtype {found.dtype}; give numbers, e.g. the seconds since a fixed date")
    if found.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: y has dtype {found.dtype}; give real numbers")
    try:
        goals = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y does not hold numbers: {error}; give (cases,) or (cases, q) numbers") from error
    check_consistent_length(series.ids, goals)
    if not np.isfinite(goals).all():
        place = np.argwhere(~np.isfinite(goals))[0].tolist()
        value = goals[tuple(place)]
        raise ValueError(
            f"y has {value} at position {place[0]}: Input y contains {'NaN' if np.isnan(value) else 'infinity'}; give "
            "every series a finite number, or leave the series out"
        )
    largest = int(np.abs(goals).reshape(len(goals), -1).max(1).argmax())
    if np.abs(goals[largest]).max() > LARGEST:
        raise ValueError(
            f"y has {goals[largest]} at position {largest}; numbers may be up to {LARGEST:g}: use another unit"
        )
    return goals.reshape(len(goals), -1), goals.ndim == 1
