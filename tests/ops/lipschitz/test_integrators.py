"""Each integrator reaches the order that it declares, on problems with a known solution."""

import math
from collections.abc import Callable

import pytest
import torch
from problems import ORDERS, linear_solution, tanh_solution
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.integrators import INTEGRATORS, Tableau, get_integrator

TIME = 2.0
STEPS = (16, 32, 64, 128)


def linear_error(integrator: str, steps: int) -> Tensor:
    """ḣ = αA h + (W h + u): an oscillation with damping, u constant."""
    A = torch.tensor([[-0.3, 1.1], [-0.9, -0.2]], dtype=torch.float64)
    W = torch.tensor([[0.1, 0.4], [-0.5, -0.1]], dtype=torch.float64)
    u = torch.tensor([0.7, -0.4], dtype=torch.float64)
    h0 = torch.tensor([1.0, 0.5], dtype=torch.float64)
    drive = u.expand(steps, 1, 2)
    size = TIME / steps
    _, last = lipschitz_scan(drive, A, W, h0[None], size, 0.8, integrator, "identity")
    return (last[0] - linear_solution(0.8 * A + W, u, h0, TIME)).norm()


def tanh_error(integrator: str, steps: int) -> Tensor:
    """ḣ = tanh(w h + u) for one unit, through the bend of the tanh."""
    w, u, h0 = 1.3, -0.4, 0.6
    drive = torch.full((steps, 1, 1), u, dtype=torch.float64)
    W = torch.full((1, 1), w, dtype=torch.float64)
    _, last = lipschitz_scan(drive, torch.zeros_like(W), W, torch.full_like(W, h0), TIME / steps, 1.0, integrator)
    return (last - tanh_solution(w, u, h0, TIME)).abs().max()


@pytest.mark.parametrize("error", [linear_error, tanh_error])
@pytest.mark.parametrize("integrator", ORDERS)
def test_measured_order(integrator: str, error: Callable[[str, int], Tensor]) -> None:
    """The slope of log error against log step, fitted through four step sizes."""
    errors = torch.stack([error(integrator, steps) for steps in STEPS])
    x = torch.tensor([math.log(TIME / steps) for steps in STEPS], dtype=torch.float64)
    y = errors.log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert get_integrator(integrator).order == ORDERS[integrator]
    assert abs(float(slope) - ORDERS[integrator]) < 0.15


@pytest.mark.parametrize("tableau", INTEGRATORS.values(), ids=INTEGRATORS)
def test_tableau_is_explicit_and_consistent(tableau: Tableau) -> None:
    assert sum(tableau.weights) == pytest.approx(1.0)
    assert [len(row) for row in tableau.stages] == list(range(len(tableau)))


def test_irregular_steps_reach_the_same_point(generator: torch.Generator) -> None:
    """With constant input only the sum of the times matters, up to the integrator's error."""
    steps = torch.rand(400, 1, generator=generator, dtype=torch.float64)
    steps = steps / steps.sum() * TIME
    drive = torch.full((400, 1, 1), -0.4, dtype=torch.float64)
    W = torch.full((1, 1), 1.3, dtype=torch.float64)
    _, last = lipschitz_scan(drive, torch.zeros_like(W), W, torch.full_like(W, 0.6), steps, integrator="rk4")
    assert abs(float(last) - tanh_solution(1.3, -0.4, 0.6, TIME)) < 1e-9
