"""`SeriesEstimator`: what classifier, regressor and forecaster share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from lipschitz_rnn.data import SeriesError, SeriesModel, SeriesSet, as_trained, predict
from lipschitz_rnn.data.arrays import TimeKind, channel_names
from lipschitz_rnn.data.calibration import calibrate
from lipschitz_rnn.data.intervals import Intervals
from lipschitz_rnn.estimators.fitting import Trained, check_parameters, seeds_of, train, unit_settings
from lipschitz_rnn.estimators.inputs import Given, as_series, require_channels

Array = npt.NDArray[Any]
_SHAPE = ("hidden_size", "unit", "num_layers", "n_seeds", "scaling", "missing", "time_use", "longest_gap")

PARAMETERS = """
        hidden_size: the size of the state.
        unit: a recurrent unit: "lipschitz", "gru", "lstm" or another of `lipschitz_rnn.units.available()`; or
            "contracting", the Lipschitz unit that is proved to forget, with settings in which it learns well.
        unit_options: options of the unit, e.g. {"beta": 0.8}; for "contracting" e.g. {"rate": 0.02}.
        num_layers: stacked layers.
        dropout: on the input of the head, in training.
        input_noise: standard deviation of noise on the scaled channels, in training; 0.3 to 0.6 helps small data sets.
        epochs: the most epochs; training may stop earlier, see patience.
        lr: the largest learning rate of Adam.
        batch_size: cases per update; "auto": about eight updates per epoch, with at most 64 cases.
        schedule: of the learning rate: "one-cycle", "cosine", "constant".
        weight_decay: of Adam.
        clip: largest norm of the gradient; None: no limit.
        validation_fraction: share of the training cases that choose the epoch; the best one is kept. With 0, or if the
            share is fewer than 4 cases or than the classes, all cases train and the best epoch in training is kept.
            "auto": 0.15 from 1000 cases (of a forecaster: samples) on, else 0, since a small data set needs them all.
        patience: stop after so many epochs without a better validation score; None: never. Without a validation part
            all epochs are trained.
        n_seeds: networks that are trained at once and predict together: the mean of their outputs.
        scaling: of the channels: "standard", "robust", "minmax" or "none".
        missing: what stands for NaN: "mask" (0, and an input that says so), "forward", "since"; "auto" is "mask".
        time_use: of `times`: "step", "input", "ignored"; "auto": as a step if the unit has continuous time, else as an
            input if samples are irregular.
        longest_gap: longer times between samples count as this many typical ones.
        warm_start: whether `fit` goes on with the networks and scales of the last `fit`.
        device: "auto", "cpu" or "cuda".
        verbose: 0: silent; 1: a line of progress; 2: a line per epoch.
        random_state: an integer for the same result at every call, a `RandomState`, or None.
