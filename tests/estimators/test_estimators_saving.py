"""One file an estimator: what comes back predicts the same, for every kind of label and task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_series import QUICK, waves

from lipschitz_rnn import data

estimators = pytest.importorskip("lipschitz_rnn.estimators", reason="needs scikit-learn", exc_type=ImportError)
LipschitzRNNClassifier = estimators.LipschitzRNNClassifier
LipschitzRNNForecaster = estimators.LipschitzRNNForecaster
LipschitzRNNRegressor = estimators.LipschitzRNNRegressor


@pytest.mark.parametrize("labels", [[3, 11], [0.0, 2.0], [True, False], ["b", "a"]])
def test_a_classifier_comes_back(labels: list[Any], tmp_path: Path) -> None:
    X, _ = waves(12)
    y = np.array(labels * 6)
    weights = {labels[0]: 2.0}
    model = LipschitzRNNClassifier(**QUICK, n_seeds=2, class_weight=weights, unit_options={"beta": 0.8}).fit(X, y)
    again = LipschitzRNNClassifier.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.classes_.dtype == model.classes_.dtype
    assert again.predict(X).tolist() == model.predict(X).tolist()
    assert again.get_params() == model.get_params()
    assert again.history_ == model.history_
    assert (again.n_features_in_, again.n_iter_, again.notes_) == (2, 3, model.notes_)
    again.set_params(warm_start=True, lr=1e-12).fit(X, y)
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), atol=1e-6)


def test_regressor_and_forecaster_come_back(tmp_path: Path) -> None:
    X, _ = waves(12)
    for y in (np.arange(12.0), np.arange(24.0).reshape(12, 2)):
        model = LipschitzRNNRegressor(**QUICK).fit(X, y)
        again = LipschitzRNNRegressor.load(model.save(tmp_path / "numbers.safetensors"))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    walks = np.random.default_rng(0).normal(size=(3, 2, 30)).cumsum(2)
    forecaster = LipschitzRNNForecaster(**QUICK, channels=(1,), horizon=4).fit(walks)
    loaded = LipschitzRNNForecaster.load(forecaster.save(tmp_path / "forecasts.safetensors"))
    np.testing.assert_array_equal(loaded.predict(walks), forecaster.predict())
    with pytest.raises(ValueError, match="X is None"):
        loaded.predict(2)


def test_files_of_others_are_refused_or_read(tmp_path: Path) -> None:
    X, y = waves(12)
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        LipschitzRNNClassifier().save(tmp_path / "model.safetensors")
    model = LipschitzRNNClassifier(**QUICK).fit(X, y)
    path = model.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="LipschitzRNNClassifier"):
        LipschitzRNNRegressor.load(path)
    with pytest.raises(ValueError, match="no-such"):
        LipschitzRNNClassifier.load(tmp_path / "no-such.safetensors")
    # A file that no estimator wrote: as from `lipschitz-rnn export`.
    plain = data.save_model(tmp_path / "plain.safetensors", model.models_)
    found = LipschitzRNNClassifier.load(plain)
    assert found.predict(X).tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(data.load_model(path).predict(data.from_arrays(X)).mean, model.predict_proba(X))
