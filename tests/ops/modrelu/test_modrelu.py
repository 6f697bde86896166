"""The scan with modReLU against the plain loop over `mod_relu`: values, all gradients, and every transformation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import units
from lipschitz_rnn.ops.modrelu import gradients as by_hand
from lipschitz_rnn.ops.modrelu import modrelu_scan
from lipschitz_rnn.ops.modrelu.reference import reference
from lipschitz_rnn.ops.modrelu.scan import ModReluScan
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.matrices import mod_relu

NAMES = ("inputs", "W", "bias", "h0")


def loop(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor) -> Tensor:
    states = [h0]
    for u in inputs:
        states.append(mod_relu(states[-1] @ W.mT + u, bias))
    return torch.stack(states[1:])


def tensors(
    generator: torch.Generator, steps: int = 5, batch: int = 3, size: int = 6, networks: int = 0
) -> list[Tensor]:
    """In float64, every one a leaf; biases of both signs, so that some units are dead. With networks: all stacked."""
    lead = (networks,) if networks else ()
    shapes = {"inputs": (steps, batch, size), "W": (size, size), "bias": (size,), "h0": (batch, size)}
    scales = {"inputs": 1.0, "W": size**-0.5, "bias": 0.7, "h0": 1.0}
    made = [
        torch.randn(*lead, *shapes[name], generator=generator, dtype=torch.float64) * scales[name] for name in NAMES
    ]
    return [tensor.requires_grad_() for tensor in made]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10)


def compare(leaves: list[Tensor], weight: Tensor) -> None:
    found, expected = modrelu_scan(*leaves), loop(*leaves)
    close(found, expected)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (found, expected)]
    for name, one, other in zip(NAMES, *outcomes, strict=True):
        assert one.dtype == other.dtype, name
        close(one, other)


@pytest.mark.parametrize(("steps", "batch", "size"), [(1, 1, 1), (1, 3, 6), (2, 1, 5), (17, 4, 7)])
def test_values_and_gradients_are_those_of_the_loop(
    steps: int, batch: int, size: int, generator: torch.Generator
) -> None:
    leaves = tensors(generator, steps, batch, size)
    compare(leaves, torch.randn(steps, batch, size, generator=generator, dtype=torch.float64))


def test_gradients_where_the_slope_jumps(generator: torch.Generator) -> None:
    """z = 0 with either sign of b, |z| + b = 0 exactly, dead units, and a sum below the smallest normal number."""
    u = torch.tensor([0.0, 0.0, -0.0, 0.5, -0.5, 0.25, -0.25, 3e-310, 2.0], dtype=torch.float64)
    bias = torch.tensor([0.5, -0.5, 0.5, -0.5, -0.5, -0.5, 0.0, 0.0, 1.0], dtype=torch.float64)
    size = len(u)
    W, h0 = torch.zeros(size, size, dtype=torch.float64), torch.zeros(1, size, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (u.expand(2, 1, size).clone(), W, bias, h0)]
    compare(leaves, torch.randn(2, 1, size, generator=generator, dtype=torch.float64))
    (slope,) = torch.autograd.grad(modrelu_scan(*leaves).sum(), leaves[0])
    assert slope[0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_only_what_is_asked_for_gets_a_gradient(generator: torch.Generator) -> None:
    leaves = tensors(generator)
    for kept in range(4):
        own = [leaf.detach().requires_grad_(i == kept) for i, leaf in enumerate(leaves)]
        found, expected = (torch.autograd.grad(scan(*own).sin().sum(), own[kept])[0] for scan in (modrelu_scan, loop))
        close(found, expected)


@pytest.mark.parametrize(
    "shared", [(), ("inputs",), ("inputs", "h0"), ("W", "bias")], ids=lambda names: "+".join(names)
)
def test_stacked_networks_equal_separate_ones(shared: tuple[str, ...], generator: torch.Generator) -> None:
    networks = 3
    alone, stacked = tensors(generator), tensors(generator, networks=networks)
    leaves = [one if name in shared else many for name, one, many in zip(NAMES, alone, stacked, strict=True)]
    axes = tuple(None if name in shared else 0 for name in NAMES)
    weight = torch.randn(networks, 5, 3, 6, generator=generator, dtype=torch.float64)

    together = torch.func.vmap(modrelu_scan, in_dims=axes)(*leaves)
    separate = torch.stack(
        [loop(*[leaf if axis is None else leaf[s] for leaf, axis in zip(leaves, axes, strict=True)]) for s in range(3)]
    )
    close(together, separate)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (together, separate)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


def test_vmap_is_one_batched_scan(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One backward pass for all networks, not one each."""
    seen = []
    scan = by_hand.scan_backward
    monkeypatch.setattr(
        by_hand, "scan_backward", lambda states, *rest: seen.append(states.shape) or scan(states, *rest)
    )
    leaves = tensors(generator, networks=4)
    torch.autograd.grad(torch.func.vmap(modrelu_scan)(*leaves).sum(), leaves)
    assert seen == [(4, 5, 3, 6)]


