"""The scan under ``torch.func``: vmap becomes the ensemble axis, derivatives of every kind agree."""

from importlib import import_module
from typing import Any

import pytest
import torch
from operators import OperatorCalls
from problems import member, random_problem
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from lipschitz_rnn import lipschitz_scan

NAMES = ("u", "A", "W", "hx", "input_weight", "bias", "step_size")


def loss_of(problem: Any, backend: str = "auto") -> Any:
    def loss(*values: Tensor) -> Tensor:
        given = dict(zip(NAMES, values, strict=True))
        states, last = lipschitz_scan(**(problem.arguments | given), backend=backend)
        return states.sin().sum() + last.square().sum()

    return loss


@pytest.mark.parametrize("outside", [False, True], ids=["vmap of grad", "grad of vmap"])
def test_vmap_is_one_call_of_the_ensemble(outside: bool, generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=4, inputs=True, bias=True, timespans=True, integrator="midpoint")
    tensors = tuple(problem.tensors[name] for name in NAMES)
    loss, every = loss_of(member(problem, 0)), tuple(range(len(NAMES)))
    with OperatorCalls() as calls:
        if outside:
            gradients = grad(lambda *values: vmap(loss)(*values).sum(), argnums=every)(*tensors)
        else:
            gradients = vmap(grad(loss, argnums=every))(*tensors)
    assert calls.names == ["scan", "scan_backward"]
    for s in range(4):
        expected = grad(loss, argnums=every)(*(tensor[s] for tensor in tensors))
        for found, alone in zip(gradients, expected, strict=True):
            torch.testing.assert_close(found[s], alone, rtol=1e-12, atol=1e-13)


def test_vmap_over_some_arguments(generator: torch.Generator) -> None:
    """Weights of four networks on the same inputs, the axis not in front, inside an ensemble of its own."""
    problem = random_problem(generator, networks=2)
    weights = torch.randn(2, 4, 4, 4, generator=generator, dtype=torch.float64)

    def states(W: Tensor) -> Tensor:
        return lipschitz_scan(**(problem.arguments | {"W": W}))[0]

    with OperatorCalls() as calls:
        together = vmap(states, in_dims=3)(weights)
    assert calls.names == ["scan"]
    for i in range(4):
        torch.testing.assert_close(together[i], states(weights[..., i]), rtol=1e-12, atol=1e-13)


def test_vmap_without_gradients_saves_nothing(generator: torch.Generator) -> None:
    """What the backward pass would need is not kept when nobody can ask for it."""
    problem = random_problem(generator, networks=3)
    with OperatorCalls() as calls:
        vmap(lambda A: lipschitz_scan(**(member(problem, 0).arguments | {"A": A}))[1])(problem.A)
    assert calls.saves == [False]


