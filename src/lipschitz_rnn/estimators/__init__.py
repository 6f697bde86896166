"""Estimators with scikit-learn's rules for series of one's own: classify, regress, forecast."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "lipschitz_rnn.estimators needs scikit-learn; install it with: pip install lipschitz-rnn[data]"
    ) from error

from lipschitz_rnn.estimators.classifier import LipschitzRNNClassifier as LipschitzRNNClassifier
from lipschitz_rnn.estimators.forecaster import LipschitzRNNForecaster as LipschitzRNNForecaster
from lipschitz_rnn.estimators.regressor import LipschitzRNNRegressor as LipschitzRNNRegressor
