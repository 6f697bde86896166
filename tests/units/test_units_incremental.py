"""irnn: what its state keeps of slowly changing inputs, as published and with a warm start."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipschitz_rnn import stability, units

FAST = {"alpha": 0.1, "step_size": 0.03, "warm_start": True}


def effect(unit: nn.Module, x: Tensor, first: int, steps: int) -> float:
    """How far the last state moves if `steps` inputs from `first` on are larger by one."""
    changed = x.clone()
    changed[first : first + steps] += 1.0
    with torch.no_grad():
        return float((unit(changed)[1] - unit(x)[1]).norm())


def test_as_published_equal_neighbours_cancel(build_unit: Callable) -> None:
    """A change of one input is remembered; the same change of the next one takes it away again."""
    unit, x = build_unit("irnn", 1, 16, scale=0.0), torch.zeros(40, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        unit.cell().left.zero_()  # a state that only keeps
    assert effect(unit, x, 10, 1) > 0.5
    assert effect(unit, x, 10, 2) < 1e-12


def test_with_a_warm_start_equal_neighbours_add_up(build_unit: Callable) -> None:
    unit, x = build_unit("irnn", 1, 16, scale=0.0, **FAST), torch.zeros(40, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        unit.cell().left.zero_()
    one, two = effect(unit, x, 10, 1), effect(unit, x, 10, 2)
    keep = 1.0 - 2.0 * 0.03 * 0.1
    assert one > 0.0
    torch.testing.assert_close(two / one, 1.0 + 1.0 / keep, rtol=1e-6, atol=0.0)


def test_the_inner_steps_lead_to_the_same_equilibrium_from_both_starts(
    build_unit: Callable, inputs: Callable[..., Tensor]
) -> None:
    options = {"inner_steps": 80, "step_size": 0.5, "scale": 0.0}
    cold, warm = build_unit("irnn", 2, 6, **options), build_unit("irnn", 2, 6, **options, warm_start=True)
    warm.load_state_dict(cold.state_dict())
    x = inputs(5, 3, 2)
    torch.testing.assert_close(warm(x)[0], cold(x)[0], rtol=1e-8, atol=1e-8)


def test_a_warm_start_states_its_map(build_unit: Callable) -> None:
    """1 − 2 η α + 2 η ‖W‖ bounds the factor of a step, so a small W has a certificate."""
    unit = build_unit("irnn", 2, 6, scale=0.0, alpha=1.0, step_size=0.2, warm_start=True)
    with torch.no_grad():
        unit.cell().left.mul_(0.5)
    found = stability.certify(unit)
    assert found.holds
    norm = float(torch.linalg.matrix_norm(unit.cell().left.detach(), 2))
    assert 0.6 - 1e-6 <= found.factor <= 0.6 + 0.4 * norm + 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warm_start": "no"}, "warm_start is 'no'; it must be True or False"),
        ({"alpha": float("nan")}, "alpha is nan; it must be finite"),
        ({"alpha": "x"}, "alpha is 'x', a str; pass a number"),
        ({"step_size": float("inf")}, "step_size is inf; it must be finite"),
        ({"inner_steps": 1.5}, "inner_steps is 1.5; it must be a whole number"),
        ({"inner_steps": 0}, "inner_steps is 0; it must be at least 1"),
        ({"rank": 2.5}, "rank is 2.5; it must be a whole number"),
        ({"rank": 9}, "rank is 9; it must be from 1 to hidden_size = 8"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        units.build("irnn", 3, 8, **options)
