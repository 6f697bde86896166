"""A search that runs out of time still proves what it found, says how much is left, and reports on the way."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
import torch
from stability_examples import random_pair

import lipschitz_rnn as lr
from lipschitz_rnn.stability import Progress, certify
from lipschitz_rnn.stability.search import clock


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is read, so that a limit means a number of readings."""
    seconds = count()
    monkeypatch.setattr(clock.time, "monotonic", lambda: float(next(seconds)))


def test_a_search_that_is_cut_off_proves_what_it_found(ticking: None) -> None:
    A, W = random_pair(np.random.default_rng(7), 20, "easy")
    whole = certify((A, W), step_size=0.1, time_limit=math.inf)
    assert whole.complete
    assert "time limit" not in whole.sentence()
    seen = []
    for limit in range(5, 400, 35):
        cut = certify((A, W), step_size=0.1, time_limit=limit)
        assert cut.complete or cut.rate <= whole.upper_bound
        if not cut.holds:
            assert cut.cause == "time"
            assert "decays at" in cut.reason
        elif not cut.complete:
            assert cut.gap == pytest.approx(cut.upper_bound - cut.rate)
            assert f"at most {cut.upper_bound:.4g}, which is {cut.gap / cut.rate:.0%} more" in cut.sentence()
            assert cut.to_dict()["complete"] is False
        seen.append((cut.holds, cut.complete))
    assert (True, False) in seen  # a certificate from an unfinished search
    assert (True, True) in seen


def test_stacks_say_which_search_was_cut_off(ticking: None) -> None:
    torch.manual_seed(0)
    layers = lr.LipschitzRNN(2, 10, num_layers=2, gamma=(3.0, 0.1), init_scale=4.0)
    cut = certify(layers, time_limit=150)
    assert cut.holds
    assert not cut.complete
    assert "ended the search for layer 0, layer 1" in cut.sentence()


def test_progress_is_reported() -> None:
    torch.manual_seed(0)
    seen: list[Progress] = []
    certificate = certify(lr.LipschitzRNN(2, 12, gamma=(1.0, 0.1), init_scale=4.0), progress=seen.append)
    assert seen[0].upper_bound == math.inf
    assert {"Euclidean metric", "full metric", "proof"} <= {progress.stage for progress in seen}
    rates = [progress.rate for progress in seen]
    assert rates == sorted(rates)
    assert rates[-1] >= certificate.rate
    assert seen[-1].upper_bound == certificate.upper_bound
    with pytest.raises(ValueError, match="progress is 3; give a function"):
        certify(([[-1.0]], [[0.1]]), progress=3)  # type: ignore[arg-type]


@pytest.mark.full
def test_a_layer_of_256_units_is_certified() -> None:
    torch.manual_seed(0)
    certificate = certify(lr.LipschitzRNN(3, 256, gamma=(1.0, 0.1), init_scale=4.0), time_limit=math.inf)
    assert certificate.holds
    assert certificate.gap < 0.1 * certificate.upper_bound
