"""The scan with noise on its state: against a plain loop, between backends, through every option, and its gradients."""

from __future__ import annotations

import math
from typing import Any

import noise_numbers
import pytest
import torch
from problems import INTEGRATORS, SIGMA, Problem, random_problem, step
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.noise import StateNoise

NAMES = ("u", "A", "W", "hx", "input_weight", "bias")


def noise_of(problem: Problem, **changes: Any) -> StateNoise:
    networks = problem.A.shape[:-2]
    seed = torch.tensor([5, 2**40 + 3, 11][: networks[0]] if networks else 5)
    return StateNoise(seed, **({"additive": 0.3, "multiplicative": 0.4, "step_size": 0.3} | changes))


def run(problem: Problem, noise: StateNoise | None = None, **options: Any) -> list[Tensor]:
    """States, last state and all gradients; not those of times, which kernels do not have."""
    leaves = problem.with_gradients()
    arguments = dict(leaves.arguments)
    wanted = [leaves.tensors[name] for name in NAMES if name in leaves.tensors]
    if isinstance(arguments["step_size"], Tensor):
        arguments["step_size"] = arguments["step_size"].detach()
    states, last = lipschitz_scan(**(arguments | {"noise": noise} | options))
    weights = torch.linspace(-1.0, 2.0, last.numel(), dtype=last.dtype).reshape(last.shape)
    loss = (last * weights).sum() + (0 if states is None else states.sin().sum())
    return [*([] if states is None else [states.detach()]), last.detach(), *torch.autograd.grad(loss, wanted)]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("timed", [False, True], ids=["equal steps", "times and lengths"])
def test_equals_a_plain_loop(backend: str, timed: bool, generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator="midpoint", timespans=timed, lengths=timed, initial=False)
    states, last = lipschitz_scan(**problem.arguments, backend=backend, noise=noise_of(problem))
    A, W, u = (tensor.numpy() for tensor in (problem.A, problem.W, problem.u))
    for b in range(u.shape[1]):
        h = 0.0 * u[0, b]
        for t in range(len(u) if problem.lengths is None else int(problem.lengths[b])):
            time = float(problem.step_size[t, b]) if isinstance(problem.step_size, Tensor) else problem.step_size
            h = step(h, lambda y, now=u[t, b]: A @ y + SIGMA["tanh"](W @ y + now), time, "midpoint")
            root = math.sqrt(time / 0.3)
            for n in range(len(h)):
                uniform, normal = noise_numbers.entry(5, t, b, n)
                h[n] = (1.0 + 0.4 * root * uniform) * h[n] + 0.3 * root * normal
            torch.testing.assert_close(states[t, b], torch.from_numpy(h), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(last[b], torch.from_numpy(h), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("networks", [None, 3])
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("timespans", [False, True])
def test_the_cpu_backend_equals_the_reference(
    networks: int | None, integrator: str, timespans: bool, generator: torch.Generator
) -> None:
    options: dict[str, Any] = {"networks": networks, "integrator": integrator, "timespans": timespans}
    problem = random_problem(generator, inputs=True, bias=True, lengths=timespans, **options)
    for noise in (noise_of(problem), noise_of(problem, additive=0.0), noise_of(problem, multiplicative=0.0)):
        found = [run(problem, noise, backend=backend) for backend in ("cpu", "reference")]
        assert_same(*found, tolerance=1e-12)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 3, "batch": 3, "size": 5},
        {"steps": 4, "batch": 17, "size": 20, "networks": 2, "features": 1, "integrator": "heun"},
        {"steps": 3, "batch": 2, "size": 33, "timespans": True, "lengths": True, "integrator": "midpoint"},
        {"steps": 2, "batch": 3, "size": 150, "timespans": True},
    ],
    ids=["small", "networks", "times", "shared between programs"],
)
def test_the_kernels_draw_the_same_noise(options: dict[str, Any], generator: torch.Generator, device: Any) -> None:
    problem = random_problem(generator, inputs=True, bias=True, **options)
    expected = run(problem, noise_of(problem), backend="reference")
    moved = {name: value.to(device, torch.float32) for name, value in problem.tensors.items()}
    single = Problem(**{**vars(problem), **moved})
    noise = noise_of(single)
    noise = StateNoise(noise.seed.to(device), noise.additive, noise.multiplicative, noise.step_size)
    found = [value.cpu() for value in run(single, noise, backend="triton")]
    # Fast logarithms and cosines of a GPU are off by up to 5e-4 in ξ where it is near zero.
    assert_same(found, expected, tolerance=2e-5 if device.type == "cpu" else 5e-3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
@pytest.mark.parametrize("timespans", [False, True])
def test_gradients_with_the_noise_held(
    backend: str, integrator: str, timespans: bool, generator: torch.Generator
) -> None:
    """Against finite differences, which see the same seed again."""
    shape: dict[str, Any] = {"steps": 4, "batch": 2, "size": 3, "inputs": True, "bias": True}
    problem = random_problem(generator, integrator=integrator, timespans=timespans, **shape)
    fixed = {"step_size": problem.step_size, "integrator": integrator, "backend": backend, "noise": noise_of(problem)}

    def outputs(*values: Tensor) -> tuple[Tensor | None, Tensor]:
        return lipschitz_scan(**dict(zip(NAMES, values, strict=True)), **fixed)  # type: ignore[arg-type]

    leaves = problem.with_gradients()
    inputs = tuple(leaves.tensors[name] for name in NAMES)
    assert gradcheck(outputs, inputs)
    assert gradgradcheck(outputs, inputs)


def test_times_have_a_gradient_with_the_noise_held(generator: torch.Generator) -> None:
    """Also at time zero, where the root has none: the strength of the noise is held with it."""
    problem = random_problem(generator, timespans=True)
    found = []
    for backend in ("cpu", "reference"):
        times = problem.step_size.clone()  # type: ignore[union-attr]
        times[1, 0] = 0.0
        times.requires_grad_()
        arguments = problem.arguments | {"step_size": times, "backend": backend, "noise": noise_of(problem)}
        (gradient,) = torch.autograd.grad(lipschitz_scan(**arguments)[1].sum(), times)
        assert bool(gradient.isfinite().all())
        found.append(gradient)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_no_strength_changes_no_bit(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, inputs=True, dtype=torch.float32)
    silent = run(problem, noise_of(problem, additive=0.0, multiplicative=0.0), backend=backend)
    for one, other in zip(silent, run(problem, backend=backend), strict=True):
        assert torch.equal(one, other)


def test_no_strength_changes_no_bit_of_the_kernels(generator: torch.Generator, device: Any) -> None:
    problem = random_problem(generator, inputs=True, bias=True, steps=3, batch=3, size=5, dtype=torch.float32)
    moved = {name: value.to(device) for name, value in problem.tensors.items()}
    single = Problem(**{**vars(problem), **moved})
    silent = StateNoise(torch.tensor(5, device=device), additive=0.0, multiplicative=0.0, step_size=0.3)
    for one, other in zip(run(single, silent, backend="triton"), run(single, backend="triton"), strict=True):
        assert torch.equal(one, other)


def test_recomputed_and_unstored_states_have_the_same_noise(generator: torch.Generator) -> None:
    problem = random_problem(generator, steps=7, inputs=True, timespans=True, lengths=True)
    noise = noise_of(problem)
    whole = run(problem, noise)
    assert_same(run(problem, noise, recompute_every=3), whole, tolerance=1e-12)
    with torch.no_grad():
        states, last = lipschitz_scan(**problem.arguments, noise=noise, need_output=False)
    assert states is None
    torch.testing.assert_close(last, whole[1], rtol=1e-12, atol=1e-12)


def test_members_of_an_ensemble_have_their_own_noise(generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=3)
    noise = noise_of(problem)
    together, _ = lipschitz_scan(**problem.arguments, noise=noise)
    assert together is not None
    for s in range(3):
        alone = {name: value[s] for name, value in problem.tensors.items()}
        one = StateNoise(noise.seed[s], noise.additive, noise.multiplicative, noise.step_size)
        states, _ = lipschitz_scan(**(problem.arguments | alone), noise=one)
        torch.testing.assert_close(together[s], states, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_vmap_over_seeds_equals_the_ensemble(backend: str, generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=3)

    def last(seed: Tensor, u: Tensor, A: Tensor, W: Tensor, h0: Tensor) -> Tensor:
        noise = StateNoise(seed, 0.3, 0.4, 0.3)
        return lipschitz_scan(u, A, W, h0, step_size=0.3, backend=backend, noise=noise)[1]

    tensors = (noise_of(problem).seed, *(problem.tensors[name] for name in ("u", "A", "W", "hx")))
    _, expected = lipschitz_scan(**problem.arguments, noise=noise_of(problem))
    torch.testing.assert_close(torch.func.vmap(last)(*tensors), expected, rtol=1e-12, atol=1e-12)

    def loss(A: Tensor, seed: Tensor, u: Tensor, W: Tensor, h0: Tensor) -> Tensor:
        return last(seed, u, A, W, h0).sin().sum()

    seed, u, A, W, h0 = tensors
    gradients = torch.func.vmap(torch.func.grad(loss))(A, seed, u, W, h0)
    leaf = A.clone().requires_grad_()
    _, expected = lipschitz_scan(u, leaf, W, h0, step_size=0.3, noise=noise_of(problem))
    torch.testing.assert_close(gradients, *torch.autograd.grad(expected.sin().sum(), leaf), rtol=1e-10, atol=1e-11)


class TestSubsteps:
    """A span that ``max_step`` divides has noise after each sub-step, for its time: as much in total."""

    def test_the_variance_is_that_of_the_whole_span(self) -> None:
        zeros, B, N = torch.zeros(8, 8), 500, 8
        noise = StateNoise(torch.tensor(3), additive=0.5, step_size=0.1)
        times = torch.tensor([0.4, 0.9]).repeat_interleave(B // 2).expand(1, B)
        for max_step in (None, 0.2):
            arguments: dict[str, Any] = {"step_size": times, "alpha": 0.0, "nonlinearity": "identity"}
            _, last = lipschitz_scan(torch.zeros(1, B, N), zeros, zeros, **arguments, max_step=max_step, noise=noise)
            for part, variance in zip(last.chunk(2), (0.25 * 4, 0.25 * 9), strict=True):
                assert abs(float(part.var()) / variance - 1) < 5 * math.sqrt(2 / part.numel())
        for max_step in (None, 0.05):
            arguments["step_size"] = 0.4
            _, last = lipschitz_scan(torch.zeros(1, B, N), zeros, zeros, **arguments, max_step=max_step, noise=noise)
            assert abs(float(last.var()) - 1.0) < 5 * math.sqrt(2 / last.numel())

    def test_a_sample_has_its_noise_whatever_the_others_take(self, generator: torch.Generator) -> None:
        problem = random_problem(generator, timespans=True, batch=2)
        noise = noise_of(problem)
        longer = problem.step_size.clone()  # type: ignore[union-attr]
        longer[:, 1] *= 7.0
        found = [
            lipschitz_scan(**(problem.arguments | {"step_size": times}), max_step=0.15, noise=noise)
            for times in (problem.step_size, longer)
        ]
        torch.testing.assert_close(found[0][0][:, 0], found[1][0][:, 0], rtol=1e-12, atol=1e-12)  # type: ignore[index]
        assert not torch.allclose(found[0][1][1], found[1][1][1])

    def test_the_compiled_operator_has_the_same(self, generator: torch.Generator) -> None:
        problem = random_problem(generator, timespans=True)
        torch._dynamo.reset()
        plain = torch.compile(lipschitz_scan, backend="aot_eager", fullgraph=True)
        for changes in ({}, {"max_step": 0.15}, {"recompute_every": 2}):
            noise = noise_of(problem)
            found = []
            for function in (lipschitz_scan, plain):
                leaves = problem.with_gradients()
                leaves.step_size = problem.step_size
                _, last = function(**leaves.arguments, noise=noise, **changes)
                found.append([last.detach(), *torch.autograd.grad(last.sin().sum(), [leaves.A, leaves.u])])
            assert_same(*found, tolerance=1e-12)


def test_what_is_no_noise_is_refused(generator: torch.Generator) -> None:
    problem = random_problem(generator)
    with pytest.raises(TypeError, match="float"):
        lipschitz_scan(**problem.arguments, noise=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["additive", "multiplicative", "step_size"])
@pytest.mark.parametrize(
    ("strengths", "message"),
    [
        ([-0.1, 0.1], "is -0.1"),
        ([0.1, math.nan], "is nan"),
        ([math.inf, 0.1], "is inf"),
        ([0.1] * 3, r"has shape \(3\)"),
    ],
)
def test_tensors_of_strengths_are_checked(name: str, strengths: list[float], message: str) -> None:
    A, drive = 0.1 * torch.randn(2, 3, 3), torch.randn(2, 4, 1, 3)
    noise = StateNoise(torch.tensor([1, 2]), **{"additive": 0.1, name: torch.tensor(strengths)})
    with pytest.raises(ValueError, match=f"{name} .*{message}"):
        lipschitz_scan(drive, A, A, noise=noise)
