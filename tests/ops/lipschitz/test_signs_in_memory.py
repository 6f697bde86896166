"""PyTorch keeps the sign of ``x.conj().imag`` beside the memory that a kernel reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import INTEGRATORS, random_problem
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import lipschitz_rnn as lr
from lipschitz_rnn import lipschitz_scan


def noted(tensor: Tensor) -> Tensor:
    """The same values, in memory with the opposite sign."""
    found: Tensor = torch._neg_view(-tensor)
    assert found.is_neg()
    return found


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.full)])
def test_every_input_and_gradient(
    backend: str, integrator: str, batch: int, generator: torch.Generator, request: pytest.FixtureRequest
) -> None:
    if backend == "triton":
        request.getfixturevalue("kernels")
    problem = random_problem(
        generator, integrator=integrator, batch=batch, timespans=True, inputs=True, bias=True, features=1, size=5
    )
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    arguments = {name: tensor.to(device, torch.float32) for name, tensor in problem.tensors.items()}
    rest = {name: value for name, value in problem.arguments.items() if name not in arguments} | {"backend": backend}
    times = arguments.pop("step_size")
    leaves = {name: tensor.requires_grad_() for name, tensor in arguments.items()}

    def gradients(sign: Callable[[Tensor], Tensor]) -> list[Tensor]:
        given: dict[str, Any] = {name: sign(leaf) for name, leaf in leaves.items()}
        states, last = lipschitz_scan(**given, **rest, step_size=sign(times))
        weights = torch.linspace(-1, 1, states.numel(), device=device).view_as(states)  # type: ignore[union-attr]
        found = torch.autograd.grad((states, last), list(leaves.values()), (sign(weights), sign(torch.ones_like(last))))
        return [states.detach(), last.detach(), *found]  # type: ignore[union-attr]

    for one, other in zip(gradients(noted), gradients(lambda tensor: tensor), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("steps", [4, 40])  # of one series; NumPy's calls take a few
def test_one_series_and_its_stream(steps: int) -> None:
    rnn, x = lr.LipschitzRNN(1, 8), torch.randn(steps, 1)
    assert torch.equal(rnn(noted(x))[0], rnn(x)[0])
    one, other = rnn.stream(), rnn.stream()
    for sample in x:
        assert torch.equal(one(noted(sample)), other(sample))
    one.state = noted(other.state)
    assert torch.equal(one.state, other.state)


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda tensor: torch.stack((tensor, tensor), -1), lambda packed: packed[..., 0]),
        (lambda tensor: tensor.mT.contiguous() if tensor.dim() > 1 else tensor, lambda packed: packed.mT),
        (lambda tensor: -tensor, torch._neg_view),
        (lambda tensor: torch.complex(tensor, tensor), lambda packed: packed.imag),
    ],
    ids=["gaps", "transposed", "negated", "complex"],
)
def test_what_hooks_on_saved_tensors_give_back(pack: Any, unpack: Any) -> None:
    rnn, x = lr.LipschitzRNN(1, 8, bias=False), torch.randn(20, 3, 1)
    expected = torch.autograd.grad(rnn(x)[0].sum(), list(rnn.parameters()))
    with saved_tensors_hooks(pack, unpack):
        output, _ = rnn(x)
    for one, other in zip(torch.autograd.grad(output.sum(), list(rnn.parameters())), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("unit", ["lstm", "exprnn", "fastgrnn", "lru"])
def test_gradients_of_other_scans(unit: str) -> None:
    rnn, x = lr.units.build(unit, 2, 4), torch.randn(6, 3, 2)
    output, _ = rnn(x)
    weights = torch.randn(output.shape)
    one, other = (
        torch.autograd.grad(output, list(rnn.parameters()), given, retain_graph=True, allow_unused=True)
        for given in (noted(weights), weights)
    )
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected)
