"""`LipschitzRNNClassifier`: one class per series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from lipschitz_rnn.data import SeriesSet, probabilities
from lipschitz_rnn.estimators.base import PARAMETERS, SeriesEstimator
from lipschitz_rnn.estimators.fitting import Trained, in_ordinary_mode, validation_part
from lipschitz_rnn.estimators.signatures import with_parameters_of
from lipschitz_rnn.estimators.task import EstimatorTask

Array = npt.NDArray[Any]


class LipschitzRNNClassifier(ClassifierMixin, SeriesEstimator):
    __doc__ = f"""Classify whole series with a recurrent network.

    Series may differ in length, have NaN for missing values, and come with the times of their samples.

    Parameters:
        class_weight: None, "balanced", or a mapping of class -> weight in the loss; 1 for those it leaves out.
{PARAMETERS}
    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        models_, history_, n_features_in_, feature_names_in_, n_iter_, notes_: as in `SeriesEstimator`.
    """

    classes_: Array

    @with_parameters_of(SeriesEstimator)
    def __init__(self, *, class_weight: Any = None, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.class_weight = class_weight

    @in_ordinary_mode
    def fit(self, X: Any, y: Any, times: Any = None) -> Self:
        """Train on series and their labels.

        Args:
            X: (cases, channels, time), (cases, time) for one channel, or a list of (channels, time_i); NaN is missing.
                Steps at the end of a case that are NaN in every channel are padding.
            y: (cases,) labels: numbers or texts.
            times: of the samples: (time,) for all cases, (cases, time), or a list of (time_i,).
        """
        parameters, generator = self._begin()
        given, continues = self._to_fit(X, times)
        series = given.series
        classes, codes = _labels(y, series, type(self).__name__)
        if continues and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"warm_start goes on with a model for the classes {self.classes_.tolist()}, but y has "
                f"{classes.tolist()}; give y with the same classes, or set warm_start=False"
            )
        series = replace(
            series,
            targets=codes,
            target_level="series",
            target_names=("y",),
            classes=tuple(str(label) for label in classes.tolist()),
            spelled=None,
        )
        held = validation_part(len(series), self.validation_fraction, generator, codes)
        rest = np.setdiff1d(np.arange(len(series)), held)
        judged = held if len(held) else rest
        task = EstimatorTask(
            series,
            "classify",
            splits={"train": rest, "validation": judged, "test": judged},  # type: ignore[dict-item]
            class_weights=self._weights(classes),
            **self._task_options(parameters, continues),
        )
        trained = self._train(task, parameters, generator, len(held) > 0, continues)
        self._keep(trained, given, task.notes(), continues)
        self.classes_ = classes
        return self

    def _weights(self, classes: Array) -> Any:
        """What `SeriesTask` takes as class_weights."""
        given = self.class_weight
        if given is None or (isinstance(given, str) and given == "balanced"):
            return "none" if given is None else "balanced"
        if not isinstance(given, Mapping):
            raise ValueError(f'class_weight is {given!r}; it must be None, "balanced" or a mapping of class -> weight')
        unknown = [label for label in given if label not in classes.tolist()]
        if unknown:
            raise ValueError(f"class_weight has the class {unknown[0]!r}, but y has {classes.tolist()}; leave it out")
        return [float(given.get(label, 1.0)) for label in classes.tolist()]

    def predict_proba(self, X: Any, times: Any = None) -> npt.NDArray[np.float64]:
        """(cases, classes): the mean of the networks' probabilities, in the order of `classes_`."""
        outputs = self._outputs(X, times)
        result: npt.NDArray[np.float64] = np.mean([probabilities(each) for each in outputs], axis=0)
        return result

    def predict(self, X: Any, times: Any = None) -> Array:
        """(cases,): the label with the largest probability."""
        chances = self.predict_proba(X, times)
        labels: Array = self.classes_[chances.argmax(1)]
        return labels

    def _extra(self) -> dict[str, Any]:
        return {"classes": {"dtype": str(self.classes_.dtype), "values": self.classes_.tolist()}}

    def _restore(self, trained: Trained, extra: dict[str, Any]) -> None:
        kept = extra.get("classes")
        names = trained.models[0].target.classes
        self.classes_ = np.array(names) if kept is None else np.array(kept["values"], dtype=kept["dtype"])
        super()._restore(trained, extra)

    def score(self, X: Any, y: Any, sample_weight: Any = None, times: Any = None) -> float:
        """Accuracy."""
        return float(accuracy_score(y, self.predict(X, times), sample_weight=sample_weight))


def _labels(y: Any, series: SeriesSet, owner: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """The classes, sorted, and the position of every case's label among them."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None; give one label per series")
    y = column_or_1d(y, warn=True)
    check_consistent_length(series.ids, y)
    missing = [place for place, label in enumerate(y.tolist()) if label is None or label != label]
    if missing:
        raise ValueError(
            f"y has {y.tolist()[missing[0]]!r} at position {missing[0]}: Input y contains NaN; give every series a "
            "label, or leave the series out"
        )
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("Input y contains infinity; labels must be finite numbers or texts")
    try:
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in y.tolist()})
        raise TypeError(f"y mixes labels of the types {', '.join(kinds)}; give numbers only, or texts only") from error
    if len(classes) < 2:
        raise ValueError(
            f"y has one class only, {classes.tolist()[0]!r}; a classifier needs at least 2 classes: add series of "
            "another class"
        )
    return classes, codes.reshape(-1).astype(np.int64)
