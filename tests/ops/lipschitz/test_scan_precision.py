"""How near float32 and half precision stay to float64."""

import pytest
import torch
from problems import INTEGRATORS, Problem, random_problem, relative_error

from lipschitz_rnn import LipschitzRNN, lipschitz_scan

BACKENDS = ("reference", "cpu")


def paper_problem(generator: torch.Generator) -> Problem:
    """The shape of ordered MNIST with N = 128: 784 steps of one pixel, a batch of 128."""
    problem = random_problem(
        generator,
        steps=784,
        batch=128,
        size=128,
        features=1,
        inputs=True,
        bias=True,
        initial=False,
        dtype=torch.float64,
    )
    problem.u = problem.u.abs().clamp(max=1.0)
    problem.A = problem.A - problem.A.mT - 0.001 * torch.eye(128)
    problem.W = problem.W - 0.5 * problem.W.mT - 0.001 * torch.eye(128)
    problem.step_size = 0.03
    return problem


def converted(problem: Problem, dtype: torch.dtype) -> Problem:
    return Problem(**{**vars(problem), **{name: tensor.to(dtype) for name, tensor in problem.tensors.items()}})


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_on_a_long_sequence(backend: str, generator: torch.Generator) -> None:
    """Relative error of all states and of the last after 784 steps; inputs rounded to float32 before both."""
    single = converted(paper_problem(generator), torch.float32)
    exact_states, exact_last = lipschitz_scan(**converted(single, torch.float64).arguments, backend=backend)
    states, last = lipschitz_scan(**single.arguments, backend=backend)
    assert relative_error(states, exact_states) < 1e-5
    assert relative_error(last, exact_last) < 1e-5


@pytest.mark.slow
def test_float32_gradients_on_a_long_sequence(generator: torch.Generator) -> None:
    """The hand-written backward pass loses no more than ten times what the reference's automatic one does."""
    problem = paper_problem(generator)
    problem.u = problem.u[:, :16]
    single = converted(problem, torch.float32)

    def gradients(dtype: torch.dtype, backend: str) -> dict[str, torch.Tensor]:
        leaves = converted(single, dtype).with_gradients()
        lipschitz_scan(**leaves.arguments, backend=backend, need_output=False)[1].square().mean().backward()
        return {name: tensor.grad for name, tensor in leaves.tensors.items()}

    exact, reference = gradients(torch.float64, "cpu"), gradients(torch.float32, "reference")
    for name, gradient in gradients(torch.float32, "cpu").items():
        floor = max(relative_error(reference[name], exact[name]), 1e-7)
        assert relative_error(gradient, exact[name]) < 10 * floor, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_adds_up_in_float32(
    dtype: torch.dtype, integrator: str, backend: str, generator: torch.Generator
) -> None:
    """200 steps of 0.01: a state in half precision would lose each increment; here only the products round."""
    problem = random_problem(generator, steps=200, batch=4, size=16, integrator=integrator)
    problem.step_size = 0.01
    half = converted(problem, dtype)
    exact_states, exact_last = lipschitz_scan(**converted(half, torch.float64).arguments)
    states, last = lipschitz_scan(**half.arguments, backend=backend)
    assert states.dtype == last.dtype == dtype
    rounding = torch.finfo(dtype).eps
    assert relative_error(states, exact_states) < 2 * rounding
    assert relative_error(last, exact_last) < 2 * rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_gradients(dtype: torch.dtype, generator: torch.Generator) -> None:
    problem = converted(random_problem(generator, inputs=True, bias=True, timespans=True), dtype)
    found = {}
    for name, version in (("exact", converted(problem, torch.float64)), ("half", problem)):
        leaves = version.with_gradients()
        lipschitz_scan(**leaves.arguments)[1].square().sum().backward()
        found[name] = {key: tensor.grad for key, tensor in leaves.tensors.items()}
    for key, gradient in found["half"].items():
        assert gradient.dtype == dtype
        assert relative_error(gradient, found["exact"][key]) < 20 * torch.finfo(dtype).eps, key


@pytest.mark.parametrize("size", [8, 32])
def test_gradients_that_are_sums_over_many_samples_keep_their_digits(size: int, generator: torch.Generator) -> None:
    """∂U of one feature is a sum of 100,000 terms for each unit; one running sum in float32 loses a digit of it."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    x, cotangent = torch.rand(784, 128, 1, generator=generator), normal(128, size)
    leaves = [0.3 * normal(size, size) / size**0.5 - 0.1 * torch.eye(size) for _ in range(2)]
    leaves += [normal(size, 1), 0.1 * normal(size)]

    def gradients(backend: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        A, W, U, b = given = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        _, last = lipschitz_scan(
            x.to(dtype), A, W, step_size=0.03, backend=backend, input_weight=U, bias=b, need_output=False
        )
        return torch.autograd.grad(last, given, cotangent.to(dtype))

    exact = gradients("reference", torch.float64)
    errors = {}
    for backend in BACKENDS:
        found = gradients(backend, torch.float32)
        errors[backend] = max(relative_error(one, true) for one, true in zip(found, exact, strict=True))
    assert errors["cpu"] < 3 * errors["reference"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recomputing_rounds_nothing_between_its_pieces(dtype: torch.dtype) -> None:
    """On a CPU 16 bits are computed in float32, from the first step to the last; a piece of one step would show."""
    torch.manual_seed(0)
    rnn = LipschitzRNN(3, 32, step_size=0.003).to(dtype)
    x = (torch.randn(200, 2, 3) + 0.5).to(dtype)
    found = []
    for every in (None, 1, 8):
        rnn.recompute_every = every
        states, last = rnn(x)
        loss = states.float().sum() + last.float().sum()
        found.append([states, last, *torch.autograd.grad(loss, list(rnn.parameters()))])
    for other in found[1:]:
        for one, again in zip(found[0], other, strict=True):
            assert one.dtype == again.dtype
            torch.testing.assert_close(one, again, rtol=torch.finfo(dtype).eps, atol=1e-6)
