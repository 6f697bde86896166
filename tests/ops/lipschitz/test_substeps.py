"""``max_step``: longer steps in equal sub-steps, against a loop that takes every sub-step of every sample by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from problems import INTEGRATORS, SIGMA, Array, Problem, member, random_problem, step
from torch import Tensor
from torch.func import grad, jvp, vmap

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.lipschitz.substeps import LARGEST, count_substeps, substeps_of

MAX_STEP = 0.11
NAMES = ("u", "A", "W", "hx", "input_weight", "bias", "step_size")


def by_hand(problem: Problem, max_step: float) -> tuple[Array, Array]:
    """Sample by sample, step by step, sub-step by sub-step, in NumPy."""
    if problem.A.dim() == 3:
        parts = [by_hand(member(problem, s), max_step) for s in range(len(problem.A))]
        return np.stack([states for states, _ in parts]), np.stack([last for _, last in parts])
    x, A, W = (tensor.detach().double().numpy() for tensor in (problem.u, problem.A, problem.W))
    sigma = SIGMA[problem.nonlinearity]
    states, last = np.zeros((*x.shape[:2], len(A))), np.zeros((x.shape[1], len(A)))
    for b in range(x.shape[1]):
        h = np.zeros(len(A)) if problem.hx is None else problem.hx[b].detach().double().numpy()
        for t in range(len(x) if problem.lengths is None else int(problem.lengths[b])):
            u = x[t, b] if problem.input_weight is None else problem.input_weight.detach().double().numpy() @ x[t, b]
            u = u if problem.bias is None else u + problem.bias.detach().double().numpy()
            span = problem.step_size
            span = float(span[t, b]) if isinstance(span, Tensor) else span
            count = 1
            while span / count > max_step * (1 + 1e-6):
                count += 1
            for _ in range(count):
                h = step(h, lambda y, u=u: problem.alpha * A @ y + sigma(W @ y + u), span / count, problem.integrator)
            states[t, b] = h
        last[b] = h
    return states, last


@pytest.mark.parametrize("networks", [None, 2], ids=["one", "ensemble"])
@pytest.mark.parametrize("lengths", [False, True], ids=["full", "lengths"])
@pytest.mark.parametrize("timespans", [False, True], ids=["fixed", "timespans"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_states(
    backend: str, integrator: str, timespans: bool, lengths: bool, networks: int | None, generator: torch.Generator
) -> None:
    problem = random_problem(
        generator, integrator=integrator, timespans=timespans, lengths=lengths, networks=networks, inputs=True,
        bias=True, alpha=0.7,
    )  # fmt: skip
    expected = by_hand(problem, MAX_STEP)
    for every in (None, 2):
        found = lipschitz_scan(**problem.arguments, max_step=MAX_STEP, backend=backend, recompute_every=every)
        for value, right in zip(found, expected, strict=True):
            torch.testing.assert_close(value, torch.from_numpy(right), rtol=1e-12, atol=1e-13)
            assert value.is_contiguous()
    states, last = lipschitz_scan(**problem.arguments, max_step=MAX_STEP, backend=backend, need_output=False)
    assert states is None
    torch.testing.assert_close(last, torch.from_numpy(expected[1]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("networks", [None, 2], ids=["one", "ensemble"])
@pytest.mark.parametrize("integrator", ["euler", "midpoint"])
def test_kernels(integrator: str, networks: int | None, generator: torch.Generator, nan_memory: None) -> None:
    """In Triton's interpreter or on a GPU: values and gradients in float32 against float64 on the reference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = random_problem(
        generator, integrator=integrator, timespans=True, lengths=True, networks=networks, inputs=True, size=16, batch=2
    )
    exact = problem.with_gradients()
    expected = lipschitz_scan(**exact.arguments, max_step=MAX_STEP, backend="reference")
    (expected[0].sin().sum() + expected[1].sum()).backward()
    rounded = {name: value.to(device, torch.float32).requires_grad_() for name, value in problem.tensors.items()}
    rounded["step_size"].requires_grad_(False)  # for which the kernels have no gradient
    found = lipschitz_scan(**(problem.arguments | rounded), max_step=MAX_STEP, backend="triton")
    (found[0].sin().sum() + found[1].sum()).backward()
    for value, right in zip(found, expected, strict=True):
        torch.testing.assert_close(value.cpu().double(), right, rtol=1e-4, atol=1e-5)
    for name, value in rounded.items():
        if name != "step_size":
            torch.testing.assert_close(value.grad.cpu().double(), exact.tensors[name].grad, rtol=2e-3, atol=2e-4)


def sample_by_sample(problem: Problem, max_step: float) -> tuple[Tensor, Tensor]:
    """Differentiable: every sample alone, its rows written out as often as they are taken."""
    assert isinstance(problem.step_size, Tensor)
    states, last = [], []
    for b in range(problem.u.shape[1]):
        spans = problem.step_size[:, b]
        counts = torch.tensor([max(1, math.ceil(span / max_step - 1e-9)) for span in spans.tolist()])
        own = {
            "u": problem.u[:, b : b + 1].repeat_interleave(counts, 0),
            "step_size": (spans / counts).repeat_interleave(counts)[:, None],
            "hx": problem.hx[b : b + 1],
        }
        each, end = lipschitz_scan(**(problem.arguments | own), backend="reference")
        states.append(each[counts.cumsum(0) - 1])
        last.append(end)
    return torch.cat(states, 1), torch.cat(last)


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradients_reach_everything_the_times_included(
    backend: str, every: int | None, generator: torch.Generator
) -> None:
    problem = random_problem(generator, integrator="heun", timespans=True, inputs=True, bias=True)
    problem.step_size[0, 0] = 0.0
    one, other = problem.with_gradients(), problem.with_gradients()
    for values in (
        lipschitz_scan(**one.arguments, max_step=MAX_STEP, backend=backend, recompute_every=every),
        sample_by_sample(other, MAX_STEP),
    ):
        (values[0].sin().sum() + values[1].square().sum()).backward()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(tensor.grad, other.tensors[name].grad, rtol=1e-10, atol=1e-11)


