"""A certificate that is passed in counts only for the network that runs: other settings of it are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify, rounding_bound
from lipschitz_rnn.units.recurrence import UnstatedRecurrenceError

X = torch.linspace(-1.0, 1.0, 50).reshape(50, 1, 1)
TURNING = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])


def layer(A: torch.Tensor, W: torch.Tensor, **options: Any) -> lr.LipschitzRNN:
    """Of two units, with these matrices."""
    rnn = lr.LipschitzRNN(1, 2, beta=0.5, gamma=0.0, step_size=0.1, **options)
    with torch.no_grad():
        rnn.cell().hidden.M_A.copy_(A)
        rnn.cell().hidden.M_W.copy_(W)
    return rnn


TURNS = layer(TURNING - 0.04 * torch.eye(2), torch.zeros(2, 2))  # Euler steps of 0.1 grow, midpoint steps decay
GROWS = layer(-0.5 * torch.eye(2), torch.zeros(2, 2), alpha=-0.05)
STEEP = layer(-0.5 * torch.eye(2), 0.6 * torch.eye(2), nonlinearity="relu")
FAST = layer(5.0 * TURNING - 0.5 * torch.eye(2), torch.zeros(2, 2))
ELSEWHERE: list[tuple[lr.LipschitzRNN, dict[str, Any], str]] = [
    (TURNS, {"integrator": "midpoint"}, "another integrator"),
    (GROWS, {"alpha": 1.0}, "another alpha"),
    (STEEP, {"nonlinearity": "sigmoid"}, "other slopes"),
]


@pytest.mark.parametrize(("rnn", "settings", "message"), ELSEWHERE, ids=[case[-1] for case in ELSEWHERE])
@pytest.mark.parametrize("asked", [{"inputs": X}, {"input_bound": 1.0}], ids=["inputs", "bound"])
def test_rounding_is_not_bounded_by_another_map(
    rnn: lr.LipschitzRNN, settings: dict[str, Any], message: str, asked: dict[str, Any]
) -> None:
    assert not certify(rnn).holds
    other = certify(rnn, **settings)
    assert other.holds
    with pytest.raises(ValueError, match=f"about {message} than the layer has"):
        rounding_bound(rnn, certificate=other, **asked)


def test_the_same_slopes_do_not_round_alike() -> None:
    rnn = layer(-0.5 * torch.eye(2), 0.1 * torch.eye(2))
    with pytest.raises(ValueError, match="is about relu, but the layer has tanh, which rounds differently"):
        rounding_bound(rnn, X, certificate=certify(rnn, nonlinearity="relu"))


def test_a_bound_for_all_inputs_is_for_the_step_of_the_layer() -> None:
    with pytest.raises(ValueError, match=r"steps reach from 0.1 to 0.1, but the certificate covers 0.01 to 0.01"):
        rounding_bound(FAST, input_bound=1.0, certificate=certify(FAST, step_size=0.01))
    divided = layer(5.0 * TURNING - 0.5 * torch.eye(2), torch.zeros(2, 2), max_step=0.01)
    assert rounding_bound(divided, input_bound=1.0, certificate=certify(divided, step_size=0.01)).peak < 1e-3


def test_shorter_steps_round_more_often() -> None:
    """An Euler step inherits contraction from a longer one, but less of it, while its rounding stays."""
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(1, 6, gamma=2.0, step_size=0.1)
    longer = certify(rnn)
    rnn.step_size = 1e-4
    own = rounding_bound(rnn, input_bound=1.0)
    assert rounding_bound(rnn, input_bound=1.0, certificate=longer).peak >= 0.5 * own.peak
    divided = lr.LipschitzRNN(1, 6, gamma=2.0, step_size=0.1, max_step=1e-4)
    divided.load_state_dict(dict(rnn.state_dict()))
    assert rounding_bound(divided, input_bound=1.0, certificate=longer).peak >= 0.5 * own.peak


@pytest.mark.parametrize(
    ("name", "value"),
    [("timespans", torch.full((50, 1), 0.2)), ("lengths", torch.tensor([3])), ("within", 0.1), ("measured", True)],
)
def test_what_goes_with_inputs_does_not_go_with_a_bound_on_them(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} goes with inputs"):
        rounding_bound(layer(-torch.eye(2), torch.zeros(2, 2)), input_bound=1.0, **{name: value})


def test_a_certificate_does_not_make_random_steps_repeatable() -> None:
    rnn = layer(-2.0 * torch.eye(2), torch.zeros(2, 2), noise=0.5)
    certificate = certify(rnn.eval())
    rounding_bound(rnn, X, certificate=certificate)
    with pytest.raises(UnstatedRecurrenceError, match="training mode"):
        rounding_bound(rnn.train(), X, certificate=certificate)


def test_a_finer_certificate_bounds_the_precision_that_runs() -> None:
    """Its matrices are the same numbers; what is rounded is what runs."""
    rnn = layer(-torch.eye(2), 0.5 * torch.eye(2))
    found = rounding_bound(rnn, X, certificate=certify(rnn, precision="float64"))
    assert found.states.max() == pytest.approx(rounding_bound(rnn, X).states.max(), rel=1e-6)


def test_what_holds_on_a_box_is_not_attached() -> None:
    """Where this network saturates it grows: its slopes then leave the box."""
    rnn = layer(0.04 * torch.eye(2), -torch.eye(2)).double()
    assert not certify(rnn).holds
    box = certify(rnn, nonlinearity=(0.5, 1.0))
    assert box.holds
    with pytest.raises(ValueError, match=r"slopes from 0.5 to 1, .* tanh, whose slopes reach from 0 to 1"):
        rnn.attach_certificate(box)
    steady = layer(-torch.eye(2), 0.5 * torch.eye(2)).double()
    steady.attach_certificate(certify(steady, nonlinearity=(-0.1, 1.0)))  # wider ones hold for tanh as well
