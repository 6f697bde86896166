"""One sequence through NumPy: the same numbers as the reference, and what the backward pass needs of them."""

from __future__ import annotations

import pytest
import torch

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.integrators import INTEGRATORS
from lipschitz_rnn.ops.lipschitz.nonlinearities import NONLINEARITIES

pytestmark = pytest.mark.usefixtures("without_kernels")


@pytest.mark.parametrize("timespans", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_equals_the_reference(integrator: str, nonlinearity: str, timespans: bool, generator: torch.Generator) -> None:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    leaves = [normal(9, 1, 6), 0.3 * normal(6, 6), 0.3 * normal(6, 6), normal(1, 6)]
    spans = torch.rand(9, 1, generator=generator, dtype=torch.float64)
    spans[3] = 0.0  # no time passes: the state stays
    options = {"integrator": integrator, "nonlinearity": nonlinearity, "alpha": 0.7}
    found = {}
    for backend in ("reference", "cpu"):
        tensors = [leaf.clone().requires_grad_() for leaf in leaves]
        states, last = lipschitz_scan(*tensors, step_size=spans if timespans else 0.05, backend=backend, **options)
        assert states is not None
        gradients = torch.autograd.grad(states.sin().sum() + last.square().sum(), tensors)
        with torch.no_grad():
            none, alone = lipschitz_scan(
                *leaves, step_size=spans if timespans else 0.05, backend=backend, need_output=False, **options
            )
        assert none is None
        found[backend] = [states, last, alone, *gradients]
    for one, other in zip(found["reference"], found["cpu"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_inputs_are_left_alone(generator: torch.Generator) -> None:
    tensors = [torch.randn(*shape, generator=generator) for shape in ((5, 1, 4), (4, 4), (4, 4), (1, 4))]
    before = [tensor.clone() for tensor in tensors]
    lipschitz_scan(*tensors, backend="cpu")
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))


def test_divergence_and_nan_pass_through_without_a_warning() -> None:
    A, W = 1e30 * torch.eye(3), torch.eye(3)
    states, _ = lipschitz_scan(torch.ones(6, 1, 3), A, W, torch.ones(1, 3), backend="cpu")
    assert states is not None
    assert not states[-1].isfinite().any()
    u = torch.ones(4, 1, 3)
    u[1] = float("nan")
    states, last = lipschitz_scan(u, W, W, backend="cpu")
    assert states is not None
    assert states[0].isfinite().all()
    assert last.isnan().all()


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("features", [1, 2, 3, 9])  # up to a quarter of N they stand beside the state
def test_inputs_of_few_and_of_many_features(features: int, bias: bool, generator: torch.Generator) -> None:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    leaves = [normal(7, 1, features), 0.3 * normal(8, 8), 0.3 * normal(8, 8), normal(1, 8), normal(8, features)]
    found = []
    for backend in ("reference", "cpu"):
        x, A, W, h0, U = tensors = [leaf.clone().requires_grad_() for leaf in leaves]
        b = torch.linspace(-1, 1, 8, dtype=torch.float64) if bias else None
        states, last = lipschitz_scan(x, A, W, h0, step_size=0.1, backend=backend, input_weight=U, bias=b)
        assert states is not None
        found.append([states, last, *torch.autograd.grad(states.sin().sum() + last.square().sum(), tensors)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_the_last_state_alone_is_the_same(nonlinearity: str, features: int, generator: torch.Generator) -> None:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    N, x = 16, normal(30, 1, features)
    A, W, U, b, h0 = 0.3 * normal(N, N), 0.3 * normal(N, N), normal(N, features), normal(N), normal(1, N)
    options = {"input_weight": U, "bias": b, "nonlinearity": nonlinearity, "backend": "cpu"}
    states, last = lipschitz_scan(x, A, W, h0, **options)
    none, alone = lipschitz_scan(x, A, W, h0, need_output=False, **options)
    assert states is not None
    assert none is None
    assert torch.equal(last, states[-1])
    torch.testing.assert_close(alone, last)  # another loop, in place


def test_an_infinite_input_saturates_as_in_the_reference(generator: torch.Generator) -> None:
    x = torch.rand(6, 1, 1, generator=generator)
    x[2] = float("inf")
    A, W = (0.1 * torch.randn(8, 8, generator=generator) for _ in range(2))
    U = torch.randn(8, 1, generator=generator)
    one, other = (lipschitz_scan(x, A, W, backend=name, input_weight=U)[1] for name in ("reference", "cpu"))
    assert one.isfinite().all()
    torch.testing.assert_close(other, one)


def test_over_many_steps_it_loses_no_more_than_the_reference(generator: torch.Generator) -> None:
    """A factor 1 + ε a, rounded once, is wrong in every step in the same direction."""
    x = torch.rand(784, 1, 1, generator=generator)
    A, W = (torch.randn(32, 32, generator=generator) / 32**0.5 - torch.eye(32) for _ in range(2))
    U, b = torch.randn(32, 1, generator=generator), torch.randn(32, generator=generator)

    def last(backend: str, dtype: torch.dtype) -> torch.Tensor:
        given = [tensor.to(dtype) for tensor in (x, A, W, U, b)]
        return lipschitz_scan(*given[:3], step_size=0.03, backend=backend, input_weight=given[3], bias=given[4])[1]

    exact = last("reference", torch.float64)
    ours, theirs = (float((last(name, torch.float32) - exact).norm()) for name in ("cpu", "reference"))
    assert ours < 3 * theirs
