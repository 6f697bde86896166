"""The estimators for sktime against sktime's own checks (`make test-peers`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sktime", reason="sktime is not installed; make test-peers has it")
checking = pytest.importorskip("sktime.utils.estimator_checks")
peers = pytest.importorskip("lipschitz_rnn.estimators.sktime")

# The kinds of estimators, and a lower limit for the number of checks: none of them may be lost silently.
KINDS = {peers.LipschitzRNNClassifier: 200, peers.LipschitzRNNRegressor: 120, peers.LipschitzRNNForecaster: 600}


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_checks_of_sktime(kind: Any) -> None:
    results = checking.check_estimator(kind, raise_exceptions=False, verbose=0)
    failed = {name: result for name, result in results.items() if str(result) != "PASSED"}
    assert not failed
    assert len(results) >= KINDS[kind]


def test_forecasts_go_on_from_new_samples() -> None:
    import pandas as pd

    y = pd.Series(np.sin(0.3 * np.arange(80.0)))
    model = peers.LipschitzRNNForecaster(hidden_size=8, epochs=5, random_state=0).fit(y[:70])
    first = model.predict(fh=[1, 5])
    assert first.index.tolist() == [70, 74]
    weights = model.model_.models_[0].head.weight.detach().clone()
    model.update(y[70:], update_params=False)
    later = model.predict(fh=[1, 5])
    assert later.index.tolist() == [80, 84]
    assert (model.model_.models_[0].head.weight == weights).all()
    expected = model.model_.predict(y, horizon=5)
    np.testing.assert_allclose(later.to_numpy(), expected[[0, 4]])
