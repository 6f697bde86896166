"""What holds of the linear unit because it is linear."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import units


def test_a_long_step_is_many_short_ones(build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """Exact for an input that is held, whatever the times: 0.3, 0 and 1.7 as one step and as three."""
    unit, x = build_unit("lru", 3, 8), inputs(5, 2, 3)
    pieces = torch.tensor([0.3, 0.0, 1.7], dtype=torch.float64)
    long = torch.full((5, 2), float(pieces.sum()), dtype=torch.float64)
    short = pieces.repeat(5).unsqueeze(-1).expand(15, 2)
    output, h_n = unit(x, timespans=long)
    many, last = unit(x.repeat_interleave(3, 0), timespans=short)
    torch.testing.assert_close(many[2::3], output, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, h_n, rtol=1e-12, atol=1e-12)
    twice = unit(x.repeat_interleave(2, 0))[1]
    torch.testing.assert_close(unit(x, timespans=torch.full((5, 2), 2.0))[1], twice, rtol=1e-12, atol=1e-12)


def test_the_state_is_linear_in_the_input_and_bounded(inputs: Callable[..., Tensor]) -> None:
    unit = units.build("lru", 3, 8, dtype=torch.float64)
    x, y = inputs(50, 2, 3), inputs(50, 2, 3)
    both, first, second = (unit(each, need_output=False)[1] for each in (x - 2 * y, x, y))
    torch.testing.assert_close(both, first - 2 * second, rtol=1e-12, atol=1e-12)
    rate, _, gain = unit.cell().weights()  # type: ignore[operator]
    assert (rate < 0).all()
    torch.testing.assert_close(gain**2, 1 - torch.exp(2 * rate), rtol=1e-12, atol=1e-12)


def test_long_sequences_in_float32_stay_close_to_float64() -> None:
    """Rounding does not pile up: a state forgets its errors as it forgets its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unit = units.build("lru", 1, 16)
    x = torch.randn(3000, 2, 1, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        narrow, wide = unit(x)[0], unit.double()(x.double())[0]
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    "options", [{"r_min": 0.95, "r_max": 0.9}, {"r_max": 1.0}, {"max_phase": 0.0}, {"step_size": 0.0}]
)
def test_wrong_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        units.build("lru", 2, 4, **options)
