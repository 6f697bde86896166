"""The FastGRNN scan against a plain loop: values, all gradients, every transformation, and its units."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fastgrnn_cases import NAMES, close, compare, loop, tensors
from torch import Tensor

from lipschitz_rnn import units
from lipschitz_rnn.ops.fastgrnn import fastgrnn_scan
from lipschitz_rnn.ops.fastgrnn import gradients as by_hand
from lipschitz_rnn.ops.fastgrnn.reference import FastGRNN, reference
from lipschitz_rnn.ops.fastgrnn.scan import FastGRNNScan


@pytest.mark.parametrize(("steps", "batch", "size"), [(1, 1, 1), (1, 3, 6), (2, 1, 5), (17, 4, 7)])
def test_values_and_gradients_are_those_of_the_loop(
    steps: int, batch: int, size: int, generator: torch.Generator
) -> None:
    weight = torch.randn(steps, batch, size, generator=generator, dtype=torch.float64)
    compare(tensors(generator, steps, batch, size), weight)


def test_saturated_gates(generator: torch.Generator) -> None:
    leaves = [leaf.detach() for leaf in tensors(generator)]
    leaves[0] = (100 * leaves[0]).index_fill(2, torch.tensor([0]), 1e4)
    compare([leaf.requires_grad_() for leaf in leaves], torch.ones(5, 3, 6, dtype=torch.float64))


def test_gradcheck(generator: torch.Generator) -> None:
    leaves = tensors(generator, steps=3, batch=2, size=3)

    def scan(*given: Tensor) -> Tensor:
        return fastgrnn_scan(*given, backend="torch")

    assert torch.autograd.gradcheck(scan, leaves)
    assert torch.autograd.gradgradcheck(scan, leaves)


def test_only_what_is_asked_for_gets_a_gradient(generator: torch.Generator) -> None:
    leaves = tensors(generator)
    for kept in range(len(NAMES)):
        own = [leaf.detach().requires_grad_(i == kept) for i, leaf in enumerate(leaves)]
        close(*[torch.autograd.grad(scan(*own).sin().sum(), own[kept])[0] for scan in (fastgrnn_scan, loop)])


def test_states_may_be_changed_in_place(generator: torch.Generator) -> None:
    leaves = tensors(generator)
    outcomes = [torch.autograd.grad(scan(*leaves).mul_(2.0).sum(), leaves) for scan in (fastgrnn_scan, loop)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


def test_second_derivatives_of_nested_transforms(generator: torch.Generator) -> None:
    """Reverse over reverse, and forward over reverse, of every tensor at once."""
    leaves = [leaf.detach() for leaf in tensors(generator, steps=3, batch=2, size=2)]
    every = tuple(range(len(leaves)))

    def loss(scan: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *own: scan(*own).pow(3).sum()

    expected = torch.func.jacfwd(torch.func.jacfwd(loss(loop), every), every)(*leaves)
    for outer in (torch.func.jacrev, torch.func.jacfwd):
        found = outer(torch.func.grad(loss(fastgrnn_scan), every), every)(*leaves)
        for row, expected_row in zip(found, expected, strict=True):
            for one, other in zip(row, expected_row, strict=True):
                close(one, other)


def test_batched_gradients(generator: torch.Generator) -> None:
    leaves = tensors(generator, steps=3, batch=2, size=2)
    weights = torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad(fastgrnn_scan(*leaves), leaves, weights, is_grads_batched=True)
    expected = [torch.autograd.grad(loop(*leaves), leaves, weight) for weight in weights]
    for one, others in zip(found, zip(*expected, strict=True), strict=True):
        close(one, torch.stack(others))


@pytest.mark.parametrize("shared", [(), ("inputs", "h0"), ("W", "zeta")], ids=lambda names: "+".join(names))
def test_stacked_networks_equal_separate_ones(
    shared: tuple[str, ...], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of them are one scan, there and back."""
    seen, back = [], by_hand.scan_backward
    monkeypatch.setattr(
        by_hand, "scan_backward", lambda given, *rest: seen.append(given.inputs.shape) or back(given, *rest)
    )
    alone, stacked = tensors(generator), tensors(generator, networks=3)
    leaves = [one if name in shared else many for name, one, many in zip(NAMES, alone, stacked, strict=True)]
    axes = tuple(None if name in shared else 0 for name in NAMES)
    together = torch.func.vmap(fastgrnn_scan, in_dims=axes)(*leaves)
    each = [[leaf if axis is None else leaf[s] for leaf, axis in zip(leaves, axes, strict=True)] for s in range(3)]
    separate = torch.stack([loop(*own) for own in each])
    close(together, separate)
    weight = torch.randn(3, 5, 3, 6, generator=generator, dtype=torch.float64)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (together, separate)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)
    assert seen == [(3, 5, 3, 6)]


