"""Units that state a map of their own are attacked in every precision; flat ones are refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from module_attack import Attack
from test_attack import FLAT, MODES, STATED, as_step, attacked, excess_of_held_maps, parts_of
from torch import nn

from lipschitz_rnn.stability import certify
from lipschitz_rnn.units import build


def draw_unit(name: str, index: int) -> nn.Module:
    """A unit that states a map of its own, with weights small enough for many to contract."""
    rng = np.random.default_rng(index)
    torch.manual_seed(index)
    options: dict[str, Any] = {"num_layers": 1 + index % 2, "bidirectional": index % 3 == 2}
    if name == "ren":
        neurons = int(rng.integers(1, 7))
        options |= {
            "neurons": neurons,
            "depth": int(rng.integers(1, neurons + 1)),
            "factor": float(rng.uniform(0.5, 1)),
        }
        options |= {"nonlinearity": ("tanh", "relu")[index % 2], "init_scale": float(10 ** rng.uniform(-1, 1))}
    if name == "cornn":
        options |= {"step_size": float(rng.uniform(0.02, 0.2)), "backend": ("auto", "cpu")[index % 2]}
    module = build(name, 2, int(rng.integers(1, 5)), **options)
    scale = float(rng.uniform(0.3, 1.0))
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if "hh" in key or key.endswith((".hidden", ".left")):
                parameter.mul_(scale)
            if key.endswith("step_sizes"):
                parameter.mul_(0.5)
    return module


MAPS = [name for name in STATED if name != "lipschitz"]


@pytest.mark.parametrize("name", MAPS)
def test_units_with_a_map_of_their_own_withstand_the_attack(name: str) -> None:
    modes = list(MODES)
    place = MAPS.index(name)
    tried = ["parameters float64", "parameters float32", modes[(place + 2) % len(modes)]]
    assert sum(attacked(draw_unit(name, index), mode, index) for index, mode in enumerate(tried)) > 0


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MAPS)
def test_units_with_a_map_withstand_the_attack_in_every_mode(name: str, mode: str) -> None:
    held_parts = sum(attacked(draw_unit(name, index), mode, index) for index in range(12))
    assert held_parts > 3 or (name == "cornn" and MODES[mode] in ("high", "medium", "bfloat16", "float16"))


@pytest.mark.parametrize("name", MAPS)
def test_the_attack_finds_a_false_factor_of_a_map(name: str) -> None:
    """Half of the distance to zero is too much: the attack must see that some Jacobian is longer."""
    module = draw_unit(name, 0)
    true = parts_of(certify(module))[0]
    assert true.holds
    attack = Attack(as_step(module, 0), true, (1, len(true.metric), 2), 0, 2.0**-24, torch.float32, rounds=8)
    attack.certificate = replace(true, factor=0.5 * true.factor)
    assert attack.excess_of_jacobians() > 0
    assert excess_of_held_maps(attack.certificate, 0) > 0


@pytest.mark.parametrize("name", FLAT)
def test_units_without_a_linear_term_are_refused_with_the_reason(name: str) -> None:
    torch.manual_seed(0)
    unit = build(name, 2, 4).double()
    certificate = certify(unit)
    assert certificate.cause == "slopes"
    assert name in certificate.reason
    assert "the factor is 1 at best" in certificate.reason
    assert "'ren'" in certificate.next_step
    # The reason is true: far out, where tanh is flat, two states keep their distance exactly.
    first = torch.full((1, 1, 4), 1e4, dtype=torch.float64)
    ends = [unit(torch.zeros(1, 1, 2, dtype=torch.float64), state)[1] for state in (first, 2 * first)]
    assert torch.allclose(ends[1] - ends[0], first, rtol=1e-14)


def test_a_flat_unit_is_certified_for_a_range_of_slopes() -> None:
    """On a box of states and inputs where tanh' ≥ 0.2, nais contracts."""
    torch.manual_seed(0)
    unit = build("nais", 2, 4)
    certificate = certify(unit, nonlinearity=(0.2, 1.0))
    assert certificate.holds
    assert certificate.slopes == (0.2, 1.0)
    h = 0.2 * torch.randn(2, 50, 4)
    x = 0.2 * torch.randn(1, 50, 2)
    after = torch.stack([unit(x, state[None])[1][0] for state in h])
    root = np.linalg.cholesky(certificate.metric)
    before_length, after_length = (
        np.linalg.norm((pair[0] - pair[1]).detach().double().numpy() @ root, axis=-1) for pair in (h, after)
    )
    assert np.all(after_length <= certificate.factor * before_length + 1e-6)


@pytest.mark.parametrize("option", [{"step_size": 0.1}, {"integrator": "heun"}, {"continuous": True}, {"alpha": 0.5}])
def test_a_map_has_no_step_to_choose(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leave"):
        certify(build("rnn", 2, 3), **option)
