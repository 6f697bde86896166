"""A contracting unit at the borders of its proof: streams, traced programs, pairs made by hand, huge and NaN values."""

import math

import pytest
import torch

from lipschitz_rnn import LipschitzRNN, LipschitzRNNCell
from lipschitz_rnn.units.lipschitz.contracting import ContractingPair


def unit(**options: object) -> LipschitzRNN:
    return LipschitzRNN(2, 6, stability="contracting", rate=0.5, step_size=0.1, **options)


def test_a_stream_keeps_the_settings_it_was_made_with() -> None:
    """A later max_step of the layer does not let a long time pass as one step."""
    rnn = unit()
    stream = rnn.stream()
    rnn.max_step = 0.1
    with pytest.raises(ValueError, match="timespans reaches 5"):
        stream(torch.zeros(2), timespans=5.0)
    rnn.stream()(torch.zeros(2), timespans=5.0)


@pytest.mark.parametrize("time", [-5.0, -0.05])
def test_negative_times_are_refused_or_nan(time: float) -> None:
    rnn, x, first = unit(), torch.zeros(8, 1, 2), torch.ones(1, 1, 6)
    spans = torch.full((8, 1), time)
    with pytest.raises(ValueError, match="timespans"):
        rnn(x, first, timespans=spans)
    with pytest.raises(ValueError, match="timespans"):
        torch.func.vmap(lambda each: rnn(x, first, timespans=each)[1])(spans.expand(3, 8, 1))
    with torch.no_grad():
        _, last = torch.compile(rnn, backend="eager")(x, first, timespans=spans)
    assert last.isnan().all()


def test_a_pair_fits_the_unit_that_runs_it() -> None:
    cell = LipschitzRNNCell(2, 6, step_size=3.0, stability="contracting")
    with pytest.raises(ValueError, match=r"step_size=0\.03"):
        cell.hidden = ContractingPair(6, step_size=0.03, metric_spread=10.0)
    cell.hidden = ContractingPair(6, step_size=3.0, metric_spread=10.0)
    assert cell(torch.zeros(1, 2)).shape == (1, 6)


@pytest.mark.parametrize(
    ("name", "value"), [("rate", 5.0), ("alpha", -1.0), ("step_size", 1.0), ("integrator", "heun")]
)
def test_what_a_proof_rests_on_cannot_change(name: str, value: object) -> None:
    pair = ContractingPair(3, step_size=0.1)
    with pytest.raises(AttributeError, match="proof"):
        setattr(pair, name, value)
    setattr(pair, name, getattr(pair, name))


def test_rotations_whose_norm_overflows_are_scaled_like_others() -> None:
    """Both are scaled back to the same norm, so that the maps agree."""
    pair = ContractingPair(4, step_size=0.1, dtype=torch.float64)
    maps = []
    with torch.no_grad():
        direction = pair.rotation / pair.rotation.abs().max()
        for size in (1e150, 1e300):
            pair.rotation.copy_(size * direction)
            maps.append(pair()[0])
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("integrator", ["euler", "heun", "midpoint"])
def test_parameters_that_are_not_numbers_give_nan(integrator: str) -> None:
    pair = ContractingPair(4, step_size=0.1, integrator=integrator)
    with torch.no_grad():
        pair.rotation.fill_(math.nan)
        assert all(matrix.isnan().all() for matrix in pair())
