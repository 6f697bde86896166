"""``LipschitzRNN(stability="contracting")``: the guarantee as a user meets it."""

from __future__ import annotations

import math

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.ops.lipschitz.substeps import count_substeps


@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
def test_two_states_approach_each_other_in_the_metric(integrator: str, generator: torch.Generator) -> None:
    layer = lr.LipschitzRNN(2, 12, stability="contracting", rate=0.1, step_size=0.1, integrator=integrator).double()
    with torch.no_grad():
        for parameter in layer.parameters():  # any values will do, these are far from the initial ones
            parameter.copy_(3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(40, 1, 2, generator=generator, dtype=torch.float64)
    starts = torch.randn(2, 1, 1, 12, generator=generator, dtype=torch.float64)
    one, other = (layer(x, start)[0][:, 0] for start in starts)
    metric, _ = layer.cell().hidden.metric()
    distance = (((one - other) ** 2) * metric).sum(-1).sqrt()
    first = (((starts[0] - starts[1]) ** 2) * metric).sum().sqrt()
    bound = first * torch.exp(-0.1 * 0.1 * torch.arange(1, 41, dtype=torch.float64))
    assert (distance <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize("integrator", ["euler", "midpoint", "heun"])
def test_irregular_samples_keep_the_guarantee(integrator: str, generator: torch.Generator) -> None:
    """A step of r times the longest one gives the factor 1 − r(1 − ρ)."""
    layer = lr.LipschitzRNN(2, 10, stability="contracting", rate=0.5, step_size=0.4, integrator=integrator).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(30, 1, 2, generator=generator, dtype=torch.float64)
    spans = 0.4 * torch.rand(30, 1, generator=generator, dtype=torch.float64)
    starts = torch.randn(2, 1, 1, 10, generator=generator, dtype=torch.float64)
    one, other = (torch.cat((start[0], layer(x, start, timespans=spans)[0][:, 0])) for start in starts)
    metric, _ = layer.cell().hidden.metric()
    distance = (((one - other) ** 2) * metric).sum(-1).sqrt()
    factors = 1 - spans[:, 0] / 0.4 * (1 - math.exp(-0.5 * 0.4))
    assert (distance[1:] <= distance[:-1] * factors * (1 + 1e-9) + 1e-14).all()


def test_the_layer_runs_like_any_other(generator: torch.Generator) -> None:
    layer = lr.LipschitzRNN(3, 8, num_layers=2, bidirectional=True, stability="contracting")
    output, h_n = layer(torch.randn(7, 4, 3, generator=generator))
    assert output.shape == (7, 4, 16)
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert h_n.isfinite().all()


def test_steps_beyond_the_proof_are_refused() -> None:
    layer = lr.LipschitzRNN(1, 4, stability="contracting", step_size=0.1)
    x = torch.zeros(3, 2, 1)
    layer(x, timespans=torch.full((3, 2), 0.1))
    with pytest.raises(ValueError, match=r"timespans reaches 0\.2, .* proved for steps up to 0\.1"):
        layer(x, timespans=torch.full((3, 2), 0.2))
    with pytest.raises(ValueError, match=r"timespans reaches 0\.3"):
        layer.cell()(x[0], timespans=0.3)
    with pytest.raises(AttributeError, match=r"step_size cannot become 0\.5.*proof"):
        layer.step_size = 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stability": "stable"}, "stability is 'stable'; choose None or 'contracting'"),
        ({"rate": 0.1}, "rate is 0.1, but stability is None"),
        ({"stability": "contracting", "rate": -1.0}, "rate is -1.0; it must be greater than 0"),
        ({"stability": "contracting", "rate": math.nan}, "rate is nan"),
        ({"stability": "contracting", "integrator": "rk4"}, "integrator is 'rk4'.*euler, heun, midpoint"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lr.LipschitzRNN(1, 4, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.1, 0.3, 1 / 3, 0.7])
def test_sub_steps_stay_within_the_proved_step(step: float, dtype: torch.dtype) -> None:
    """The step itself, rounded to its dtype, is taken at once, n times the step in n, and none is longer than it."""
    layer = lr.LipschitzRNN(1, 4, stability="contracting", step_size=step, max_step=step, dtype=dtype)
    for count in (1, 2, 3, 7, 50):
        span = torch.tensor([[count * step]], dtype=dtype)
        limit = layer.cell().step_limit(layer.cell().without_rounding(span))
        assert limit is not None
        assert int(count_substeps(span, limit)) == count
    spans = step * (1 + 3 * torch.rand(1000, 1, generator=torch.Generator().manual_seed(0), dtype=dtype))
    assert (spans.double() / count_substeps(spans, limit) <= step * (1 + max(torch.finfo(dtype).eps, 1e-12))).all()
