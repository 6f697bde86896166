"""Streams: the same numbers as the whole sequence, on NumPy for one series and on the cells for the rest."""

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from lipschitz_layers import layer, sequence

import lipschitz_rnn as lr
from lipschitz_rnn.units.lipschitz.stream import LipschitzStream

WINDOW = 8


def run(stream: LipschitzStream, x: torch.Tensor, times: torch.Tensor | None = None) -> torch.Tensor:
    spans: Any = [None] * len(x) if times is None else times
    return torch.stack([stream(value, dt) for value, dt in zip(x, spans, strict=True)])


@pytest.mark.parametrize("batch", [None, 1, 2])
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun", "rk4"])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "sigmoid", "identity"])
def test_equals_the_layer(batch: int | None, integrator: str, nonlinearity: str, generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, integrator=integrator, nonlinearity=nonlinearity, alpha=0.5)
    x = sequence(generator, *(WINDOW,) if batch is None else (WINDOW, batch), 3)
    output, h_n = rnn(x)
    stream = rnn.stream(batch)
    torch.testing.assert_close(run(stream, x), output.detach(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(stream.state, h_n.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batch", [None, 2])
def test_times_between_samples(batch: int | None, generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2, integrator="midpoint", bias=False)
    shape = (WINDOW,) if batch is None else (WINDOW, batch)
    x, times = sequence(generator, *shape, 3), torch.rand(shape, generator=generator, dtype=torch.float64)
    times[0] = 0.0  # no time, no change
    expected = rnn(x, timespans=times)[0].detach()
    stream = rnn.stream(batch)
    torch.testing.assert_close(run(stream, x, times), expected, rtol=1e-12, atol=1e-13)
    stream.reset()
    assert not stream.state.any()
    first = torch.stack([stream(value, 0.1) for value in x])
    torch.testing.assert_close(first, rnn(x, timespans=torch.full_like(times, 0.1))[0].detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batch", [None, 2])
def test_goes_on_where_a_sequence_ended(batch: int | None, generator: torch.Generator) -> None:
    rnn = layer(generator, num_layers=2)
    x = sequence(generator, *(WINDOW,) if batch is None else (WINDOW, batch), 3)
    whole = rnn(x)[0].detach()
    stream = rnn.stream(batch)
    stream.state = rnn(x[:5])[1]
    torch.testing.assert_close(run(stream, x[5:]), whole[5:], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batch", [None, 2])
def test_is_a_copy_without_gradients_and_nobody_else_writes_to_it(
    batch: int | None, generator: torch.Generator
) -> None:
    rnn = layer(generator, num_layers=2)
    x = sequence(generator, *(WINDOW,) if batch is None else (WINDOW, batch), 3).requires_grad_()
    expected = rnn(x)[0].detach()
    stream, initial = rnn.stream(batch), torch.zeros_like(rnn(x)[1])
    stream.state = initial
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.zero_()
    for value, right in zip(x, expected, strict=True):
        given = stream(value)
        assert not given.requires_grad
        torch.testing.assert_close(given, right, rtol=1e-12, atol=1e-13)
        given.fill_(torch.nan)
        stream.state.fill_(torch.nan)
    assert not initial.any()


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("options", [{}, {"max_step": 0.01}, {"stability": "contracting"}], ids=str)
@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
def test_small_steps_add_up_in_16_bits(
    parameters: torch.dtype, options: dict[str, Any], batch: int | None, generator: torch.Generator
) -> None:
    """Each step adds 1/500 of a state that bfloat16 holds to 1/256: a state rounded at every step stands still."""
    rnn = lr.LipschitzRNN(3, 6, step_size=0.02, **options).to(parameters)
    x = torch.full((300, 3) if batch is None else (300, batch, 3), 0.5)
    exact = lr.LipschitzRNN(3, 6, step_size=0.02, **options)
    exact.load_state_dict(rnn.state_dict())
    expected = exact(x)[1].detach()
    with torch.autocast("cpu", torch.bfloat16, enabled=parameters == torch.float32):
        stream = rnn.stream(batch)
        for value in x.to(parameters):
            given = stream(value)
        assert given.dtype == rnn(x.to(parameters))[0].dtype == torch.bfloat16
    assert stream.state.dtype == parameters
    error = (stream.state.float() - expected).norm() / expected.norm()
    assert error < 0.02


def test_autocast_rounds_only_what_a_single_series_gives_out(generator: torch.Generator) -> None:
    rnn = lr.LipschitzRNN(3, 6)
    x = sequence(generator, WINDOW, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        given = run(rnn.stream(), x)
    assert torch.equal(given, run(rnn.stream(), x.float()).bfloat16())


def test_half_precision_and_dropout_run_as_in_evaluation(generator: torch.Generator) -> None:
    rnn = lr.LipschitzRNN(3, 6, 2, dropout=0.9, dtype=torch.bfloat16)
    x = sequence(generator, WINDOW, 3).bfloat16()
    expected = rnn.eval()(x)[0].detach()
    torch.testing.assert_close(run(rnn.train().stream(), x), expected, rtol=2e-2, atol=2e-2)


def test_what_overflows_is_seen_and_nothing_is_printed(
    generator: torch.Generator, recwarn: pytest.WarningsRecorder
) -> None:
    rnn = layer(generator, nonlinearity="relu")
    stream = rnn.stream()
    assert not torch.isfinite(stream(torch.full((3,), torch.inf, dtype=torch.float64))).all()
    assert not recwarn.list


def test_a_contracting_unit_refuses_longer_steps(generator: torch.Generator) -> None:
    stream = lr.LipschitzRNN(3, 6, stability="contracting", step_size=0.1).stream()
    stream(torch.zeros(3), 0.1)
    with pytest.raises(
        ValueError, match=re.escape("timespans reaches 0.2, but this contracting unit is proved for steps up to 0.1")
    ):
        stream(torch.zeros(3), 0.2)


def test_bad_input_is_named() -> None:
    stream, batched = lr.LipschitzRNN(3, 6, 2).stream(), lr.LipschitzRNN(3, 6).stream(4)
    with pytest.raises(ValueError, match=re.escape("input has shape (4, 3)")):
        stream(torch.zeros(4, 3))
    with pytest.raises(ValueError, match=re.escape("input has shape (3)")):
        batched(torch.zeros(3))
    with pytest.raises(TypeError, match=r"input is .*ndarray"):
        stream(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"input is torch.float64 but the parameters are torch.float32"):
        stream(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"timespans is -1"):
        stream(torch.zeros(3), -1.0)
    with pytest.raises(ValueError, match=re.escape("timespans has shape (2)")):
        stream(torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match=re.escape("state has shape (1, 6)")):
        stream.state = torch.zeros(1, 6)
    with pytest.raises(ValueError, match="batch_size is 0"):
        lr.LipschitzRNN(3, 6).stream(0)
    with pytest.raises(ValueError, match="bidirectional"):
        lr.LipschitzRNN(3, 6, bidirectional=True).stream()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
@pytest.mark.parametrize("options", [{}, {"integrator": "midpoint", "num_layers": 2}, {"stability": "contracting"}])
def test_a_copy_goes_on_as_the_stream(copied: Any, options: dict[str, Any]) -> None:
    """NumPy's views become arrays of their own in a copy, and memory that nobody writes to."""
    torch.manual_seed(0)
    rnn, x = lr.LipschitzRNN(3, 8, step_size=0.1, **options), torch.randn(2 * WINDOW, 3)
    stream = rnn.stream()
    first = run(stream, x[:WINDOW])
    other = copied(stream)
    rest = run(stream, x[WINDOW:])
    assert torch.equal(run(other, x[WINDOW:]), rest)
    torch.testing.assert_close(torch.cat([first, rest]), rnn(x)[0].detach())
