"""Columns of DataFrames are found by name, in `fit` and in everything after it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_series import QUICK, waves

from lipschitz_rnn.data import SeriesError

pd = pytest.importorskip("pandas", reason="needs pandas")
sklearn_base = pytest.importorskip("sklearn.base", reason="needs scikit-learn")
estimators = pytest.importorskip("lipschitz_rnn.estimators", reason="needs scikit-learn", exc_type=ImportError)
LipschitzRNNClassifier = estimators.LipschitzRNNClassifier
LipschitzRNNForecaster = estimators.LipschitzRNNForecaster
LipschitzRNNRegressor = estimators.LipschitzRNNRegressor


def frames(order: str = "ab") -> tuple[list[Any], Any]:
    X, y = waves(12)
    return [pd.DataFrame(case.T * [1.0, 5.0], columns=["a", "b"])[list(order)] for case in X], y


def arrays() -> list[Any]:
    return [frame.to_numpy().T for frame in frames()[0]]


def test_columns_are_found_by_name() -> None:
    (X, y), (swapped, _) = frames(), frames("ba")
    model = LipschitzRNNClassifier(**QUICK).fit(X, y)
    assert model.feature_names_in_.dtype == object
    assert model.feature_names_in_.tolist() == ["a", "b"]
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(model.predict_proba(swapped), expected)
    np.testing.assert_array_equal(model.predict_proba(arrays()), expected)
    assert model.score(swapped, y) == model.score(X, y)
    mixed = LipschitzRNNClassifier(**QUICK).fit([X[0], *swapped[1:]], y)
    np.testing.assert_array_equal(mixed.predict_proba(X), expected)
    regressor = LipschitzRNNRegressor(**QUICK).fit(X, np.arange(12.0))
    np.testing.assert_array_equal(regressor.predict(swapped), regressor.predict(X))


def test_forecasters_find_columns_by_name() -> None:
    (X, _), (swapped, _) = frames(), frames("ba")
    one = LipschitzRNNForecaster(**QUICK).fit(X[0])
    assert one.feature_names_in_.tolist() == ["a", "b"]
    np.testing.assert_array_equal(one.predict(swapped[0], horizon=2), one.predict(X[0], horizon=2))
    assert one.score(swapped[0]) == one.score(X[0])
    with pytest.raises(SeriesError, match="no column 'b'"):
        one.predict(X[0][["a"]])
    several = LipschitzRNNForecaster(**QUICK).fit(X)
    np.testing.assert_array_equal(several.predict(swapped), several.predict(X))
    assert not hasattr(LipschitzRNNForecaster(**QUICK).fit(X[0]["a"]), "feature_names_in_")


def test_other_columns_are_refused() -> None:
    X, y = frames()
    model = LipschitzRNNClassifier(**QUICK).fit(X, y)
    with pytest.raises(SeriesError, match=r"series 0 of X has no column 'b'; it has 'a', 'c', but the series of"):
        model.predict([frame.rename(columns={"b": "c"}) for frame in X])
    with pytest.raises(SeriesError, match=r"series 1 of X has the column 'c' too.*leave it out: frame\[\['a', 'b'\]\]"):
        model.predict([X[0], X[1].assign(c=0.0)])
    with pytest.raises(SeriesError, match="series 2 of X has no column 'b'"):
        LipschitzRNNClassifier(**QUICK).fit([*X[:2], X[2].rename(columns={"b": "c"}), *X[3:]], y)
    with pytest.raises(SeriesError, match="name 'a' twice"):
        LipschitzRNNClassifier(**QUICK).fit([frame[["a", "a"]] for frame in X], y)


def test_without_names_channels_are_taken_in_order() -> None:
    X, y = frames()
    numbered = [frame.set_axis([0, 1], axis=1) for frame in X]
    model = LipschitzRNNClassifier(**QUICK).fit(numbered, y)
    assert not hasattr(model, "feature_names_in_")
    named = LipschitzRNNClassifier(**QUICK).fit(X, y)
    np.testing.assert_array_equal(named.predict_proba(numbered), model.predict_proba(X))
    assert not hasattr(named.fit(arrays(), y), "feature_names_in_")


def test_names_survive_copies_files_and_searches(tmp_path: Path) -> None:
    from sklearn.model_selection import GridSearchCV

    (X, y), (swapped, _) = frames(), frames("ba")
    model = LipschitzRNNClassifier(**QUICK).fit(X, y)
    expected = model.predict_proba(X)
    for again in (
        pickle.loads(pickle.dumps(model)),
        LipschitzRNNClassifier.load(model.save(tmp_path / "model.safetensors")),
        sklearn_base.clone(model).fit(X, y),
    ):
        assert again.feature_names_in_.tolist() == ["a", "b"]
        np.testing.assert_array_equal(again.predict_proba(swapped), expected)
    search = GridSearchCV(LipschitzRNNClassifier(**QUICK), {"hidden_size": [4]}, cv=2).fit(X, y)
    np.testing.assert_array_equal(search.predict_proba(swapped), search.predict_proba(X))


def test_a_warm_start_goes_on_by_name() -> None:
    (X, y), (swapped, _) = frames(), frames("ba")
    model = LipschitzRNNClassifier(**QUICK, warm_start=True).fit(X, y)
    before = model.predict_proba(X)
    model.set_params(lr=1e-12).fit(swapped, y)
    np.testing.assert_allclose(model.predict_proba(X), before, atol=1e-6)
    assert model.fit(arrays(), y).feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(SeriesError, match="no column 'b'"):
        model.fit([frame[["a"]] for frame in X], y)


def test_a_model_of_a_file_knows_the_columns_of_the_file(tmp_path: Path) -> None:
    """As exported: by name if its file had names, in order if it had arrays."""
    from lipschitz_rnn.data import save_model

    (X, y), (swapped, _) = frames(), frames("ba")
    for fitted, named in ((X, True), (arrays(), False)):
        model = LipschitzRNNClassifier(**QUICK).fit(fitted, y)
        again = LipschitzRNNClassifier.load(save_model(tmp_path / "exported.safetensors", model.models_))
        assert hasattr(again, "feature_names_in_") == named
        if named:
            np.testing.assert_array_equal(again.predict_proba(swapped), model.predict_proba(X))