"""


class SeriesEstimator(BaseEstimator):
    """The common part; use one of its subclasses.

    Attributes:
        models_: the trained networks as whole models, one per seed, from raw values to outputs.
        history_: name -> one number per epoch, the mean over the networks.
        n_features_in_: channels of the series.
        feature_names_in_: their names, if `fit` had DataFrames; later ones are read by these names.
        n_iter_: epochs trained in the last `fit`.
        notes_: what was found in the data and done with it, in words.
    """

    models_: tuple[SeriesModel, ...]
    history_: dict[str, list[float]]
    n_features_in_: int
    feature_names_in_: Array
    n_iter_: int
    notes_: tuple[str, ...]
    _intervals: Intervals | None = None
    _clock: TimeKind | None = None  # what the times of the fit were, if it had some

    def __init__(
        self,
        *,
        hidden_size: int = 64,
        unit: str = "lipschitz",
        unit_options: dict[str, Any] | None = None,
        num_layers: int = 1,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        epochs: int = 100,
        lr: float = 0.005,
        batch_size: int | str = "auto",
        schedule: str = "one-cycle",
        weight_decay: float = 0.0,
        clip: float | None = 1.0,
        validation_fraction: float | str = "auto",
        patience: int | None = 30,
        n_seeds: int = 1,
        scaling: str = "standard",
        missing: str = "auto",
        time_use: str = "auto",
        longest_gap: float = 10.0,
        warm_start: bool = False,
        device: str = "auto",
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.hidden_size = hidden_size
        self.unit = unit
        self.unit_options = unit_options
        self.num_layers = num_layers
        self.dropout = dropout
        self.input_noise = input_noise
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.clip = clip
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.n_seeds = n_seeds
        self.scaling = scaling
        self.missing = missing
        self.time_use = time_use
        self.longest_gap = longest_gap
        self.warm_start = warm_start
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    # -- fitting -----------------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[dict[str, Any], np.random.RandomState]:
        """The checked parameters, and the generator that draws the seeds and the validation part."""
        parameters = self.get_params(deep=False)
        check_parameters(parameters)
        return parameters, check_random_state(self.random_state)

    def _to_fit(self, X: Any, times: Any) -> tuple[Given, bool]:
        """What `fit` was given, and whether a warm start goes on with the last fit; raises if it does not fit to it."""
        continues = self.warm_start and hasattr(self, "models_") and self._trained.settings is not None
        names = getattr(self, "feature_names_in_", None) if continues else None
        given = as_series(X, times, owner=type(self).__name__, names=names)
        if continues:
            self._require_same(given)
            given = replace(given, series=replace(given.series, columns=self.models_[0].preprocessing.columns))
        return given, continues

    def _require_same(self, given: Given) -> None:
        """Raise if a warm start cannot go on with these series and parameters."""
        self._require_clock("times", given.clock)
        channels = len(given.series.columns)
        if channels != self.n_features_in_:
            raise ValueError(
                f"warm_start goes on with a model for {self.n_features_in_} channels, but X has {channels}; give X "
                "with the same channels, or set warm_start=False"
            )
        changed = [name for name in (*_SHAPE, "unit_options") if self._shape[name] != getattr(self, name)]
        if changed:
            name = changed[0]
            raise ValueError(
                f"warm_start goes on with a model with {name}={self._shape[name]!r}, but {name} is now "
                f"{getattr(self, name)!r}; set it back, or set warm_start=False"
            )

    def _task_options(self, parameters: dict[str, Any], continues: bool) -> dict[str, Any]:
        """The arguments of `SeriesTask` that follow from the parameters."""
        return {
            "scaling": self.scaling,
            "missing": self.missing,
            "times": self.time_use,
            "step_size": unit_settings(parameters)[2],
            "longest_gap": self.longest_gap,
            "input_noise": float(self.input_noise),
            "like": self._trained.record if continues else None,
        }

    def _train(
        self, task: Any, parameters: dict[str, Any], generator: np.random.RandomState, validated: bool, continues: bool
    ) -> Trained:
        if continues:
            assert self._trained.settings is not None
            return train(task, parameters, self._trained.settings.seeds, validated=validated, before=self.models_)
        return train(task, parameters, seeds_of(generator, int(self.n_seeds)), validated=validated)

    def _calibrate(self, trained: Trained, task: Any, validated: bool, horizon: int = 1) -> None:
        """Intervals from the validation part, if there is one."""
        self._intervals = calibrate(trained.models, task, horizon) if validated else None

    def _half_widths(self, coverage: Any, steps: int = 1) -> npt.NDArray[np.float64]:
        """(steps, targets)."""
        if self._intervals is None:
            raise ValueError(
                "this model has no intervals: they come from the errors on a validation part, and all cases were used "
                "for training. Fit with validation_fraction=0.2"
            )
        return self._intervals.half_widths(coverage, steps)

    def _keep(self, trained: Trained, given: Given, notes: tuple[str, ...], continues: bool) -> None:
        """Set the fitted attributes; nothing before this changes the estimator, so a failed fit leaves it as it was."""
        earlier = self.history_ if continues else {}
        self._trained = trained
        self._shape = self._shape_now()
        self.models_ = trained.models
        self.history_ = {name: earlier.get(name, []) + values for name, values in trained.history.items()}
        self.n_features_in_ = len(given.series.columns)
        self._keep_names(given.names, continues)
        self._clock = self._clock if continues else given.clock
        self.n_iter_ = len(next(iter(trained.history.values()), []))
        self.notes_ = (*notes, *given.notes)

    def _keep_names(self, names: Sequence[str] | None, continues: bool = False) -> None:
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif not continues and hasattr(self, "feature_names_in_"):
            del self.feature_names_in_  # those of an earlier fit

    def _shape_now(self) -> dict[str, Any]:
        """The parameters that a warm start cannot change."""
        options = None if self.unit_options is None else dict(self.unit_options)
        return {name: getattr(self, name) for name in _SHAPE} | {"unit_options": options}

    # -- predicting --------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def _series(self, X: Any, times: Any) -> SeriesSet:
        """Series to predict for, with the channels of the training."""
        check_is_fitted(self)
        owner = type(self).__name__
        given = as_series(X, times, owner=owner, names=getattr(self, "feature_names_in_", None))
        require_channels(given.series, self.n_features_in_, owner)
        if times is not None and self.models_[0].preprocessing.fitted.gap is None:
            raise ValueError(f"times are given, but this {owner} was fitted without them; leave them out")
        self._require_clock("times", given.clock)
        # By position: arrays have no names, and DataFrames are in the order of the model's by now.
        series = replace(given.series, columns=self.models_[0].preprocessing.columns)
        return as_trained(series, self.models_[0])

    def _require_clock(self, name: str, kind: TimeKind | None) -> None:
        """Raise if times are numbers and those of the fit dates, or the reverse: they would be far in the future."""
        fitted = self._clock
        if None not in (kind, fitted) and (kind == "number") != (fitted == "number"):
            raise SeriesError(
                f"{name} are {kind}s, but this {type(self).__name__} was fitted with {fitted}s; give {fitted}s"
            )

    def _outputs(self, X: Any, times: Any) -> list[npt.NDArray[np.float64]]:
        """What every network gives for every series."""
        series = self._series(X, times)
        return [predict(model, series) for model in self.models_]

    # -- what else a fitted model can do -----------------------------------------------------------------------------

    def certify(self, **options: Any) -> Any:
        """The contraction certificate of all networks together (`lipschitz_rnn.stability.certify`).

        It holds for all times between samples that the model takes, also if those of the training were regular; without
        times, for its one step. Search takes at most 10 seconds per layer unless `time_limit` says otherwise. The
        Lipschitz unit, also as "contracting", "ren", "lru", "rnn" and a few others can be certified; gated units such
        as "lstm" are refused.
        """
        check_is_fitted(self)
        from lipschitz_rnn.stability import certify

        return certify(nn.ModuleList(self.models_), **({"time_limit": 10.0} | options))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted estimator to one .safetensors file, which `load` and `lipschitz_rnn.data.load_model` read.

        The series of the training are not in it.
        """
        check_is_fitted(self)
        from lipschitz_rnn.estimators.storing import save_estimator

        return save_estimator(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator of a file that `save` wrote, or of a model file that `lipschitz-rnn export` wrote."""
        from lipschitz_rnn.estimators.storing import load_estimator

        found: Self = load_estimator(cls, path)
        return found

    def _extra(self) -> dict[str, Any]:
        """What a file keeps besides models and parameters, as plain values."""
        return {}

    def _restore(self, trained: Trained, extra: dict[str, Any]) -> None:
        """Set the fitted attributes from a file."""
        self._trained = trained
        self._shape = self._shape_now()
        self.models_, self.history_ = trained.models, trained.history
        self._restore_inputs(trained.models[0].preprocessing.columns, extra)
        self.n_iter_ = int(extra.get("n_iter", 0))
        self.notes_ = tuple(extra.get("notes", ()))
        kept = extra.get("intervals")
        self._intervals = None if kept is None else Intervals.from_dict(kept)

    def _restore_inputs(self, columns: tuple[str, ...], extra: dict[str, Any]) -> None:
        """What the model knows of its inputs; one of a table has the names and the kind of times of the table."""
        self.n_features_in_ = len(columns)
        if "estimator" in extra:
            self._keep_names(extra.get("feature_names"))
            self._clock = extra.get("clock")
        elif columns != channel_names(len(columns)):  # arrays in a file have no names, and dates there are numbers
            self._keep_names(columns)
            self._clock = (extra.get("reading") or {}).get("clock")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags
