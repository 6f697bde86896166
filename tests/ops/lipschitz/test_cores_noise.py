"""Noise in the compiled kernels of the cpu backend: its numbers, and scans with it against the reference in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from problems import INTEGRATORS, Problem, random_problem
from torch import Tensor

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.noise import StateNoise, draw_noise
from lipschitz_rnn.ops.lipschitz.cores import machine, support
from lipschitz_rnn.ops.lipschitz.problem import Problem as Scan
from lipschitz_rnn.ops.lipschitz.problem import Scheme

# Sizes with a part of a vector, an odd number of units, one sample, two groups of samples, a short last chunk.
OPTIONS: dict[str, dict[str, Any]] = {
    "one sample": {"initial": False, "steps": 11, "batch": 1, "size": 16},
    "odd": {"steps": 11, "batch": 19, "size": 33},
    "inputs, bias": {"inputs": True, "bias": True, "features": 1, "batch": 6, "size": 7},
    "timespans, lengths": {"timespans": True, "lengths": True, "steps": 17, "batch": 10, "size": 20},
    "ensemble": {"networks": 3, "inputs": True, "timespans": True, "batch": 5, "size": 18},
}
STRENGTHS = {"both": (0.3, 0.4), "additive": (0.3, 0.0), "multiplicative": (0.0, 0.4)}


def noise_for(problem: Problem, additive: Any, multiplicative: Any, **first: int) -> StateNoise:
    networks = problem.A.shape[:-2]
    seed = torch.tensor([5, 2**40 + 3, 11][: networks[0]] if networks else 2**53 - 1)
    return StateNoise(seed, additive, multiplicative, step_size=0.3, **first)


def results(problem: Problem, noise: StateNoise, dtype: torch.dtype, backend: str) -> list[Tensor]:
    """States, last state, the last state without the others, and the gradients of all but the times."""
    values = vars(problem).items()
    changed = {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in values}
    leaves = Problem(**changed).with_gradients()
    arguments = dict(leaves.arguments)
    if isinstance(arguments["step_size"], Tensor):
        arguments["step_size"] = arguments["step_size"].detach()
    states, last = lipschitz_scan(**arguments, backend=backend, noise=noise)
    assert states is not None
    wanted = [tensor for name, tensor in leaves.tensors.items() if name != "step_size"]
    weights = torch.linspace(0.3, 1.0, states.numel(), dtype=torch.float64).reshape(states.shape).to(dtype)
    gradients = torch.autograd.grad((states * weights).sum() + 1.3 * last.sum(), wanted)
    with torch.no_grad():
        _, alone = lipschitz_scan(**arguments, backend=backend, noise=noise, need_output=False)
    return [each.detach().double() for each in (states, last, alone, *gradients)]


def assert_as_exact_as_the_reference(problem: Problem, noise: StateNoise, name: str) -> None:
    """Three times the reference's own error, and what a sum in another order costs."""
    exact = results(problem, noise, torch.float64, "reference")
    own = results(problem, noise, torch.float32, "reference")
    for found, near, true in zip(results(problem, noise, torch.float32, "cpu"), own, exact, strict=True):
        scale = true.abs().max().clamp_min(1e-30)
        error, allowed = (float((each - true).abs().max() / scale) for each in (found, near))
        assert error <= 3 * allowed + 16 * torch.finfo(torch.float32).eps, name


@pytest.mark.usefixtures("compiled", "nan_memory")
@pytest.mark.parametrize("strengths", STRENGTHS.values(), ids=STRENGTHS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_values_and_gradients(integrator: str, strengths: tuple[float, float], generator: torch.Generator) -> None:
    for name, options in OPTIONS.items():
        problem = random_problem(generator, integrator=integrator, **options)
        noise = noise_for(problem, *strengths, first_sample=3, first_step=2**20)
        assert_as_exact_as_the_reference(problem, noise, name)


@pytest.mark.usefixtures("compiled", "nan_memory")
def test_registers_of_32_bytes(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of AVX2; the code runs here as well."""
    here = machine.processor()
    assert here is not None
    monkeypatch.setattr(machine, "processor", lambda: machine.Processor(here.name, here.features, 32, 6))
    monkeypatch.setattr(machine, "_kernels", cache(machine._kernels.__wrapped__))
    for name, options in OPTIONS.items():
        problem = random_problem(generator, integrator="heun", **options)
        assert_as_exact_as_the_reference(problem, noise_for(problem, 0.3, 0.4), name)


@pytest.mark.usefixtures("compiled", "nan_memory")
def test_networks_of_an_ensemble_have_their_own_strengths(generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=3, integrator="midpoint", size=18)
    strengths = torch.tensor([0.0, 0.3, 0.1]), torch.tensor([0.0, 0.0, 0.4])
    assert_as_exact_as_the_reference(problem, noise_for(problem, *strengths), "ensemble")
    quiet = lipschitz_scan(problem.u[0].float(), problem.A[0].float(), problem.W[0].float(), step_size=0.3)[0]
    values = (tensor.float() for tensor in (problem.u, problem.A, problem.W))
    noisy = lipschitz_scan(*values, step_size=0.3, noise=noise_for(problem, *strengths))[0]
    assert quiet is not None
    assert noisy is not None
    torch.testing.assert_close(noisy[0], quiet, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("compiled")
def test_the_numbers_are_those_of_the_definition() -> None:
    """With nothing but noise a state is its noise: half a million normal and uniform numbers, whose errors are a few
    units in the last place, as far out as they go."""
    steps, batch, units = 16, 256, 128
    zeros = torch.zeros(units, units)
    noise = StateNoise(torch.tensor(77), additive=1.0, multiplicative=1.0, step_size=1.0)
    factor, normal = (part[0] for part in draw_noise(noise.rows((), zeros)[None], 1.0, (steps, batch, units)))

    def disturbed(start: float, t: int) -> Tensor:
        """A state of ``start`` everywhere after the step t, which adds nothing but noise."""
        h0, now = torch.full((batch, units), start), StateNoise(noise.seed, 1.0, 1.0, 1.0, first_step=t)
        options: dict[str, Any] = {"step_size": 1.0, "nonlinearity": "identity", "backend": "cpu", "noise": now}
        return lipschitz_scan(torch.zeros(1, batch, units), zeros, zeros, h0, **options)[1]

    zero, one = (torch.stack([disturbed(start, t) for t in range(steps)]) for start in (0.0, 1.0))
    assert float(normal.abs().max()) > 4.5
    torch.testing.assert_close(zero, normal, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(one - zero, factor, rtol=2e-6, atol=2e-6)


@pytest.mark.usefixtures("compiled")
def test_what_the_kernels_leave_to_others() -> None:
    def outline(dtype: torch.dtype, strength: float) -> Scan:
        A = torch.zeros(1, 8, 8, dtype=dtype)
        rows = StateNoise(torch.tensor([1]), additive=strength).rows((1,), A)
        scheme = Scheme(0.1, 1.0, "euler", "tanh")
        return Scan(torch.zeros(1, 20, 3, 8, dtype=dtype), A, A, None, None, None, None, scheme, rows)

    assert support.serves(outline(torch.float32, 0.1))
    assert "float32" in str(support.obstacle(outline(torch.float64, 0.1)))
    assert support.serves(outline(torch.float64, 0.0))