def test_transformations_are_those_of_the_loop(generator: torch.Generator) -> None:
    values = [leaf.detach() for leaf in tensors(generator, steps=3, batch=2, size=3, networks=2)]

    def gradient(scan: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        return torch.func.grad(lambda *leaves: scan(*leaves).sin().sum(), argnums=tuple(range(len(NAMES))))

    for found, expected in zip(*[torch.func.vmap(gradient(s))(*values) for s in (fastgrnn_scan, loop)], strict=True):
        close(found, expected)
    inputs, W, *rest = (value[0] for value in values)

    def of_matrix(scan: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda W: scan(inputs, W, *rest).sin().sum()

    close(*[torch.func.hessian(of_matrix(scan))(W) for scan in (fastgrnn_scan, loop)])
    close(*[torch.func.jvp(of_matrix(scan), (W,), (torch.ones_like(W),))[1] for scan in (fastgrnn_scan, loop)])


def test_compiled_it_is_the_plain_loop(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastGRNNScan, "apply", lambda *_: pytest.fail("the hand-written scan was traced"))
    leaves = tensors(generator, steps=3)
    torch._dynamo.reset()
    compiled = torch.compile(fastgrnn_scan, backend="aot_eager", fullgraph=True)(*leaves)
    outcomes = [torch.autograd.grad(states.sin().sum(), leaves) for states in (compiled, loop(*leaves))]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


def test_autocast_rounds_the_operands_only(generator: torch.Generator) -> None:
    """The states are those of the loop to the bit, in float32; gradients differ by roundings to eight bits."""
    leaves = [leaf.detach().float() for leaf in tensors(generator, steps=16, batch=4, size=8)]
    leaves[0] = leaves[0].bfloat16()  # what a linear layer gives out under autocast
    leaves = [leaf.requires_grad_() for leaf in leaves]
    with torch.autocast("cpu", torch.bfloat16):
        states = fastgrnn_scan(*leaves)
    plain = reference(FastGRNN(*leaves), torch.bfloat16)
    assert states.dtype == torch.float32
    assert torch.equal(states, plain)
    assert not torch.equal(states, fastgrnn_scan(*leaves))
    weight = torch.randn(states.shape, generator=generator)
    outcomes = [torch.autograd.grad((found * weight).sum(), leaves) for found in (states, plain)]
    for leaf, found, expected in zip(leaves, *outcomes, strict=True):
        assert found.dtype == leaf.dtype
        assert float((found - expected).norm() / expected.norm()) < 2 * torch.finfo(torch.bfloat16).eps


def test_half_precision_parameters_take_the_loop(generator: torch.Generator) -> None:
    leaves = [leaf.detach().bfloat16() for leaf in tensors(generator)]
    assert torch.equal(fastgrnn_scan(*leaves), reference(FastGRNN(*leaves), torch.bfloat16))


@pytest.mark.parametrize("name", ["fastgrnn", "fastgrnn-lsq"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float64", "bfloat16"])
def test_units_equal_their_loop(
    name: str, autocast: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = torch.float32 if autocast else torch.float64
    unit = units.build(name, 2, 6, num_layers=2, bidirectional=True).to(dtype)
    x, parameters = torch.randn(7, 3, 2, generator=generator, dtype=dtype), list(unit.parameters())

    def outcome(lengths: Tensor | None = None) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, last = unit(x, lengths=lengths)
        gradients = torch.autograd.grad(output.sin().sum() + last.sum(), parameters)
        return [output.detach(), last.detach(), *gradients]

    calls, scan = [], FastGRNNScan.apply
    monkeypatch.setattr(FastGRNNScan, "apply", lambda *args: calls.append(1) or scan(*args))
    found = outcome()
    assert len(calls) == 4
    expected = outcome(torch.full((3,), 7))  # with lengths the steps run one by one
    assert len(calls) == 4
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert float((one - other).norm() / other.norm()) < (0.03 if autocast else 1e-10)


def test_messages(generator: torch.Generator) -> None:
    inputs, W, b_z, b_g, zeta, nu, h0 = (leaf.detach() for leaf in tensors(generator))
    with pytest.raises(ValueError, match="at least one step"):
        fastgrnn_scan(inputs[:0], W, b_z, b_g, zeta, nu, h0)
    with pytest.raises(ValueError, match="W has shape"):
        fastgrnn_scan(inputs, W[:-1], b_z, b_g, zeta, nu, h0)
    with pytest.raises(ValueError, match="zeta has shape"):
        fastgrnn_scan(inputs, W, b_z, b_g, zeta[None], nu, h0)
    with pytest.raises(TypeError, match=r"update_bias is torch\.float32"):
        fastgrnn_scan(inputs, W, b_z, b_g.float(), zeta, nu, h0)
    with pytest.raises(ValueError, match="choose one of auto, torch, triton"):
        fastgrnn_scan(inputs, W, b_z, b_g, zeta, nu, h0, backend="fast")
    with pytest.raises(ValueError, match="'triton' serves float32"):
        fastgrnn_scan(inputs, W, b_z, b_g, zeta, nu, h0, backend="triton")
