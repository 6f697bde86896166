"""The estimators as aeon's: for its pipelines, benchmarks and tools. Needs aeon 1.6 or later.

They take the same parameters, and hold the estimator that does the work in `model_`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from aeon.classification.base import BaseClassifier
    from aeon.forecasting.base import BaseForecaster, IterativeForecastingMixin, SeriesToSeriesForecastingMixin
    from aeon.regression.base import BaseRegressor
except ImportError as error:
    raise ImportError("lipschitz_rnn.estimators.aeon needs aeon; install it with: pip install 'aeon>=1.6'") from error

from lipschitz_rnn.estimators import classifier, forecaster, regressor
from lipschitz_rnn.estimators.signatures import inner_model, store_parameters, with_parameters_of

Array = npt.NDArray[Any]
_COLLECTIONS = {
    "X_inner_type": ["np-list", "numpy3D"],
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:missing_values": True,
    "algorithm_type": "deeplearning",
}
_QUICK: dict[str, Any] = {"hidden_size": 8, "epochs": 2, "device": "cpu"}  # for aeon's own checks


class LipschitzRNNClassifier(BaseClassifier):
    """`lipschitz_rnn.estimators.LipschitzRNNClassifier` with aeon's interface."""

    _tags = _COLLECTIONS

    @with_parameters_of(classifier.LipschitzRNNClassifier)
    def __init__(self, **parameters: Any) -> None:
        store_parameters(self, classifier.LipschitzRNNClassifier, parameters)
        super().__init__()

    def _fit(self, X: Any, y: Any) -> LipschitzRNNClassifier:
        self.model_ = inner_model(self, classifier.LipschitzRNNClassifier).fit(X, y)
        return self

    def _predict(self, X: Any) -> Array:
        return self.model_.predict(X)

    def _predict_proba(self, X: Any) -> Array:
        return self.model_.predict_proba(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any] | list[dict[str, Any]]:
        return dict(_QUICK)


class LipschitzRNNRegressor(BaseRegressor):
    """`lipschitz_rnn.estimators.LipschitzRNNRegressor` with aeon's interface."""

    _tags = _COLLECTIONS

    @with_parameters_of(regressor.LipschitzRNNRegressor)
    def __init__(self, **parameters: Any) -> None:
        store_parameters(self, regressor.LipschitzRNNRegressor, parameters)
        super().__init__()

    def _fit(self, X: Any, y: Any) -> LipschitzRNNRegressor:
        self.model_ = inner_model(self, regressor.LipschitzRNNRegressor).fit(X, y)
        return self

    def _predict(self, X: Any) -> Array:
        return self.model_.predict(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any] | list[dict[str, Any]]:
        return dict(_QUICK)


class LipschitzRNNForecaster(IterativeForecastingMixin, SeriesToSeriesForecastingMixin, BaseForecaster):
    """`lipschitz_rnn.estimators.LipschitzRNNForecaster` with aeon's interface: one series, one number ahead.

    `predict(y)` is the value `horizon` samples after the end of y. `series_to_series_forecast(y, 12)` gives 12 values.
    """

    _tags = {"capability:missing_values": True, "algorithm_type": "deeplearning"}  # noqa: RUF012

    @with_parameters_of(forecaster.LipschitzRNNForecaster)
    def __init__(self, **parameters: Any) -> None:
        store_parameters(self, forecaster.LipschitzRNNForecaster, parameters)
        super().__init__(horizon=self.horizon, axis=1)

    def _fit(self, y: Any, exog: Any = None) -> LipschitzRNNForecaster:
        self.model_ = inner_model(self, forecaster.LipschitzRNNForecaster).fit(np.asarray(y)[np.newaxis])
        return self

    def _predict(self, y: Any, exog: Any = None) -> float:
        ahead = self.model_.predict(np.asarray(y)[np.newaxis], horizon=self.horizon)
        return float(ahead[0, 0, -1])

    def _series_to_series_forecast(self, y: Any, prediction_horizon: int, exog: Any = None) -> Array:
        self.fit(y, exog)
        ahead: Array = self.model_.predict(horizon=prediction_horizon)[0, 0]
        return ahead

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any] | list[dict[str, Any]]:
        return dict(_QUICK)
