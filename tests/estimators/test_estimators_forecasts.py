"""Forecaster: against a step-by-step free run, and against leaks from the validation part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_series import QUICK

estimators = pytest.importorskip("lipschitz_rnn.estimators", reason="needs scikit-learn", exc_type=ImportError)
LipschitzRNNForecaster = estimators.LipschitzRNNForecaster


def sines(cases: int = 5, length: int = 40) -> Any:
    steps = np.arange(length)
    phases = np.arange(cases)[:, np.newaxis]
    return np.stack([10 + np.sin(0.5 * steps + phases), np.cos(0.5 * steps + phases)], 1)


def test_forecasts_feed_back_their_own_values() -> None:
    X = sines()
    model = LipschitzRNNForecaster(**QUICK, n_seeds=2).fit(X)
    found = model.predict(horizon=4)
    assert found.shape == (5, 2, 4)
    expected = np.zeros_like(found)
    for network in model.models_:
        for case in range(5):
            values = X[case]
            for step in range(4):
                with torch.no_grad():
                    following = network(torch.tensor(values.T)[None])[0, -1].double().numpy()
                expected[case, :, step] += following / 2
                values = np.concatenate([values, following[:, np.newaxis]], 1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(model.predict(4), found)
    np.testing.assert_allclose(model.predict(list(X), horizon=4), found)
    assert model.predict().shape == (5, 2, 1)


def test_layouts() -> None:
    pandas = pytest.importorskip("pandas")
    X = sines()
    one = LipschitzRNNForecaster(**QUICK).fit(X[0, 0])
    assert one.predict(3).shape == (3,)
    np.testing.assert_allclose(one.predict(X[0, 0].tolist(), horizon=3), one.predict(3))
    np.testing.assert_allclose(one.predict(pandas.Series(X[0, 0]), horizon=3), one.predict(3))
    many = LipschitzRNNForecaster(**QUICK, horizon=3).fit(X[:, 0])
    assert many.predict().shape == (5, 3)
    frame = pandas.DataFrame(X[0].T, columns=["a", "b"])
    both = LipschitzRNNForecaster(**QUICK).fit(frame)
    assert both.n_features_in_ == 2
    assert both.predict(3).shape == (3, 2)
    part = LipschitzRNNForecaster(**QUICK, channels=(1,)).fit(X)
    assert part.predict(3).shape == (5, 1, 3)


def test_it_learns_a_sine() -> None:
    steps = np.arange(160)
    options = {"step_size": 0.3}
    model = LipschitzRNNForecaster(hidden_size=16, epochs=60, lr=0.02, random_state=0, unit_options=options)
    model.fit(100.0 + np.sin(0.4 * steps[:140]))
    expected = 100.0 + np.sin(0.4 * steps[140:150])
    assert np.abs(model.predict(10) - expected).max() < 0.3  # the values vary by 2
    assert model.score(100.0 + np.sin(0.4 * steps + 1.0)) > 0.9


def test_score_is_the_skill_against_the_last_value() -> None:
    X = sines(3, 20)
    X[1, 0, 5:7] = np.nan
    model = LipschitzRNNForecaster(**QUICK).fit(X)
    error = baseline = 0.0
    for case in X:
        with torch.no_grad():
            ahead = model.models_[0](torch.tensor(case.T)[None])[0].double().numpy()
        for channel in range(2):
            last = np.nan
            for step in range(19):
                last = last if np.isnan(case[channel, step]) else case[channel, step]
                if not np.isnan(case[channel, step + 1]):
                    error += (ahead[step, channel] - case[channel, step + 1]) ** 2
                    baseline += (last - case[channel, step + 1]) ** 2
    assert model.score(X) == pytest.approx(1 - error / baseline, rel=1e-5)


def test_the_end_that_validates_does_not_train() -> None:
    X = sines(4, 50)
    changed = X.copy()
    changed[:, :, 41:] += 100.0  # the next value of sample 40 is the first that validates
    parameters = {**QUICK, "validation_fraction": 0.2, "patience": None, "epochs": 2}
    first, second = (LipschitzRNNForecaster(**parameters).fit(values) for values in (X, changed))
    assert first.history_["loss"] == second.history_["loss"]
    assert first.history_["validation_loss"] != second.history_["validation_loss"]
    assert first.models_[0].preprocessing.fitted.center == second.models_[0].preprocessing.fitted.center


def test_times_and_warm_start() -> None:
    X = sines(3, 30)
    times = np.random.default_rng(0).exponential(size=(3, 30)).cumsum(1)
    model = LipschitzRNNForecaster(**QUICK, warm_start=True).fit(X, times=times)
    assert model.predict(2).shape == (3, 2, 2)
    np.testing.assert_allclose(model.predict(X, horizon=2, times=times), model.predict(2))
    ends = times[:, -1:]
    later = model.predict(horizon=2, future_times=ends + np.array([0.1, 5.0]))
    assert np.abs(later - model.predict(2)).max() > 1e-5
    np.testing.assert_allclose(
        model.predict(horizon=2, future_times=ends + np.median(np.diff(times)) * np.array([1.0, 2.0])), model.predict(2)
    )
    for wrong in (ends - 1.0 + np.zeros(2), np.zeros(3)):
        with pytest.raises(ValueError, match="future"):
            model.predict(horizon=2, future_times=wrong)
    assert len(model.fit(X, times=times).history_["loss"]) == 6
    with pytest.raises(ValueError, match="channels"):
        model.set_params(channels=[0]).fit(X, times=times)


@pytest.mark.parametrize(
    ("parameters", "X", "named"),
    [
        ({"horizon": 0}, sines(), "horizon is 0"),
        ({"window": 1}, sines(), "window is 1"),
        ({"channels": [2]}, sines(), r"\[2\]"),
        ({"channels": []}, sines(), r"\[\]"),
        ({}, np.zeros(2), "2 samples"),
        ({}, np.ones(30), "varies"),
    ],
)
def test_mistakes(parameters: dict[str, Any], X: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LipschitzRNNForecaster(**{**QUICK, **parameters}).fit(X)


def test_wrong_calls_of_predict() -> None:
    model = LipschitzRNNForecaster(**QUICK).fit(sines())
    for arguments, named in (((0,), "horizon is 0"), ((3, 4), "3 and 4"), ((sines()[:, :1],), "2 features")):
        with pytest.raises(ValueError, match=named):
            model.predict(*arguments)
