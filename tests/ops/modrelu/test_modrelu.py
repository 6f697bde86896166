"""The modReLU scan of real and complex states against a plain loop: values, all gradients, every transformation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from modrelu_cases import COMPLEX, NAMES, REAL, Kind
from torch import Tensor

from lipschitz_rnn import units
from lipschitz_rnn.ops.modrelu import modrelu_scan
from lipschitz_rnn.ops.modrelu.reference import reference
from lipschitz_rnn.ops.modrelu.scan import ModReluScan
from lipschitz_rnn.units.cells import Cell


@pytest.fixture(params=[REAL, COMPLEX], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.mark.parametrize(("steps", "batch", "size"), [(1, 1, 1), (1, 3, 6), (2, 1, 5), (17, 4, 7)])
def test_values_and_gradients_are_those_of_the_loop(
    steps: int, batch: int, size: int, kind: Kind, generator: torch.Generator
) -> None:
    leaves = kind.tensors(generator, steps, batch, size)
    kind.compare(leaves, torch.randn(steps, batch, kind.width * size, generator=generator, dtype=torch.float64))


def test_gradients_where_the_slope_jumps(generator: torch.Generator) -> None:
    """z = 0 with either sign of b, |z| + b = 0 exactly, dead units, and a sum below the smallest normal number."""
    u = torch.tensor([0.0, 0.0, -0.0, 0.5, -0.5, 0.25, -0.25, 3e-310, 2.0], dtype=torch.float64)
    bias = torch.tensor([0.5, -0.5, 0.5, -0.5, -0.5, -0.5, 0.0, 0.0, 1.0], dtype=torch.float64)
    size = len(u)
    W, h0 = torch.zeros(size, size, dtype=torch.float64), torch.zeros(1, size, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (u.expand(2, 1, size).clone(), W, bias, h0)]
    REAL.compare(leaves, torch.randn(2, 1, size, generator=generator, dtype=torch.float64))
    (slope,) = torch.autograd.grad(modrelu_scan(*leaves).sum(), leaves[0])
    assert slope[0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_only_what_is_asked_for_gets_a_gradient(kind: Kind, generator: torch.Generator) -> None:
    leaves = kind.tensors(generator)
    for kept in range(4):
        own = [leaf.detach().requires_grad_(i == kept) for i, leaf in enumerate(leaves)]
        kind.close(*[torch.autograd.grad(scan(*own).sin().sum(), own[kept])[0] for scan in (modrelu_scan, kind.loop)])


@pytest.mark.parametrize(
    "shared", [(), ("inputs",), ("inputs", "h0"), ("W", "bias")], ids=lambda names: "+".join(names)
)
def test_stacked_networks_equal_separate_ones(
    shared: tuple[str, ...], kind: Kind, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of them are one scan, there and back."""
    seen = []
    back = getattr(*kind.backward)
    monkeypatch.setattr(*kind.backward, lambda tape, *rest: seen.append(tape.shape) or back(tape, *rest))
    networks = 3
    alone, stacked = kind.tensors(generator), kind.tensors(generator, networks=networks)
    leaves = [one if name in shared else many for name, one, many in zip(NAMES, alone, stacked, strict=True)]
    axes = tuple(None if name in shared else 0 for name in NAMES)
    weight = torch.randn(networks, 5, 3, 6 * kind.width, generator=generator, dtype=torch.float64)

    together = torch.func.vmap(modrelu_scan, in_dims=axes)(*leaves)
    each = [[leaf if axis is None else leaf[s] for leaf, axis in zip(leaves, axes, strict=True)] for s in range(3)]
    separate = torch.stack([kind.loop(*own) for own in each])
    kind.close(together, separate)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (together, separate)]
    for found, expected in zip(*outcomes, strict=True):
        kind.close(found, expected)
    assert seen == [(networks, 5, 3, 6 * kind.width)]


def test_vmap_of_a_gradient_and_of_a_vmap(kind: Kind, generator: torch.Generator) -> None:
    values = [leaf.detach() for leaf in kind.tensors(generator, networks=4)]

    def gradient(scan: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.func.grad(lambda *leaves: scan(*leaves).sin().sum(), argnums=(0, 1, 2, 3))

    outcomes = [torch.func.vmap(gradient(scan))(*values) for scan in (modrelu_scan, kind.loop)]
    for found, expected in zip(*outcomes, strict=True):
        kind.close(found, expected)
    pairs = [value.unflatten(0, (2, 2)) for value in values]
    nested = torch.func.vmap(torch.func.vmap(modrelu_scan, in_dims=1), in_dims=0)(*[p.transpose(1, 2) for p in pairs])
    kind.close(nested.flatten(0, 1), torch.func.vmap(kind.loop)(*values))


def test_second_derivatives_are_those_of_the_loop(kind: Kind, generator: torch.Generator) -> None:
    leaves = kind.tensors(generator, steps=4, batch=2, size=4)

    def penalty(scan: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(scan(*leaves).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves)

    for found, expected in zip(penalty(modrelu_scan), penalty(kind.loop), strict=True):
        kind.close(found, expected)


def test_hessians_and_directional_derivatives(kind: Kind, generator: torch.Generator) -> None:
    inputs, W, bias, h0 = (leaf.detach() for leaf in kind.tensors(generator, steps=3, batch=2, size=3))

    def of_matrix(scan: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda W: scan(inputs, W, bias, h0).sin().sum()

    kind.close(torch.func.hessian(of_matrix(modrelu_scan))(W), torch.func.hessian(of_matrix(kind.loop))(W))
    twice = [torch.func.jacrev(torch.func.jacrev(of_matrix(scan)))(W) for scan in (modrelu_scan, kind.loop)]
    kind.close(*twice)
    direction = torch.ones_like(W)
    along = [torch.func.jvp(of_matrix(scan), (W,), (direction,))[1] for scan in (modrelu_scan, kind.loop)]
    kind.close(*along)


def test_compiled_it_is_the_plain_loop(kind: Kind, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModReluScan, "apply", lambda *_: pytest.fail("the hand-written scan was traced"))
    leaves = kind.tensors(generator, steps=3)
    torch._dynamo.reset()
    compiled = torch.compile(modrelu_scan, backend="aot_eager", fullgraph=True)(*leaves)
    kind.close(compiled, kind.loop(*leaves))
    outcomes = [torch.autograd.grad(states.sin().sum(), leaves) for states in (compiled, kind.loop(*leaves))]
    for found, expected in zip(*outcomes, strict=True):
        kind.close(found, expected)


def test_autocast_rounds_the_operands_only(kind: Kind, generator: torch.Generator) -> None:
    """The states are those of the loop to the bit, in float32; gradients differ by roundings to eight bits."""
    leaves = [leaf.detach().float() for leaf in kind.tensors(generator, steps=16, batch=4, size=8)]
    leaves[0] = leaves[0].bfloat16()  # what a linear layer gives out under autocast
    if kind is COMPLEX:  # a positive bias has slopes of b / ε near 0, which would magnify roundings
        leaves[2] = -leaves[2].abs()
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
        REAL.close(found, expected)
        REAL.close(padded, expected)


def test_bad_arguments_say_what_is_wrong(generator: torch.Generator) -> None:
    inputs, W, bias, h0 = REAL.tensors(generator)
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
