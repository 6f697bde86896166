"""An estimator whose layer runs in parallel over time predicts what a sequential one predicts."""

import numpy as np
import pytest

from lipschitz_rnn.estimators import LipschitzRNNClassifier


@pytest.mark.slow
def test_unit_options_reach_the_layer() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 1, 80)), np.arange(12) % 2
    X[y == 1] += 1.0
    found = []
    for more in ({}, {"parallel": 4}):
        options = {"stability": "contracting", "rate": 2.0, "step_size": 0.3, **more}
        model = LipschitzRNNClassifier(hidden_size=4, epochs=2, random_state=0, unit_options=options)
        found.append(model.fit(X, y).predict_proba(X))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)