def test_vmap_of_a_gradient_and_of_a_vmap(generator: torch.Generator) -> None:
    values = [leaf.detach() for leaf in tensors(generator, networks=4)]

    def gradient(scan: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.func.grad(lambda *leaves: scan(*leaves).sin().sum(), argnums=(0, 1, 2, 3))

    outcomes = [torch.func.vmap(gradient(scan))(*values) for scan in (modrelu_scan, loop)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)
    pairs = [value.unflatten(0, (2, 2)) for value in values]
    nested = torch.func.vmap(torch.func.vmap(modrelu_scan, in_dims=1), in_dims=0)(*[p.transpose(1, 2) for p in pairs])
    close(nested.flatten(0, 1), torch.func.vmap(loop)(*values))


def test_second_derivatives_are_those_of_the_loop(generator: torch.Generator) -> None:
    leaves = tensors(generator, steps=4, batch=2, size=4)

    def penalty(scan: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(scan(*leaves).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves)

    for found, expected in zip(penalty(modrelu_scan), penalty(loop), strict=True):
        close(found, expected)


def test_hessians_and_directional_derivatives(generator: torch.Generator) -> None:
    inputs, W, bias, h0 = (leaf.detach() for leaf in tensors(generator, steps=3, batch=2, size=3))

    def of_matrix(scan: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda W: scan(inputs, W, bias, h0).sin().sum()

    close(torch.func.hessian(of_matrix(modrelu_scan))(W), torch.func.hessian(of_matrix(loop))(W))
    twice = [torch.func.jacrev(torch.func.jacrev(of_matrix(scan)))(W) for scan in (modrelu_scan, loop)]
    close(*twice)
    direction = torch.ones_like(W)
    along = [torch.func.jvp(of_matrix(scan), (W,), (direction,))[1] for scan in (modrelu_scan, loop)]
    close(*along)


def test_compiled_it_is_the_plain_loop(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModReluScan, "apply", lambda *_: pytest.fail("the hand-written scan was traced"))
    leaves = tensors(generator, steps=3)
    torch._dynamo.reset()
    compiled = torch.compile(modrelu_scan, backend="aot_eager", fullgraph=True)(*leaves)
    close(compiled, loop(*leaves))
    outcomes = [torch.autograd.grad(states.sin().sum(), leaves) for states in (compiled, loop(*leaves))]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)


def test_autocast_rounds_the_operands_only(generator: torch.Generator) -> None:
    """The states are those of the loop to the bit, in float32; gradients differ by roundings to eight bits."""
    leaves = [leaf.detach().float() for leaf in tensors(generator, steps=16, batch=4, size=8)]
    leaves[0] = leaves[0].bfloat16()  # what a linear layer gives out under autocast
    leaves = [leaf.requires_grad_() for leaf in leaves]
    with torch.autocast("cpu", torch.bfloat16):
        states = modrelu_scan(*leaves)
    plain = reference(*leaves, torch.bfloat16)
    assert states.dtype == torch.float32
    assert torch.equal(states, plain)
    assert not torch.equal(states, modrelu_scan(*leaves))
    weight = torch.randn(states.shape, generator=generator)
    outcomes = [torch.autograd.grad((found * weight).sum(), leaves) for found in (states, plain)]
    for leaf, found, expected in zip(leaves, *outcomes, strict=True):
        assert found.dtype == leaf.dtype
        assert float((found - expected).norm() / expected.norm()) < 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("name", ["exprnn", "scornn", "dtriv", "nnrnn"])
def test_units_use_it_and_lengths_take_the_loop(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = units.build(name, 2, 6, num_layers=2, bidirectional=True).double()
    x = torch.randn(7, 3, 2, generator=generator, dtype=torch.float64)
    parameters = list(unit.parameters())

    def outcome(lengths: Tensor | None = None) -> list[Tensor]:
        output, last = unit(x, lengths=lengths)
        return [output, last, *torch.autograd.grad(output.sin().sum() + last.sum(), parameters)]

    calls = []
    scan = ModReluScan.apply
    monkeypatch.setattr(ModReluScan, "apply", lambda *args: calls.append(1) or scan(*args))
    fast = outcome()
    assert len(calls) == 4
    full = outcome(torch.full((3,), 7))
    assert len(calls) == 4
    monkeypatch.setattr(type(unit.cell()), "scan", Cell.scan)
    for found, padded, expected in zip(fast, full, outcome(), strict=True):
        close(found, expected)
        close(padded, expected)


def test_bad_arguments_say_what_is_wrong(generator: torch.Generator) -> None:
    inputs, W, bias, h0 = tensors(generator)
    with pytest.raises(ValueError, match=r"inputs has shape \(3, 6\).*\(T, B, N\)"):
        modrelu_scan(inputs[0], W, bias, h0)
    with pytest.raises(ValueError, match=r"W has shape \(5, 6\).*\(6, 6\)"):
        modrelu_scan(inputs, W[1:], bias, h0)
    with pytest.raises(TypeError, match=r"bias is torch\.float32 but W is torch\.float64"):
        modrelu_scan(inputs, W, bias.float(), h0)
    with pytest.raises(TypeError, match=r"W is torch\.complex128"):
        modrelu_scan(inputs, W.to(torch.complex128), bias, h0)
    with pytest.raises(ValueError, match=r"backend is 'cuda'.*auto, torch, triton"):
        modrelu_scan(inputs, W, bias, h0, backend="cuda")
    with pytest.raises(ValueError, match="'triton' serves float32"):
        modrelu_scan(inputs, W, bias, h0, backend="triton")
