"""The learning rate of a unit's biases: which parameters it moves, with which optimiser, and what refuses it."""

from __future__ import annotations

import pytest
import torch
from tiny_tasks import SignTask, tiny_settings
from torch import Tensor, nn

from lipschitz_rnn.training import Settings, build_model, fit
from lipschitz_rnn.training.optimisers import build_optimiser
from lipschitz_rnn.training.preparation import check_start

BIASES = {
    "lipschitz": {"unit.cells.l0.bias_ih"},
    "lstm": {"unit.inner.bias_ih_l0", "unit.inner.bias_hh_l0"},
}


def first_steps(settings: Settings) -> dict[str, Tensor]:
    """How far the first step moves every parameter."""
    parameters = {n: nn.Parameter(p.detach()[None]) for n, p in build_model(settings, SignTask(), 0).named_parameters()}
    before = {name: value.detach().clone() for name, value in parameters.items()}
    for value in parameters.values():
        value.grad = value.detach().cos()
    build_optimiser(settings, parameters).step()
    return {name: value.detach() - before[name] for name, value in parameters.items()}


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd", "rmsprop", "muon"])
@pytest.mark.parametrize("unit", BIASES)
def test_it_scales_the_steps_of_the_units_biases_alone(unit: str, optimiser: str) -> None:
    usual, faster = (first_steps(tiny_settings(unit=unit, optimiser=optimiser, bias_rate=rate)) for rate in (1.0, 4.0))
    assert BIASES[unit] < set(usual)
    for name, step in usual.items():
        factor = 4.0 if name in BIASES[unit] else 1.0
        torch.testing.assert_close(faster[name], factor * step, rtol=1e-4, atol=1e-6)


def test_the_schedule_keeps_the_ratio_of_the_rates() -> None:
    """Training sets the rate before every step. SGD without momentum moves by rate times gradient."""
    common = {"unit": "lipschitz", "optimiser": "sgd", "momentum": 0.0, "learning_rate": 1e-4, "epochs": 1}
    common |= {"schedule": "cosine", "warmup": 0.5, "seeds": (0,)}
    start = dict(build_model(tiny_settings(**common), SignTask(), 0).named_parameters())
    moved = []
    for rate in (1.0, 5.0):
        (network,) = fit(tiny_settings(**common, bias_rate=rate), SignTask()).models
        moved.append({name: value.detach() - start[name] for name, value in network.named_parameters()})
    for name, step in moved[0].items():
        factor = 5.0 if name in BIASES["lipschitz"] else 1.0
        torch.testing.assert_close(moved[1][name], factor * step, rtol=0.05, atol=1e-7)  # gradients differ a little


def test_a_unit_without_a_bias_is_refused_before_the_run() -> None:
    settings = tiny_settings(unit="lipschitz", unit_options={"bias": False}, bias_rate=2.0)
    message = r"bias_rate is 2, but the unit 'lipschitz' has no bias that is not frozen; leave bias_rate at 1"
    with pytest.raises(ValueError, match=message):
        check_start(settings, SignTask())


@pytest.mark.parametrize("unit", ["fastgrnn", "fastgrnn-lsq"])
@pytest.mark.parametrize("hidden_size", [1, 2])
def test_two_biases_in_one_parameter_are_not_a_matrix(unit: str, hidden_size: int) -> None:
    """Their shape, (2, N), is that of a hidden matrix at N = 2: Muon would train them too, and move them twice."""
    changes = {"unit": unit, "hidden_size": hidden_size, "bias_rate": 4.0}
    steps = [first_steps(tiny_settings(**changes, optimiser=optimiser)) for optimiser in ("adam", "muon")]
    torch.testing.assert_close(steps[1]["unit.cells.0.biases"], steps[0]["unit.cells.0.biases"])
