"""The estimators as sktime's: for its pipelines, tuning and tools.

They take the same parameters, and hold the estimator that does the work in `model_`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from sktime.classification.base import BaseClassifier
    from sktime.forecasting.base import BaseForecaster
    from sktime.regression.base import BaseRegressor
except ImportError as error:
    raise ImportError("lipschitz_rnn.estimators.sktime needs sktime; install it with: pip install sktime") from error

from lipschitz_rnn.estimators import classifier, forecaster, regressor
from lipschitz_rnn.estimators.signatures import inner_model, store_parameters, with_parameters_of

Array = npt.NDArray[Any]
_PANELS = {
    "X_inner_mtype": "df-list",
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:missing_values": True,
    "capability:categorical_in_X": False,
    "capability:random_state": True,
    "property:randomness": "derandomized",
}
_QUICK: dict[str, Any] = {"hidden_size": 8, "epochs": 2, "device": "cpu", "random_state": 0}  # for sktime's checks


class LipschitzRNNClassifier(BaseClassifier):
    """`lipschitz_rnn.estimators.LipschitzRNNClassifier` with sktime's interface.

    Examples
    --------
    >>> from sktime.datasets import load_unit_test
    >>> from lipschitz_rnn.estimators.sktime import LipschitzRNNClassifier
    >>> X, y = load_unit_test(split="train")
    >>> labels = LipschitzRNNClassifier(epochs=5, random_state=0).fit(X, y).predict(X)
    """

    _tags = {**_PANELS, "capability:predict_proba": True, "capability:class_weight": True}  # noqa: RUF012

    @with_parameters_of(classifier.LipschitzRNNClassifier)
    def __init__(self, **parameters: Any) -> None:
        store_parameters(self, classifier.LipschitzRNNClassifier, parameters)
        super().__init__()

    def _fit(self, X: Any, y: Any) -> LipschitzRNNClassifier:
        self.model_ = inner_model(self, classifier.LipschitzRNNClassifier).fit(_cases(X), y)
        return self

    def _predict(self, X: Any) -> Array:
        return self.model_.predict(_cases(X))

    def _predict_proba(self, X: Any) -> Array:
        return self.model_.predict_proba(_cases(X))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        return [dict(_QUICK), _QUICK | {"unit": "gru", "n_seeds": 2, "class_weight": "balanced"}]


class LipschitzRNNRegressor(BaseRegressor):
    """`lipschitz_rnn.estimators.LipschitzRNNRegressor` with sktime's interface.

    Examples
    --------
    >>> from sktime.datasets import load_unit_test
    >>> from lipschitz_rnn.estimators.sktime import LipschitzRNNRegressor
    >>> X, y = load_unit_test(split="train")
    >>> numbers = LipschitzRNNRegressor(epochs=5, random_state=0).fit(X, y.astype(float)).predict(X)
    """

    _tags = {**_PANELS, "capability:multioutput": True, "y_inner_mtype": "numpy2D"}  # noqa: RUF012

    @with_parameters_of(regressor.LipschitzRNNRegressor)
    def __init__(self, **parameters: Any) -> None:
        store_parameters(self, regressor.LipschitzRNNRegressor, parameters)
        super().__init__()

    def _fit(self, X: Any, y: Any) -> LipschitzRNNRegressor:
        self.model_ = inner_model(self, regressor.LipschitzRNNRegressor).fit(_cases(X), y)
        return self

    def _predict(self, X: Any) -> Array:
        return self.model_.predict(_cases(X))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        return [dict(_QUICK), _QUICK | {"unit": "gru", "n_seeds": 2}]


class LipschitzRNNForecaster(BaseForecaster):
    """`lipschitz_rnn.estimators.LipschitzRNNForecaster` with sktime's interface: fit(y), predict(fh).

    `update` lets forecasts start from the newest samples; with `update_params`, the default, the networks are trained
    anew on all samples.

    Examples
    --------
    >>> from sktime.datasets import load_airline
    >>> from lipschitz_rnn.estimators.sktime import LipschitzRNNForecaster
    >>> forecasts = LipschitzRNNForecaster(epochs=5, random_state=0).fit(load_airline()).predict(fh=[1, 2, 12])
    """

    _tags = {  # noqa: RUF012
        "y_inner_mtype": "pd.DataFrame",
        "capability:multivariate": True,
        "capability:exogenous": False,
        "capability:insample": False,
        "capability:pred_int:insample": False,
        "capability:missing_values": True,
        "capability:update": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": False,
    }

    @with_parameters_of(forecaster.LipschitzRNNForecaster)
    def __init__(self, **parameters: Any) -> None:
        store_parameters(self, forecaster.LipschitzRNNForecaster, parameters)
        super().__init__()

    def _fit(self, y: Any, X: Any, fh: Any) -> LipschitzRNNForecaster:
        self.model_ = inner_model(self, forecaster.LipschitzRNNForecaster).fit(y)
        self._seen = y
        return self

    def _update(self, y: Any, X: Any = None, update_params: bool = True) -> LipschitzRNNForecaster:
        seen = y.combine_first(self._seen)
        return self._fit(seen, X, None) if update_params else self._see(seen)

    def _see(self, y: Any) -> LipschitzRNNForecaster:
        self._seen = y
        return self

    def _predict(self, fh: Any, X: Any) -> Any:
        import pandas as pd

        steps = np.asarray(fh.to_relative(self.cutoff)).astype(np.int64)
        ahead = self.model_.predict(self._seen, horizon=int(steps.max()))
        index = fh.get_expected_pred_idx(y=self._seen, cutoff=self.cutoff)
        names = getattr(self.model_, "feature_names_in_", self._seen.columns)
        return pd.DataFrame(ahead[steps - 1], index=index, columns=names)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        return [dict(_QUICK), _QUICK | {"unit": "gru", "n_seeds": 2}]


def _cases(X: list[Any]) -> list[Array]:
    """A list of DataFrames, a row a sample, as arrays (channels, time_i)."""
    return [frame.to_numpy(dtype=np.float64).T for frame in X]