def test_second_derivatives(generator: torch.Generator) -> None:
    problem = random_problem(generator, timespans=True, steps=3, batch=2, size=2)
    u, spans = problem.u.requires_grad_(), problem.step_size.requires_grad_()

    def states(u: Tensor, spans: Tensor) -> Tensor:
        return lipschitz_scan(**(problem.arguments | {"u": u, "step_size": spans}), max_step=MAX_STEP)[0]

    assert torch.autograd.gradcheck(states, (u, spans))
    assert torch.autograd.gradgradcheck(states, (u, spans))


def test_function_transforms(generator: torch.Generator) -> None:
    """vmap over networks that take different numbers of sub-steps, its gradients, and forward mode."""
    problem = random_problem(generator, networks=3, inputs=True, bias=True, timespans=True)
    problem.step_size[1] *= 3
    tensors = tuple(problem.tensors[name] for name in NAMES)

    def loss(*values: Tensor) -> Tensor:
        given = member(problem, 0).arguments | dict(zip(NAMES, values, strict=True))
        states, last = lipschitz_scan(**given, max_step=MAX_STEP)
        return states.sin().sum() + last.square().sum()

    every = tuple(range(len(NAMES)))
    losses, gradients = vmap(loss)(*tensors), vmap(grad(loss, argnums=every))(*tensors)
    for s in range(3):
        alone = [tensor[s].clone().requires_grad_() for tensor in tensors]
        value = loss(*alone)
        value.backward()
        torch.testing.assert_close(losses[s], value, rtol=1e-12, atol=1e-13)
        for found, expected in zip(gradients, alone, strict=True):
            torch.testing.assert_close(found[s], expected.grad, rtol=1e-11, atol=1e-12)
    own = [tensor[0] for tensor in tensors]
    _, tangent = jvp(loss, tuple(own), tuple(torch.ones_like(value) for value in own))
    torch.testing.assert_close(tangent, sum(gradient[0].sum() for gradient in gradients))


@pytest.mark.slow
def test_compiled_as_one_operator(generator: torch.Generator) -> None:
    """Without a graph break, for any times: the number of sub-steps is not part of the program."""
    problem = random_problem(generator, inputs=True, bias=True, timespans=True)

    def loss(*values: Tensor) -> Tensor:
        given = problem.arguments | dict(zip(NAMES, values, strict=True))
        states, last = lipschitz_scan(**given, max_step=MAX_STEP)
        return states.sin().sum() + last.square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 0.1, 5.0):
        own, expected = ([problem.tensors[name].clone().requires_grad_() for name in NAMES] for _ in range(2))
        with torch.no_grad():
            own[-1].mul_(scale), expected[-1].mul_(scale)
        value, right = compiled(*own), loss(*expected)
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-13)
        value.backward(), right.backward()
        for found, wanted in zip(own, expected, strict=True):
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*own), loss(*own), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("max_step", [0.1, 0.3, 1 / 3, 0.7, 1e-3])
def test_whole_multiples_are_not_rounded_up(max_step: float) -> None:
    for number in (1, 2, 3, 7, 10, 49, 1000):
        assert substeps_of(number * max_step, max_step) == number
        for dtype in (torch.float64, torch.float32):
            spans = torch.full((2,), max_step, dtype=dtype) * number
            assert count_substeps(spans, max_step).tolist() == [number] * 2
        assert substeps_of(number * max_step * 1.001, max_step) == number + max(1, number // 1000)
    assert substeps_of(0.0, max_step) == 1
    odd = torch.tensor([0.0, 1e30, torch.inf, torch.nan, -1.0])
    assert count_substeps(odd, max_step).tolist() == [1, LARGEST + 1, LARGEST + 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_step": 0.0}, ValueError, "max_step is 0.0; it must be greater than 0"),
        ({"max_step": math.nan}, ValueError, "max_step is nan"),
        ({"max_step": "1"}, TypeError, "max_step is '1'"),
        (
            {"max_step": 1e-9},
            ValueError,
            "the longest step is 0.3 and max_step is 1e-09, which makes more than 1,000,000",
        ),
        (
            {"max_step": 1.0, "step_size": torch.full((5, 3), 1e9)},
            ValueError,
            r"the longest step is 1e\+09 and max_step is 1, which makes more than 1,000,000 sub-steps",
        ),
        ({"max_step": 0.1, "lengths": torch.tensor([6, 1, 1])}, ValueError, "between 1 and the number of steps, 5"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str, generator: torch.Generator) -> None:
    problem = random_problem(generator)
    with pytest.raises(error, match=message):
        lipschitz_scan(**(problem.arguments | arguments))


def test_steps_that_are_short_enough_are_taken_as_they_are(generator: torch.Generator) -> None:
    problem = random_problem(generator, timespans=True)
    plain = lipschitz_scan(**problem.arguments)
    for value, same in zip(lipschitz_scan(**problem.arguments, max_step=0.5), plain, strict=True):
        assert torch.equal(value, same)


def test_shapes_without_values(generator: torch.Generator) -> None:
    problem = random_problem(generator, timespans=True)
    given = {name: value.to("meta") for name, value in problem.tensors.items()}
    states, last = lipschitz_scan(**(problem.arguments | given), max_step=MAX_STEP)
    assert (states.shape, last.shape) == ((5, 3, 4), (3, 4))