def test_ordinary_backward_through_vmap(generator: torch.Generator) -> None:
    """Stacked parameters that are plain leaves, as in a training loop."""
    problem = random_problem(generator, networks=3)
    single = member(problem, 0)

    def last(A: Tensor, W: Tensor) -> Tensor:
        return lipschitz_scan(**(single.arguments | {"A": A, "W": W}))[1]

    A, W = problem.A.clone().requires_grad_(), problem.W.clone().requires_grad_()
    vmap(last)(A, W).square().sum().backward()
    for s in range(3):
        A_s, W_s = problem.A[s].clone().requires_grad_(), problem.W[s].clone().requires_grad_()
        last(A_s, W_s).square().sum().backward()
        torch.testing.assert_close(A.grad[s], A_s.grad, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(W.grad[s], W_s.grad, rtol=1e-12, atol=1e-13)


SCANS = "lipschitz_rnn.ops.lipschitz.cpu.forward"


@pytest.mark.parametrize("case", ["all", "weights", "axis", "ensemble"])
def test_a_lone_vmap_runs_as_plain_code(case: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the scan itself, with the values and gradients of each member."""
    problem = random_problem(generator, networks=3, inputs=True, bias=True, timespans=True, lengths=True)
    names = ("A", "W") if case in ("weights", "ensemble") else NAMES
    fixed = problem.arguments if case == "ensemble" else member(problem, 0).arguments
    axis = 1 if case == "axis" else 0
    given = [problem.tensors[name] for name in names]
    if case == "ensemble":  # a vmap around an ensemble of three
        given = [torch.stack([tensor, 0.5 * tensor]) for tensor in given]
    leaves = [tensor.clone().movedim(0, axis).contiguous().requires_grad_() for tensor in given]
    calls = []
    scan = import_module("lipschitz_rnn.ops.lipschitz.cpu").forward
    monkeypatch.setattr(SCANS, lambda *args: calls.append(0) or scan(*args))

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        return lipschitz_scan(**(fixed | dict(zip(names, values, strict=True))))

    found = vmap(run, in_dims=axis)(*leaves)
    assert len(calls) == 1
    gradients = torch.autograd.grad(sum(each.sin().sum() for each in found), leaves)
    for s in range(len(given[0])):
        own = [tensor[s].clone().requires_grad_() for tensor in given]
        alone = run(*own)
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one[s], other, rtol=1e-13, atol=1e-14)
        expected = torch.autograd.grad(sum(each.sin().sum() for each in alone), own)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one.select(axis, s), other, rtol=1e-13, atol=1e-14)


def test_vmaps_that_do_not_reach_the_scan_or_are_nested(generator: torch.Generator) -> None:
    problem = random_problem(generator, networks=2)
    single = member(problem, 0)
    last = lipschitz_scan(**single.arguments)[1]
    scales = torch.arange(1.0, 4.0, dtype=torch.float64)
    found = vmap(lambda scale: scale * lipschitz_scan(**single.arguments)[1])(scales)
    assert torch.equal(found, scales[:, None, None] * last)

    def scaled(scale: Tensor, A: Tensor) -> Tensor:
        return lipschitz_scan(**(single.arguments | {"A": scale * A}))[1]

    nested = vmap(lambda scale: vmap(lambda A: scaled(scale, A))(problem.A))(scales)
    for i, scale in enumerate(scales):
        for s in range(2):
            torch.testing.assert_close(nested[i, s], scaled(scale, problem.A[s]), rtol=1e-13, atol=1e-14)


def test_derivatives_of_every_kind_agree(generator: torch.Generator) -> None:
    problem = random_problem(generator, inputs=True, bias=True, timespans=True, integrator="heun", steps=3, size=3)
    tensors = tuple(problem.tensors[name] for name in NAMES)
    loss, plain = loss_of(problem), loss_of(problem, "reference")
    directions = tuple(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors)
    gradients = grad(loss, argnums=tuple(range(len(NAMES))))(*tensors)
    value, tangent = jvp(loss, tensors, directions)
    torch.testing.assert_close(value, loss(*tensors))
    along = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions, strict=True))
    torch.testing.assert_close(tangent, along)

    def of_W(function: Any) -> Any:
        return lambda W: function(*tensors[:2], W, *tensors[3:])

    expected = torch.autograd.functional.hessian(of_W(plain), problem.W)
    for found in (
        hessian(of_W(loss))(problem.W),
        jacrev(jacrev(of_W(loss)))(problem.W),
        jacfwd(jacrev(of_W(plain)))(problem.W),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_jacobian_of_every_state(generator: torch.Generator) -> None:
    problem = random_problem(generator, steps=3, size=3, batch=2)

    def states(hx: Tensor) -> Tensor:
        return lipschitz_scan(**(problem.arguments | {"hx": hx}))[0]

    expected = torch.autograd.functional.jacobian(states, problem.hx)
    torch.testing.assert_close(jacrev(states)(problem.hx), expected)
    torch.testing.assert_close(jacfwd(states)(problem.hx), expected)


def test_compiled_where_nothing_asks_for_a_gradient(generator: torch.Generator) -> None:
    """Frozen weights, without ``torch.no_grad``."""
    problem = random_problem(generator)
    compiled = torch.compile(lipschitz_scan, backend="aot_eager", fullgraph=True)
    for found, expected in zip(compiled(**problem.arguments), lipschitz_scan(**problem.arguments), strict=True):
        torch.testing.assert_close(found, expected)
