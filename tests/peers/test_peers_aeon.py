"""The estimators for aeon against aeon's own checks (`make test-peers`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("aeon", reason="aeon is not installed; make test-peers has it")
checking = pytest.importorskip("aeon.testing.estimator_checking")
peers = pytest.importorskip("lipschitz_rnn.estimators.aeon")

KINDS = [peers.LipschitzRNNClassifier, peers.LipschitzRNNRegressor, peers.LipschitzRNNForecaster]


@checking.parametrize_with_checks(KINDS)
def test_the_checks_of_aeon(check: Any) -> None:
    check()


def test_a_classifier_learns_unequal_lengths() -> None:
    from aeon.datasets import load_japanese_vowels

    X, y = load_japanese_vowels(split="train")
    model = peers.LipschitzRNNClassifier(hidden_size=32, epochs=15, random_state=0).fit(X, y)
    unseen, labels = load_japanese_vowels(split="test")
    assert model.score(unseen, labels) > 0.8  # nine classes
    assert model.get_params()["hidden_size"] == 32


def test_forecasts_of_one_fit_agree() -> None:
    y = np.sin(0.3 * np.arange(80.0))
    model = peers.LipschitzRNNForecaster(hidden_size=8, epochs=5, random_state=0)
    whole = model.series_to_series_forecast(y, 4)
    steps = peers.LipschitzRNNForecaster(hidden_size=8, epochs=5, random_state=0).iterative_forecast(y, 4)
    np.testing.assert_allclose(whole, steps, atol=1e-5)
    third = peers.LipschitzRNNForecaster(hidden_size=8, epochs=5, random_state=0, horizon=3).forecast(y)
    assert third == pytest.approx(whole[2], abs=1e-5)
