"""`LipschitzRNNForecaster`: the next values of series."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_is_fitted

from lipschitz_rnn.data import SeriesSet, SeriesWarning, predict
from lipschitz_rnn.data.arrays import kind_of_times, seconds, unmasked
from lipschitz_rnn.data.odd_times import far_ahead
from lipschitz_rnn.data.splits import Windows, cut_windows
from lipschitz_rnn.estimators.base import PARAMETERS, SeriesEstimator
from lipschitz_rnn.estimators.fitting import FEWEST, in_ordinary_mode, plain, require_count, validation_share
from lipschitz_rnn.estimators.signatures import with_parameters_of
from lipschitz_rnn.estimators.task import EstimatorTask

Array = npt.NDArray[Any]
_WARMUP = 50  # samples before the validation part that only set the state
_CASES = 256  # free runs at a time


class LipschitzRNNForecaster(SeriesEstimator):
    __doc__ = f"""Forecast the next values of one series or of many with a recurrent network.

    The network learns the change to the next sample; further ones follow from its own forecasts. Series may differ in
    length, have NaN for missing values, and come with the times of their samples.

        model = LipschitzRNNForecaster().fit(y)      # y: (time,), one series
        model.predict(12)                            # the next 12 values
        model.predict(other, horizon=12)             # those of another series

    Parameters:
        horizon: how many samples `predict` forecasts if it is not told.
        channels: positions of the channels to forecast, e.g. (0, 2); None: all. Others are inputs only: they keep their
            last value while several samples are forecast.
        window: samples of the parts of series that are trained on; the parts overlap by half.
{PARAMETERS}
    The validation part is the end of every series: validation_fraction of its samples. Set validation_fraction=0 to
    train on all of them.

    Attributes:
        models_, history_, n_features_in_, feature_names_in_, n_iter_, notes_: as in `SeriesEstimator`.
    """

    @with_parameters_of(SeriesEstimator)
    def __init__(
        self, *, horizon: int = 1, channels: Sequence[int] | None = None, window: int = 100, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.horizon = horizon
        self.channels = channels
        self.window = window

    @in_ordinary_mode
    def fit(self, X: Any, y: Any = None, times: Any = None) -> Self:
        """Train on series.

        Args:
            X: (time,) for one series, (cases, time), (cases, channels, time), or a list of (channels, time_i). A pandas
                Series or DataFrame is one series, a row a sample.
            y: not used; there for scikit-learn's tools.
            times: of the samples: (time,) for all cases, (cases, time), or a list of (time_i,).
        """
        parameters, generator = self._begin()
        for name, lowest in (("horizon", 1), ("window", 2)):
            require_count(name, getattr(self, name), lowest)
        cases, layout = _as_cases(X)
        given, continues = self._to_fit(cases, times)
        series = given.series
        if int(series.lengths.max()) < 3:
            raise ValueError(f"the longest series has {series.lengths.max()} samples; a forecaster needs at least 3")
        share = validation_share(self.validation_fraction, series.total)
        windows, validated = _windows(series, share, int(plain(self.window)))
        positions = _positions(self.channels, len(series.columns))
        if continues and tuple(positions) != self.models_[0].target.columns:
            raise ValueError(
                f"warm_start goes on with a model that forecasts the channels {self.models_[0].target.columns}, but "
                f"channels are now {tuple(positions)}; set them back, or set warm_start=False"
            )
        names = [series.columns[index] for index in positions]
        options = self._task_options(parameters, continues)
        task = EstimatorTask(series, "forecast", windows=windows, forecast=names, **options)
        trained = self._train(task, parameters, generator, validated, continues)
        self._keep(trained, given, task.notes(), continues)
        self._calibrate(trained, task, validated, int(plain(self.horizon)))
        self._last, self._layout = series, layout
        return self

    def predict(self, X: Any = None, horizon: Any = None, times: Any = None, future_times: Any = None) -> Array:
        """Forecast the samples after the end of each series.

        Args:
            X: series as in `fit`; None: those of `fit`. `predict(12)` is short for `predict(horizon=12)`.
            horizon: how many samples; None: the parameter of the estimator.
            times: of the samples of X, if the model was trained with times.
            future_times: of the forecasts, (horizon,) or (cases, horizon), for a model that was trained with irregular
                times; None: one typical gap apart.

        Returns:
            (horizon,) for one series (time,); (cases, horizon) for (cases, time); (cases, channels, horizon) otherwise.
            For a DataFrame (horizon, columns), in the order of `feature_names_in_`.
        """
        runs, layout = self._runs(X, horizon, times, future_times)
        return _in_layout(runs.mean(0), layout)

    def predict_interval(
        self,
        X: Any = None,
        horizon: Any = None,
        coverage: float = 0.9,
        times: Any = None,
        future_times: Any = None,
    ) -> Array:
        """As `predict`, with an axis of two at the end: a lower and an upper end between which each value lies with
        probability `coverage`.

        The forecast ± the error that this share of free runs over the validation part does not exceed so many samples
        ahead: `fit` needs a validation_fraction, and a `horizon` that is as long. Future samples must behave like those
        of the validation part.
        """
        runs, layout = self._runs(X, horizon, times, future_times)
        mean = runs.mean(0)
        widths = self._half_widths(coverage, mean.shape[1])
        return np.stack([_in_layout(end, layout) for end in (mean - widths, mean + widths)], -1)

    def _runs(self, X: Any, horizon: Any, times: Any, future_times: Any) -> tuple[npt.NDArray[np.float64], str]:
        """(networks, cases, horizon, channels), and the layout of the answer."""
        check_is_fitted(self)
        if isinstance(X, int | np.integer) and not isinstance(X, bool):
            if horizon is not None:
                name = f"; a coverage is named: coverage={horizon}" if isinstance(horizon, float) else ""
                raise ValueError(f"the horizon is given twice: {X} and {horizon}; give it once{name}")
            X, horizon = None, X
        horizon = plain(self.horizon if horizon is None else horizon)
        require_count("horizon", horizon, 1)
        if X is None:
            if not hasattr(self, "_last"):
                raise ValueError("X is None, but a loaded model does not hold the series of its training; give X")
            series, layout = self._last, self._layout
        else:
            cases, layout = _as_cases(X)
            series = self._series(cases, times)
        future = None if future_times is None else self._future(future_times, series, horizon)
        return np.stack([self._free_runs(model, series, horizon, future) for model in self.models_]), layout

    def _future(self, times: Any, series: SeriesSet, horizon: int) -> torch.Tensor:
        """(cases, horizon)."""
        cases = len(series)
        fitted = self.models_[0].preprocessing.fitted
        if not fitted.ahead:
            why = "without times" if fitted.gap is None else f"with regular times ({fitted.gap:.6g} apart)"
            raise ValueError(f"future_times are given, but this model was fitted {why}; leave them out")
        try:
            found, kind = seconds(times), kind_of_times(np.asarray(times))
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"future_times do not hold numbers or dates: {error}; give ({horizon},) of them"
            ) from error
        self._require_clock("future_times", kind)
        if found.shape not in ((horizon,), (cases, horizon)):
            raise ValueError(
                f"future_times have shape {found.shape}; they must be ({horizon},) or ({cases}, {horizon})"
            )
        found = np.broadcast_to(found, (cases, horizon)).copy()
        assert series.times is not None
        odd = far_ahead(np.diff(found, axis=1, prepend=series.times[series.offsets[1:] - 1, np.newaxis]), fitted)
        if odd is not None:
            warnings.warn(odd, SeriesWarning, stacklevel=4)
        return torch.from_numpy(found)

    def _free_runs(
        self, model: Any, series: SeriesSet, horizon: int, future: torch.Tensor | None
    ) -> npt.NDArray[np.float64]:
        """(cases, horizon, channels)."""
        device = next(model.parameters()).device
        timed = model.preprocessing.fitted.gap is not None
        parts = []
        for start in range(0, len(series), _CASES):
            values, times, lengths = series[start : start + _CASES].padded()
            moved = times.to(device) if times is not None and timed else None
            then = None if future is None else future[start : start + _CASES].to(device)
            with torch.no_grad():
                found = model.free_run(values.double().to(device), moved, lengths.to(device), horizon, then)
            parts.append(found.cpu())
        return torch.cat(parts).double().numpy()

    def score(self, X: Any, y: Any = None, times: Any = None) -> float:
        """Skill of the forecasts one sample ahead: 1 - (their squared error) / (that of repeating the last value).

        1 is perfect, 0 is as good as the last value, and below 0 is worse.
        """
        cases, _ = _as_cases(X)
        series = self._series(cases, times)
        target = self.models_[0].target
        found = np.mean([predict(model, series) for model in self.models_], axis=0)
        error = spread = 0.0
        for index in range(len(series)):
            low, high = int(series.offsets[index]), int(series.offsets[index + 1])
            values = series.values[low:high, list(target.columns)].astype(np.float64)
            last = _carried(values)
            known = np.isfinite(values[1:]) & np.isfinite(last[:-1])
            error += float(((found[low : high - 1] - values[1:])[known] ** 2).sum())
            spread += float(((last[:-1] - values[1:])[known] ** 2).sum())
        if spread == 0.0:
            raise ValueError("no value of X changes from one sample to the next, so there is nothing to score")
        return 1.0 - error / spread


def _as_cases(X: Any) -> tuple[Any, str]:
    """Cases as the other estimators take them, and the layout that predictions must have."""
    if type(X).__module__.partition(".")[0] == "pandas":
        import pandas as pd

        return ([X], "frame") if np.ndim(X) == 2 else ([pd.DataFrame({0: X})], "time")
    if isinstance(X, list | tuple) and len(X) and all(np.ndim(each) == 0 for each in X):
        X = np.asarray(X, dtype=np.float64)
    if isinstance(X, np.ndarray) and X.dtype != object and X.ndim == 1:
        X = unmasked(X)
        return X[np.newaxis, np.newaxis], "time"
    flat = np.ndim(X[0]) == 1 if hasattr(X, "__getitem__") and hasattr(X, "__len__") and len(X) else False
    return X, "cases" if flat else "channels"


def _in_layout(found: npt.NDArray[np.float64], layout: str) -> Array:
    """(cases, horizon, channels) in the layout of the input."""
    if layout == "frame":
        return found[0]
    if layout == "time":
        return found[0, :, 0]
    return found[:, :, 0] if layout == "cases" else found.transpose(0, 2, 1)


def _positions(channels: Sequence[int] | None, count: int) -> list[int]:
    if channels is None:
        return list(range(count))
    positions = [plain(index) for index in channels]
    for index in positions:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise ValueError(f"channels are {list(channels)}; they must be positions from 0 to {count - 1}")
    if not positions or len(set(positions)) < len(positions):
        raise ValueError(f"channels are {list(channels)}; give at least one, each once")
    return positions


def _windows(series: SeriesSet, share: float, window: int) -> tuple[dict[Any, Windows], bool]:
    """The past of every series to train on, in pieces, and its end to validate on.

    If the ends are too short to say anything, everything is for training, and judged too.
    """
    starts, lengths = series.offsets[:-1], series.lengths
    held = np.floor(lengths * share).astype(np.int64)
    held[lengths - held < 3] = 0
    if held.sum() < FEWEST:
        held[:] = 0
    cut = lengths - held
    train = cut_windows(starts, 0 * cut, cut, window, 0, overlap=True)
    some = np.flatnonzero(held)
    if len(some) == 0:
        return {"train": train, "validation": train, "test": train}, False
    last = cut_windows(starts[some], cut[some], lengths[some], window, _WARMUP)
    last = Windows(some[last.series], last.start, last.length, last.skip)
    return {"train": train, "validation": last, "test": last}, True


def _carried(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(time, channels) with the last value seen in place of NaN."""
    steps = np.where(np.isfinite(values), np.arange(len(values))[:, np.newaxis], 0)
    return np.take_along_axis(values, np.maximum.accumulate(steps, axis=0), axis=0)
