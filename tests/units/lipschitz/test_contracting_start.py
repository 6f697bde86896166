"""How a contracting layer starts: what it read first must reach the last state, and options must stay with weights."""

from __future__ import annotations

import math

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.data.steps import named_unit, with_step
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.stability import certify
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair


def share_of_the_first_input(pair: ContractingPair, steps: int) -> float:
    """‖∂L/∂u₀‖ / ‖∂L/∂u_T‖ for a random linear loss of the last state, by an independent loop in float64."""
    torch.manual_seed(0)
    A, W = (matrix.detach().double() for matrix in pair())
    u = torch.randn(steps, pair.hidden_size, dtype=torch.float64).mul_(0.6).requires_grad_()
    h = torch.zeros(pair.hidden_size, dtype=torch.float64)
    for t in range(steps):
        h = h + pair.step_size * (A @ h + torch.tanh(W @ h + u[t]))
    (gradient,) = torch.autograd.grad(h @ torch.randn_like(h), u)
    return float(gradient[0].norm() / gradient[-1].norm())


def test_what_was_read_first_reaches_the_last_state() -> None:
    """784 steps of 0.03, as on sequential MNIST; with ω = 1 and a Euclidean metric the share is below 10⁻⁶."""
    torch.manual_seed(1)
    pair = ContractingPair(32, step_size=0.03, rate=0.001, metric_spread=1000.0)
    assert share_of_the_first_input(pair, 784) > 3e-3
    with torch.no_grad():
        pair.scale.zero_()
        pair.restoring.fill_(math.log(0.015 / 0.985))
    assert share_of_the_first_input(pair, 784) < 1e-6


@pytest.mark.parametrize("integrator", ["euler", "heun", "midpoint"])
@pytest.mark.parametrize("step", [1e-3, 0.03, 0.2])
def test_the_start_uses_the_spread_and_is_not_slowed(integrator: str, step: float) -> None:
    torch.manual_seed(0)
    pair = ContractingPair(48, step_size=step, rate=0.01, integrator=integrator, metric_spread=1000.0)
    stretch = pair.metric()[0].sqrt()
    assert 30.0 < stretch.max() / stretch.min() < 1000.0
    omega = 2.0 * torch.sigmoid(pair.restoring.double()) / step
    assert omega.max() / omega.min() > 5.0
    if integrator == "midpoint":
        assert float(pair._midpoint(pair._numbers())[1].detach()) == 1.0


@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
def test_large_spread_with_hostile_parameters_is_certified(integrator: str) -> None:
    generator = torch.Generator().manual_seed(3)
    for spread in (1.0, 1000.0, 1e6):
        pair = ContractingPair(7, step_size=0.1, rate=0.05, integrator=integrator, metric_spread=spread)
        with torch.no_grad():
            for parameter in pair.parameters():
                parameter.add_(4.0 * torch.randn(parameter.shape, generator=generator))
        certificate = certify(pair, rate=pair.rate * (1 - 1e-9))
        assert certificate.holds, certificate.sentence()
        assert certificate.overshoot <= 1.001 * spread


def test_spread_belongs_to_the_weights() -> None:
    options = {"stability": "contracting", "step_size": 0.1}
    wide, narrow = lr.LipschitzRNN(2, 5, metric_spread=1000.0, **options), lr.LipschitzRNN(2, 5, **options)
    assert (wide.metric_spread, narrow.metric_spread, lr.LipschitzRNN(2, 5).metric_spread) == (1000.0, 30.0, None)
    before = [parameter.clone() for parameter in narrow.parameters()]
    with pytest.raises(RuntimeError, match="metric_spread=1000"):
        narrow.load_state_dict(wide.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(before, narrow.parameters(), strict=True))
    old = narrow.state_dict()
    for place in old._metadata.values():  # type: ignore[attr-defined]
        place.get("settings", {}).pop("metric_spread", None)
        for settings in place.get("below", {}).values():
            settings.pop("metric_spread", None)
    narrow.load_state_dict(old)  # weights from before the option existed have a spread of 30
    with pytest.raises(RuntimeError, match="metric_spread=30"):
        wide.load_state_dict(old)
    with pytest.raises(ValueError, match="metric_spread is 5"):
        lr.LipschitzRNN(2, 5, metric_spread=5.0)
    with pytest.raises(AttributeError, match="metric_spread"):
        wide.metric_spread = 3.0  # type: ignore[misc]


@pytest.mark.parametrize("task", ["ordered-mnist", "ordered-cifar10", "digits", "timit", "adding"])
def test_presets_build_a_contracting_layer(task: str) -> None:
    named = preset_settings(task, changes={"unit": "contracting", "unit_options": {"rate": 0.005}})
    asked = preset_settings(task, changes={"unit_options": {"stability": "contracting", "rate": 0.005}})
    assert named == asked
    rnn = lr.units.build(named.unit, 2, 4, **named.unit_options)
    assert (rnn.stability, rnn.rate) == ("contracting", 0.005)  # type: ignore[union-attr]
    assert rnn.metric_spread > 30.0  # type: ignore[union-attr, operator]
    free = preset_settings(task)
    assert named.hidden_size == free.hidden_size or task == "ordered-cifar10"
    assert "stability" not in free.unit_options


def test_own_series_take_the_same_start() -> None:
    unit, options = named_unit("contracting", {"rate": 0.02})
    assert (unit, options) == ("lipschitz", {"stability": "contracting", "rate": 0.02})
    assert with_step(unit, options)["metric_spread"] == 1000.0
    assert "metric_spread" not in with_step("lipschitz", {})
    assert with_step(unit, options | {"metric_spread": 10.0})["metric_spread"] == 10.0
