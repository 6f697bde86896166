"""The bound on rounding against half precision, autocast and inputs of all sizes, and with the certified factor."""

import copy

import numpy as np
import pytest
import torch
from test_rounding_bound import exact_run, lengths_of

import lipschitz_rnn as lr
from lipschitz_rnn.stability import certify, rounding_bound

HOSTILE = {"huge": 1e4, "tiny": 1e-30, "usual": 1.0}


@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
@pytest.mark.parametrize("size", HOSTILE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_it_withstands_every_dtype_and_size_of_input(dtype: str, size: str, integrator: str) -> None:
    """Parameters in half precision, autocast and plain float32, with inputs at the ends of what they can hold."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    for autocast in (False, True) if dtype != "float32" else (False,):
        layer = lr.LipschitzRNN(2, 6, gamma=1.0, step_size=0.1, integrator=integrator, init_scale=3.0)
        layer = layer if autocast or dtype == "float32" else layer.to(kind)
        x = (HOSTILE[size] * torch.randn(60, 2, 2)).to(torch.float32 if autocast else kind)
        with torch.no_grad(), torch.autocast("cpu", dtype=kind, enabled=autocast):
            bound = rounding_bound(layer, x)
            output, _ = layer(x)
            exact = exact_run(layer.float(), x.float(), torch.zeros(1, 2, 6))
        assert bound.precision == dtype
        assert np.all(np.abs((output.double() - exact).numpy()) <= bound.coordinates)


@pytest.mark.parametrize(("rate", "measured"), [(0.02, True), (0.2, False), (0.5, False)])
def test_it_is_within_a_thousand_with_the_certified_factor(rate: float, measured: bool) -> None:
    """A contracting tanh layer over 500 steps, with the factor that its certificate proves, against float64.

    At a rate of 0.02 errors are remembered for 500 steps, and their signs make 1/(1 − ρ) cost more than a thousand; the
    bound from what the steps were off by is still within that.
    """
    torch.manual_seed(1)
    layer = lr.LipschitzRNN(2, 16, stability="contracting", rate=rate, step_size=0.1)
    certificate = certify(layer)
    x = torch.randn(500, 4, 2)
    bound = rounding_bound(layer, x, certificate=certificate, measured=measured)
    with torch.no_grad():
        output, _ = layer(x)
    differences = (output.double() - exact_run(layer, x, torch.zeros(1, 4, 16))).numpy()
    seen = lengths_of(differences, certificate.metric)
    assert np.all(seen <= bound.states)
    assert bound.states.max() < 1000 * seen.max()
    # What the factor costs: all errors in one direction, 1/(1 − ρ) of them.
    assert bound.states.max() > 0.2 * bound.added.max() / (1 - certificate.factor) * (1 - certificate.factor**500)


def test_a_contracting_layer_asked_about_half_precision_counts_the_rounding_of_its_output() -> None:
    """Under autocast it still runs in float32, but what comes out has 8 bits."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 4, stability="contracting", rate=0.5, step_size=0.2, num_layers=2)
    x = torch.randn(20, 3, 2)
    bound = rounding_bound(layer, x, precision="bfloat16")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x)
        assert np.array_equal(rounding_bound(layer, x).coordinates, bound.coordinates)
    with torch.no_grad():
        plain, _ = layer(x)
    off = np.abs((output.double() - plain.double()).numpy())
    assert np.all(off <= bound.coordinates)
    assert np.any(off > rounding_bound(layer, x).coordinates)


def test_scores_that_overflow_have_no_bound() -> None:
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(1, 2, stability="contracting", rate=0.5, step_size=0.2).half()
    head = torch.nn.Linear(2, 3, dtype=torch.float16)
    with torch.no_grad():
        head.weight.fill_(6e4)
        head.weight[0] = 1.0
    bound = rounding_bound(layer, torch.ones(5, 1, 1).half())
    assert np.isinf(bound.reading(head.weight, head.bias, precision="float16")[0]).tolist() == [False, True, True]
    assert np.isinf(bound.differences(head.weight, head.bias, precision="float16")[0, 1]).tolist() == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(("dtype", "value"), [("float16", 7e4), ("float32", 3e38)])
def test_inputs_that_overflow_on_their_way_have_no_bound(dtype: str, value: float) -> None:
    """tanh is bounded, but the exact U x is zero: what overflows comes out as ±1, or as no number after ∞ − ∞."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 4, gamma=2.0, step_size=0.1)
    with torch.no_grad():
        layer.cell().weight_ih.copy_(torch.tensor([[10.0, -10.0]] * 4))
    x = torch.full((5, 1, 2), value)
    half = dtype == "float16"
    with torch.no_grad():
        exact, _ = copy.deepcopy(layer).double()(x.double())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=half):
        output, _ = layer(x)
        assert not ((output - exact).abs() < 0.05).any()
        assert np.isinf(rounding_bound(layer, x).states).all()
        assert not np.isfinite(rounding_bound(layer, input_bound=value).peak)


def test_chunks_in_parallel_have_no_bound() -> None:
    layer = lr.LipschitzRNN(2, 4, stability="contracting", rate=0.5, step_size=0.2, parallel=2)
    with pytest.raises(ValueError, match=r"parallel chunks.*layer\.bounds"):
        rounding_bound(layer, torch.randn(20, 1, 2))


def test_one_sample_that_overflows_takes_nothing_from_the_others() -> None:
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(2, 4, gamma=2.0, step_size=0.1, nonlinearity="relu")
    x = torch.randn(5, 3, 2)
    alone = rounding_bound(layer, x).states
    x[2, 1] = 3e38
    found = rounding_bound(layer, x).states
    assert np.isinf(found[:, 1]).all()
    np.testing.assert_allclose(found[:, [0, 2]], alone[:, [0, 2]], rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-160, 1e-250])
def test_states_whose_squares_underflow_are_covered(scale: float) -> None:
    """Where tanh is the identity everything is in proportion to the input, rounding too."""
    torch.manual_seed(0)
    layer = lr.LipschitzRNN(3, 16, bias=False, stability="contracting", rate=0.5, step_size=0.1).double()
    x = torch.randn(50, 1, 3, dtype=torch.float64)
    ordinary, tiny = (rounding_bound(layer, x * size) for size in (1e-20, scale))
    for name in ("states", "coordinates"):
        expected = getattr(ordinary, name) / 1e-20
        assert np.allclose(getattr(tiny, name) / scale, expected, rtol=0.1)
        assert np.all(getattr(tiny, name) > 0)
