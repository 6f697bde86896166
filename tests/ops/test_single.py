"""One sequence through NumPy: the same numbers as the reference, and what the backward pass needs of them."""

from __future__ import annotations

import pytest
import torch

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.integrators import INTEGRATORS
from lipschitz_rnn.ops.nonlinearities import NONLINEARITIES


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
                *leaves, step_size=spans if timespans else 0.05, backend=backend, all_states=False, **options
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
