"""A tableau checks itself, and any that passes works on every backend or is refused by name.

The example is Kutta's third-order rule, whose last stage builds on both stages before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from problems import Problem, random_problem, tanh_solution
from torch import Tensor

from lipschitz_rnn import LipschitzRNN, lipschitz_scan
from lipschitz_rnn.ops.lipschitz.dispatch import choose
from lipschitz_rnn.ops.lipschitz.integrators import INTEGRATORS, RK4, Tableau
from lipschitz_rnn.ops.lipschitz.problem import Problem as Outline
from lipschitz_rnn.ops.lipschitz.problem import Scheme
from lipschitz_rnn.ops.lipschitz.triton import support

KUTTA = ((), (0.5,), (-1.0, 2.0)), (1 / 6, 2 / 3, 1 / 6)


@pytest.fixture
def kutta() -> Iterator[str]:
    """The name under which the rule is registered for one test."""
    INTEGRATORS["kutta3"] = Tableau("kutta3", 3, *KUTTA)
    yield "kutta3"
    del INTEGRATORS["kutta3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": (1 / 6, 2 / 3, 1 / 5)}, r"not of order 3: Σ bᵢ is 1\.03333 and must be 1"),
        ({"stages": ((), (0.4,), (-1.0, 2.0))}, r"not of order 3: Σ bᵢcᵢ is .* and must be 0\.5"),
        ({"stages": ((), (0.5,), (0.0, 1.0))}, r"not of order 3: Σ bᵢaᵢⱼcⱼ is 0\.0833333 and must be 0\.166667"),
        ({"order": 4}, r"not of order 4: Σ bᵢcᵢaᵢⱼcⱼ is .* declare a lower order"),
        ({"order": 5}, "declares order 5; it must be 1 to 4"),
        ({"order": 0}, "declares order 0"),
        ({"order": 2.5}, r"declares order 2\.5"),
        ({"order": True}, "declares order True"),
        ({"stages": ((), (0.5,))}, "has weights for 3 stages; stages must be as many rows"),
        ({"stages": ((), (0.5,), (-1.0,))}, r"stages\[2\] .* is \(-1\.0,\); it must be a tuple of 2 finite numbers"),
        ({"stages": ((0.0,), (0.5, 0.0), (-1.0, 2.0, 0.0))}, r"stages\[0\].*the method must be explicit"),
        ({"stages": ((), (math.nan,), (-1.0, 2.0))}, r"stages\[1\].*finite"),
        ({"weights": (1 / 6, math.inf, 1 / 6)}, "weights of tableau .* finite numbers"),
        ({"weights": (), "stages": ()}, "weights of tableau"),
        ({"weights": [1 / 6, 2 / 3, 1 / 6]}, "must be a tuple"),
        ({"name": ""}, "the name of a tableau"),
    ],
)
def test_a_wrong_tableau_is_refused_when_it_is_made(changes: dict[str, Any], message: str) -> None:
    given = {"name": "kutta3", "order": 3, "stages": KUTTA[0], "weights": KUTTA[1]}
    Tableau(**given)
    with pytest.raises(ValueError, match=message):
        Tableau(**(given | changes))


def test_lower_orders_may_be_declared() -> None:
    for order in (1, 2, 3, 4):
        assert Tableau("rk4 again", order, RK4.stages, RK4.weights).order == order


def by_hand(problem: Problem) -> tuple[Tensor, Tensor]:
    """The rule as a textbook has it, through autograd."""
    assert problem.hx is not None
    h, states = problem.hx, []
    for t, drive in enumerate(problem.u):
        step = problem.step_size[t].unsqueeze(-1) if isinstance(problem.step_size, Tensor) else problem.step_size

        def slope(at: Tensor, drive: Tensor = drive) -> Tensor:
            return problem.alpha * at @ problem.A.mT + torch.tanh(at @ problem.W.mT + drive)

        k1 = slope(h)
        k2 = slope(h + step / 2 * k1)
        k3 = slope(h - step * k1 + 2 * step * k2)
        h = h + step / 6 * (k1 + 4 * k2 + k3)
        states.append(h)
    return torch.stack(states), h


def results(problem: Problem, backend: str | None) -> list[Tensor]:
    leaves = problem.with_gradients()
    states, last = by_hand(leaves) if backend is None else lipschitz_scan(**leaves.arguments, backend=backend)
    loss = states.sin().sum() + last.square().sum()
    return [states.detach(), last.detach(), *torch.autograd.grad(loss, list(leaves.tensors.values()))]


@pytest.mark.parametrize("timespans", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("batch", [1, 3], ids=["one sequence", "batch"])
@pytest.mark.parametrize("backend", ["reference", "cpu", "auto"])
def test_values_and_gradients(
    backend: str, batch: int, timespans: bool, kutta: str, generator: torch.Generator
) -> None:
    problem = random_problem(generator, integrator=kutta, alpha=0.7, batch=batch, timespans=timespans)
    for found, expected in zip(results(problem, backend), results(problem, None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_other_ways_in(kutta: str, generator: torch.Generator) -> None:
    """Compiled, exported, vmapped, and one sample after another."""
    problem = random_problem(generator, integrator=kutta)
    expected = by_hand(problem)[1]

    def last(u: Tensor) -> Tensor:
        return lipschitz_scan(**(problem.arguments | {"u": u}))[1]

    class Module(torch.nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return last(u)

    torch.testing.assert_close(torch.func.vmap(last)(problem.u[None])[0], expected)
    torch.testing.assert_close(torch.compile(last, backend="aot_eager")(problem.u), expected)
    torch.testing.assert_close(torch.export.export(Module(), (problem.u,)).module()(problem.u), expected)

    rnn = LipschitzRNN(2, 5, integrator=kutta, dtype=torch.float64)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    stream = rnn.stream()
    with torch.no_grad():
        outputs = torch.stack([torch.as_tensor(stream(sample)) for sample in x])
        torch.testing.assert_close(outputs, rnn(x)[0])


def test_measured_order(kutta: str) -> None:
    w, u, h0, time = 1.3, -0.4, 0.6, 2.0
    W = torch.full((1, 1), w, dtype=torch.float64)
    errors = []
    for steps in (32, 64):
        drive = torch.full((steps, 1, 1), u, dtype=torch.float64)
        last = lipschitz_scan(drive, torch.zeros_like(W), W, torch.full_like(W, h0), time / steps, 1.0, kutta)[1]
        errors.append(abs(float(last) - tanh_solution(w, u, h0, time)))
    assert abs(math.log2(errors[0] / errors[1]) - 3) < 0.15


def test_kernels_refuse_it_by_name(kutta: str, generator: torch.Generator) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    problem = random_problem(generator, integrator=kutta, dtype=torch.float32)
    if torch.cuda.is_available():
        problem = Problem(**{**vars(problem), **{name: tensor.cuda() for name, tensor in problem.tensors.items()}})
    with pytest.raises(ValueError, match="integrator 'kutta3'"):
        lipschitz_scan(**problem.arguments, backend="triton")


def test_auto_falls_back_where_the_kernels_would_run(kutta: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "triton_installed", lambda: True)
    monkeypatch.setattr(support, "gpu_limits", lambda device: (None, 4096))

    class OnCuda(Tensor):
        device = torch.device("cuda")  # type: ignore[assignment]

    drive, A = torch.empty(1, 2, 3, 4), torch.empty(1, 4, 4).as_subclass(OnCuda)
    for name, backend in ((kutta, "reference"), ("rk4", "triton")):
        outline = Outline(drive, A, A, None, None, None, None, Scheme(0.1, 1.0, name, "tanh"))
        assert choose("auto", outline)[0] == backend
