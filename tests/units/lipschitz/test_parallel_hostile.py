"""A layer in parallel over time, used as nobody should: it gives what the sequential one gives, or says why not."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import lipschitz_rnn as lr
from lipschitz_rnn.ops import Parallel


@pytest.fixture
def x() -> Tensor:
    return torch.randn(200, 2, 2, generator=torch.Generator().manual_seed(1))


def new_layer(**options: Any) -> lr.LipschitzRNN:
    torch.manual_seed(0)
    given = {"stability": "contracting", "rate": 3.0, "step_size": 0.1, "parallel": 4, **options}
    return lr.LipschitzRNN(2, 5, **given)


def sequentially(layer: lr.LipschitzRNN, *args: Any, **options: Any) -> Tensor:
    own = copy.deepcopy(layer)
    own.parallel = None
    return own(*args, **options)[0].detach()


def gradients(layer: lr.LipschitzRNN, *args: Any) -> list[Tensor]:
    return list(torch.autograd.grad(layer(*args)[0].sum(), list(layer.parameters())))


def check(layer: lr.LipschitzRNN, x: Tensor) -> None:
    """States and gradients, to the tolerance of the layer and rounding."""
    expected, own = sequentially(layer, x), copy.deepcopy(layer)
    own.parallel = None
    size = float(expected.float().abs().max())
    with torch.no_grad():
        assert float((layer(x)[0] - expected).float().abs().max()) <= 1e-5 * size
    assert layer.bounds
    for found, right in zip(gradients(layer, x), gradients(own, x), strict=True):
        assert float((found - right).float().abs().max()) <= 1e-4 * (1.0 + float(right.float().abs().max()))


@pytest.mark.parametrize(
    "options",
    [
        {"bounded_gain": True},
        {"bounded_gain": True, "num_layers": 2},
        {"recompute_every": 1000, "parallel": 50},
        {"parallel": 200},
        {"parallel": 500},
        {"tolerance": 1e-300},
        {"parallel": Parallel(4, warm_up=1000)},
        {"rate": 0.01, "parallel": 8},
    ],
    ids=lambda options: ", ".join(f"{name}={value}" for name, value in options.items()),
)
def test_odd_settings(options: dict[str, Any], x: Tensor) -> None:
    check(new_layer(**options), x)


def test_layers_with_different_rates_follow_each_other(x: Tensor) -> None:
    first = new_layer(rate=3.0)
    second = lr.LipschitzRNN(5, 4, stability="contracting", rate=0.01, step_size=0.1, parallel=8)
    check(first, x)
    check(second, first(x)[0].detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_layer_is_converted_after_a_call(dtype: torch.dtype, x: Tensor) -> None:
    layer = new_layer()
    with torch.no_grad():
        layer(x)  # keeps its matrices
    layer.to(dtype)
    expected = sequentially(layer, x.to(dtype))
    with torch.no_grad():
        found, _ = layer(x.to(dtype))
    assert found.dtype == dtype
    unit = max(1e-6, float(torch.finfo(dtype).eps))
    assert float((found - expected).double().abs().max()) <= 4 * unit * float(expected.double().abs().max())
    assert all(gradient.isfinite().all() for gradient in gradients(layer, x.to(dtype)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 100, 199])
def test_an_input_without_a_number_shows_where_it_does_sequentially(value: float, place: int, x: Tensor) -> None:
    layer = new_layer()
    x[place, 0, 0] = value
    with torch.no_grad():
        assert torch.equal(layer(x)[0].isnan(), sequentially(layer, x).isnan())


def test_a_huge_initial_state(x: Tensor) -> None:
    layer, h_0 = new_layer(), torch.full((1, 2, 5), 1e30)
    expected = sequentially(layer, x, h_0)
    with torch.no_grad():
        found, _ = layer(x, h_0)
    assert float((found - expected).abs().max()) <= 1e-6 * float(expected.abs().max())
    assert float(layer.bounds[0].relative) <= 1e-5


@pytest.mark.parametrize("nonlinearity", ["tanh", "identity", "relu"])
@pytest.mark.parametrize("layers", [1, 2])
def test_no_samples_have_bounds_of_zero(nonlinearity: str, layers: int) -> None:
    layer = new_layer(nonlinearity=nonlinearity, num_layers=layers)
    layer.full_bounds = True
    output, _ = layer(torch.randn(200, 0, 2))
    output.sum().backward()
    assert output.shape == (200, 0, 5)
    assert layer.output_bound() == 0.0
    assert all(float(bound.complete) == 0.0 for bound in layer.bounds)
    assert all(not parameter.grad.any() for parameter in layer.parameters() if parameter.grad is not None)


def test_a_single_step_and_none(x: Tensor) -> None:
    layer = new_layer()
    assert torch.equal(layer(x[:1])[0], sequentially(layer, x[:1]))
    with pytest.raises(ValueError, match="0 steps"):
        layer(x[:0])


def test_steps_of_zero_keep_the_state(x: Tensor) -> None:
    layer, h_0 = new_layer(), torch.randn(1, 2, 5)
    output, last = layer(x, h_0, timespans=torch.zeros(200, 2))
    assert torch.equal(last, h_0)
    assert torch.equal(output, h_0.expand(200, 2, 5))


def test_parameters_that_change_before_the_backward_pass(x: Tensor) -> None:
    """In place is refused. Other values in their place change nothing: gradients are those of the call."""
    layer = new_layer()
    expected = gradients(layer, x)
    output, _ = layer(x)
    with torch.no_grad():
        layer.cell().weight_ih.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    layer = new_layer()
    output, _ = layer(x)
    for parameter in layer.parameters():
        parameter.data = parameter.data + 1.0
    found = torch.autograd.grad(output.sum(), list(layer.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("parallel", [None, 4])
def test_checkpoints_of_pytorch(parallel: int | None, x: Tensor) -> None:
    """They compute saved tensors again, for one reading each."""
    layer = new_layer(parallel=parallel)
    expected = gradients(layer, x)
    output = checkpoint(lambda given: layer(given)[0], x, use_reentrant=False)
    found = torch.autograd.grad(output.sum(), list(layer.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_copies_of_a_layer_that_keeps_its_matrices(x: Tensor) -> None:
    layer = new_layer()
    with torch.no_grad():
        expected, _ = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    copies = (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False))
    with torch.no_grad():
        assert all(torch.equal(expected, other(x)[0]) for other in copies)
        for other in copies:
            other.cell().hidden.leak.add_(1.0)
            assert not torch.equal(expected, other(x)[0])
        assert torch.equal(expected, layer(x)[0])
