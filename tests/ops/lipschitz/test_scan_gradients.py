"""The scan's gradients by finite differences, of both backends, once and twice."""

from itertools import product

import pytest
import torch
from problems import INTEGRATORS, NONLINEARITIES, Problem, random_problem
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.ops.common.noise import StateNoise
from lipschitz_rnn.ops.lipschitz import cpu

BACKENDS = ("reference", "cpu")
# Every option on and off, and every pair of options in all four ways.
OPTIONS = {
    "plain": {"initial": False},
    "state": {},
    "inputs, α": {"inputs": True, "alpha": 0.6, "initial": False},
    "inputs, bias, lengths": {"inputs": True, "bias": True, "lengths": True},
    "timespans, α": {"timespans": True, "alpha": 0.6, "initial": False},
    "timespans, lengths, inputs, bias": {"timespans": True, "lengths": True, "inputs": True, "bias": True},
    "lengths, α, ensemble": {"lengths": True, "alpha": 0.6, "networks": 2, "initial": False},
    "all, ensemble": {"timespans": True, "lengths": True, "inputs": True, "bias": True, "networks": 2, "alpha": -0.5},
}


def function_of_leaves(problem: Problem, backend: str) -> tuple[object, tuple[Tensor, ...]]:
    leaves = problem.with_gradients().tensors

    def outputs(*values: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(leaves, values, strict=True))
        states, last = lipschitz_scan(**(problem.arguments | given), backend=backend)
        return states, last

    return outputs, tuple(leaves.values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_gradients(integrator: str, nonlinearity: str, backend: str, generator: torch.Generator) -> None:
    for name, options in OPTIONS.items():
        problem = random_problem(
            generator, integrator=integrator, nonlinearity=nonlinearity, steps=3, batch=2, size=3, **options
        )
        assert gradcheck(*function_of_leaves(problem, backend), fast_mode=True), name


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_every_entry_of_every_gradient(integrator: str, backend: str, generator: torch.Generator) -> None:
    """The full Jacobian, where the test above takes random directions; and results without a cotangent."""
    problem = random_problem(generator, integrator=integrator, steps=3, batch=2, size=2, **OPTIONS["all, ensemble"])
    assert gradcheck(*function_of_leaves(problem, backend), check_undefined_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_second_derivatives(integrator: str, backend: str, generator: torch.Generator) -> None:
    for nonlinearity, name in product(NONLINEARITIES, ("state", "timespans, lengths, inputs, bias", "all, ensemble")):
        problem = random_problem(
            generator, integrator=integrator, nonlinearity=nonlinearity, steps=2, batch=2, size=2, **OPTIONS[name]
        )
        assert gradgradcheck(*function_of_leaves(problem, backend), fast_mode=True), (nonlinearity, name)


def gradients(problem: Problem, backend: str, weights: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    leaves = problem.with_gradients()
    states, last = lipschitz_scan(**leaves.arguments, backend=backend)
    ((states * weights[0]).sum() + (last * weights[1]).sum()).backward()
    return {name: tensor.grad for name, tensor in leaves.tensors.items()}


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.usefixtures("nan_memory", "without_kernels")
def test_backward_by_hand_equals_automatic(
    integrator: str, nonlinearity: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every combination of options; the backward pass goes in several chunks of time, the last one short."""
    monkeypatch.setattr(cpu, "CHUNK_ELEMENTS", 2 * 3 * 4 * 2)
    switches = ("timespans", "lengths", "initial", "inputs", "bias")
    for values in product((False, True), repeat=len(switches)):
        for alpha, networks in ((1.0, None), (0.6, 2)):
            options = dict(zip(switches, values, strict=True))
            problem = random_problem(
                generator, integrator=integrator, nonlinearity=nonlinearity, alpha=alpha, networks=networks, **options
            )
            lead = () if networks is None else (networks,)
            weights = tuple(
                torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) for shape in ((5, 3, 4), (3, 4))
            )
            expected = gradients(problem, "reference", weights)
            for name, gradient in gradients(problem, "cpu", weights).items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("wanted", ["u", "A", "W", "hx", "input_weight", "bias", "step_size"])
def test_one_gradient_alone(wanted: str, generator: torch.Generator) -> None:
    """What is not asked for is not computed, and what is comes out the same."""
    problem = random_problem(generator, timespans=True, inputs=True, bias=True, integrator="midpoint")
    weights = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 3, 4), (3, 4)))
    expected = gradients(problem, "reference", weights)[wanted]
    leaf = problem.tensors[wanted].clone().requires_grad_()
    states, last = lipschitz_scan(**(problem.arguments | {wanted: leaf}), backend="cpu")
    ((states * weights[0]).sum() + (last * weights[1]).sum()).backward()
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("output", [0, 1], ids=["states", "last"])
def test_gradient_of_one_result(output: int, generator: torch.Generator) -> None:
    problem = random_problem(generator, integrator="rk4", lengths=True)
    found = []
    for backend in BACKENDS:
        leaves = problem.with_gradients()
        lipschitz_scan(**leaves.arguments, backend=backend)[output].sin().sum().backward()
        found.append([tensor.grad for tensor in leaves.tensors.values()])
    for automatic, by_hand in zip(*found, strict=True):
        torch.testing.assert_close(by_hand, automatic, rtol=1e-11, atol=1e-12)


def operator_arguments(generator: torch.Generator) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    problem = random_problem(generator, networks=2, inputs=True, bias=True, timespans=True, integrator="midpoint")
    tensors = (problem.u, problem.A, problem.W, problem.hx, problem.input_weight, problem.bias, problem.step_size)
    noise = StateNoise(torch.tensor([3, 5]), additive=0.1, multiplicative=0.2).rows((2,), problem.A)
    return (*tensors, noise), (0.0, 1.0, "midpoint", "tanh", False)


def test_registered_operators_keep_their_promises(generator: torch.Generator) -> None:
    """Shapes, strides, aliasing and schema, as PyTorch's own check of operators sees them."""
    tensors, scheme = operator_arguments(generator)
    checks = ("test_schema", "test_faketensor")
    for keep, save in product((False, True), repeat=2):
        arguments = (*tensors, *scheme, keep, save, "cpu")
        torch.library.opcheck(torch.ops.lipschitz_rnn.scan, arguments, test_utils=checks)
    tape, last = torch.ops.lipschitz_rnn.scan(*tensors, *scheme, True, True, "cpu")
    for needs in ([True] * 7, [True, False] * 3 + [True], [False] * 6 + [True]):
        needs = [*needs, False]  # noise has no gradient
        arguments = (*tensors, tape, tape[:, :, 0], last, *scheme, "cpu", needs)
        torch.library.opcheck(torch.ops.lipschitz_rnn.scan_backward, arguments, test_utils=checks)


def test_the_reference_as_an_operator(generator: torch.Generator) -> None:
    """Compiled programs call it where no faster backend serves: same results, same gradients, promised layout."""
    tensors, scheme = operator_arguments(generator)
    found = {}
    for name in BACKENDS:
        tape, last = torch.ops.lipschitz_rnn.scan(*tensors, *scheme, True, True, name)
        states = tape[:, :, 0]
        arguments = (*tensors, tape, states.clone(), last, *scheme, name, [True] * 7 + [False])
        found[name] = [states, last, *torch.ops.lipschitz_rnn.scan_backward(*arguments)]
    for one, other in zip(found["reference"], found["cpu"], strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
