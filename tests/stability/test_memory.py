"""How fast differences fade on data."""

import math

import pytest
import torch

import lipschitz_rnn as lr


def test_a_linear_network_forgets_as_its_eigenvalue_says() -> None:
    """With W = 0 and A = −a, a difference shrinks by 1 − εa in every step, whatever the input."""
    rnn = lr.LipschitzRNN(1, 2, beta=0.5, gamma=(0.5, 0.0), step_size=0.1, dtype=torch.float64)
    with torch.no_grad():
        rnn.cell().hidden.M_A.zero_()
        rnn.cell().hidden.M_W.zero_()
    found = lr.stability.memory_length(rnn, torch.ones(600, 1, 1, dtype=torch.float64))
    assert found.tau == pytest.approx(-1 / math.log(1 - 0.1 * 0.5), rel=0.02)
    steps = found.steps_to(1e-3)
    assert steps is not None
    assert steps == pytest.approx(math.log(1e-3) / math.log(0.95), rel=0.02)
    assert found.proved_tau is None


def test_what_is_seen_is_never_slower_than_what_is_proved() -> None:
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(1, 8, stability="contracting", rate=1.0, step_size=0.1, parallel=4)
    found = lr.stability.memory_length(rnn, torch.randn(500, 2, 1))
    assert found.proved_tau == pytest.approx(10.0)
    assert found.tau <= found.proved_tau * 1.5  # the metric may hide the first of it
    assert "proved for every input" in str(found)
    assert rnn.parallel == 4


def test_wrong_use() -> None:
    rnn = lr.LipschitzRNN(1, 4, bidirectional=True)
    with pytest.raises(ValueError, match="both directions"):
        lr.stability.memory_length(rnn, torch.randn(5, 1, 1))
    found = lr.stability.memory_length(lr.LipschitzRNN(1, 4), torch.randn(5, 1, 1))
    with pytest.raises(ValueError, match="between 0 and 1"):
        found.steps_to(2.0)


def test_nothing_is_proved_of_stacks_and_other_steps() -> None:
    """What an upper layer makes of a difference that fades does not fade at its own rate."""
    settings = {"stability": "contracting", "rate": 1.0, "step_size": 0.1}
    stack = lr.LipschitzRNN(1, 4, num_layers=3, **settings)
    assert lr.stability.memory_length(stack, torch.randn(100, 1, 1)).proved_tau is None
    rnn = lr.LipschitzRNN(1, 4, **settings)
    short = lr.stability.memory_length(rnn, torch.randn(100, 1, 1), timespans=torch.full((100, 1), 0.001))
    assert short.proved_tau is None
