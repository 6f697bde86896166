"""scikit-learn's own checks, and its tools: clone, Pipeline, cross-validation, search, pickles, metadata routing."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from small_series import QUICK, padded, waves

sklearn = pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6, whose checks these are")
estimator_checks = pytest.importorskip("sklearn.utils.estimator_checks")
selection = pytest.importorskip("sklearn.model_selection")
estimators = pytest.importorskip("lipschitz_rnn.estimators")
LipschitzRNNClassifier = estimators.LipschitzRNNClassifier
LipschitzRNNForecaster = estimators.LipschitzRNNForecaster
LipschitzRNNRegressor = estimators.LipschitzRNNRegressor
clone, cross_val_score = sklearn.base.clone, selection.cross_val_score

_WIDTH = "(cases, time) is one channel of any length: n_features_in_ counts channels"
NOT_APPLICABLE = {
    "check_n_features_in": _WIDTH,
    "check_n_features_in_after_fitting": _WIDTH,
    "check_classifiers_train": f"wants an error for another length; {_WIDTH}",
    "check_regressors_train": "one epoch is not enough; test_checks_that_need_training runs it",
    "check_class_weight_classifiers": "one epoch is not enough; test_checks_that_need_training runs it",
}


@estimator_checks.parametrize_with_checks(
    [
        kind(hidden_size=4, epochs=1, batch_size=64, random_state=0)
        for kind in (LipschitzRNNClassifier, LipschitzRNNRegressor)
    ],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE,
)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, request: pytest.FixtureRequest) -> None:
    if "check_class_weight" in request.node.name:
        pytest.skip(NOT_APPLICABLE["check_class_weight_classifiers"])
    check(estimator)


def test_checks_that_need_training() -> None:
    trained = {"hidden_size": 32, "epochs": 30, "lr": 0.02, "unit_options": {"step_size": 0.5}, "random_state": 0}
    estimator_checks.check_regressors_train("LipschitzRNNRegressor", LipschitzRNNRegressor(**trained))
    quick = LipschitzRNNClassifier(hidden_size=8, epochs=8, lr=0.03, random_state=0)
    estimator_checks.check_class_weight_classifiers("LipschitzRNNClassifier", quick)
    with pytest.raises(AssertionError, match="number of features in predict"):  # the last assertion, and only this one
        estimator_checks.check_classifiers_train("LipschitzRNNClassifier", LipschitzRNNClassifier(**trained))


def test_class_weights() -> None:
    """The data of scikit-learn's check: clusters that overlap, so that the weights alone decide."""
    from sklearn.datasets import make_blobs

    X, y = make_blobs(centers=2, random_state=0, cluster_std=20, n_samples=80)
    model = LipschitzRNNClassifier(hidden_size=8, epochs=10, lr=0.03, random_state=0)
    often = [
        float((clone(model).set_params(class_weight=weights).fit(X, y).predict(X) == 0).mean())
        for weights in ({0: 1000, 1: 0.0001}, {0: 0.0001, 1: 1000})
    ]
    assert often == [1.0, 0.0]
    with pytest.raises(ValueError, match="'c'"):
        clone(model).set_params(class_weight={"c": 1.0}).fit(X, y)


@pytest.mark.parametrize("kind", [LipschitzRNNClassifier, LipschitzRNNRegressor, LipschitzRNNForecaster])
def test_parameters_are_stored_untouched(kind: Any) -> None:
    options = {"beta": 0.8}
    model = kind(unit_options=options, hidden_size=5, verbose=2)
    assert model.get_params()["unit_options"] is options
    assert model.set_params(hidden_size=7) is model
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert list(vars(copy)) == list(vars(kind()))
    assert {"hidden_size", "unit", "n_seeds", "warm_start", "random_state"} <= set(model.get_params())
    with pytest.raises((TypeError, ValueError), match="hiden_size"):
        kind(hiden_size=3)
    with pytest.raises(ValueError, match="hiden_size"):
        model.set_params(hiden_size=3)


def test_series_go_through_pipelines_validation_and_search() -> None:
    X, y = waves(24)
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    whole = padded(X)
    pipeline = make_pipeline(FunctionTransformer(lambda values: 2.0 * values), LipschitzRNNClassifier(**QUICK))
    assert cross_val_score(pipeline, whole, y, cv=2, n_jobs=1).shape == (2,)
    assert cross_val_score(LipschitzRNNClassifier(**QUICK), X, y, cv=2).shape == (2,)
    grid = selection.GridSearchCV(
        LipschitzRNNClassifier(**QUICK), {"hidden_size": np.array([4, 6]), "lr": [0.01]}, cv=2
    )
    found = grid.fit(X, y)
    assert found.best_params_["hidden_size"] in (4, 6)
    assert found.predict(X).shape == (24,)
    numbers = cross_val_score(LipschitzRNNRegressor(**QUICK), X, np.arange(24.0), cv=2)
    assert np.isfinite(numbers).all()
    walks = np.random.default_rng(0).normal(size=(6, 1, 40)).cumsum(2)
    assert np.isfinite(cross_val_score(LipschitzRNNForecaster(**QUICK), walks, cv=2)).all()


def test_times_are_routed_to_fit_and_score() -> None:
    X, y = waves(24)
    times = [np.random.default_rng(index).exponential(size=case.shape[1]).cumsum() for index, case in enumerate(X)]
    with sklearn.config_context(enable_metadata_routing=True):
        model = LipschitzRNNClassifier(**QUICK).set_fit_request(times=True).set_score_request(times=True)
        scores = cross_val_score(model, X, y, cv=2, params={"times": times}, error_score="raise")
    assert scores.shape == (2,)


@pytest.mark.parametrize("options", [{}, {"unit_options": {"stability": "contracting"}, "n_seeds": 2}])
def test_pickle_and_joblib_give_the_same_model(options: dict[str, Any]) -> None:
    joblib = pytest.importorskip("joblib")
    X, y = waves(12)
    model = LipschitzRNNClassifier(**QUICK, **options).fit(X, y)
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), expected)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(X), expected)
