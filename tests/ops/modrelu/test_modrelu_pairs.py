"""The scan of complex states, given as (Re h, Im h), against a loop of complex numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipschitz_rnn.ops.modrelu import gradients as by_hand
from lipschitz_rnn.ops.modrelu import modrelu_scan
from lipschitz_rnn.ops.modrelu.reference import reference
from lipschitz_rnn.ops.modrelu.scan import ModReluScan

NAMES = ("inputs", "W", "bias", "h0")


def joined(pairs: Tensor) -> Tensor:
    return torch.complex(*pairs.chunk(2, -1))


def loop(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor) -> Tensor:
    h, states = joined(h0), []
    matrix = torch.complex(*W.chunk(2, 0))
    for u in inputs:
        z = h @ matrix.mT + joined(u)
        modulus = z.abs()
        h = z * torch.where(modulus == 0.0, 0.0, torch.relu(modulus + bias) / (modulus + 1e-5))
        states.append(torch.cat([h.real, h.imag], -1))
    return torch.stack(states)


def tensors(
    generator: torch.Generator, steps: int = 5, batch: int = 3, size: int = 6, networks: int = 0
) -> list[Tensor]:
    """In float64, every one a leaf; biases of both signs, so that some units are dead. With networks: all stacked."""
    lead = (networks,) if networks else ()
    shapes = [(steps, batch, 2 * size), (2 * size, size), (size,), (batch, 2 * size)]
    scales = [1.0, (2 * size) ** -0.5, 1.0, 1.0]
    return [
        (torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) * scale).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def compare(leaves: list[Tensor], weight: Tensor) -> None:
    found, expected = modrelu_scan(*leaves), loop(*leaves)
    close(found, expected)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (found, expected)]
    for one, other in zip(*outcomes, strict=True):
        close(one, other)


@pytest.mark.parametrize(("steps", "batch", "size"), [(1, 1, 1), (1, 3, 6), (2, 1, 5), (17, 4, 7)])
def test_values_and_gradients_are_those_of_the_complex_loop(
    steps: int, batch: int, size: int, generator: torch.Generator
) -> None:
    leaves = tensors(generator, steps, batch, size)
    compare(leaves, torch.randn(steps, batch, 2 * size, generator=generator, dtype=torch.float64))


def test_gradients_agree_with_finite_differences(generator: torch.Generator) -> None:
    leaves = tensors(generator, steps=3, batch=2, size=3)
    assert torch.autograd.gradcheck(modrelu_scan, leaves)


def test_zero_saturated_and_tiny_moduli(generator: torch.Generator) -> None:
    """z = 0 with either sign of b, |z| + b = 0 exactly, dead units, tiny |z| under a large b, and large |z|."""
    real = [0.0, 0.0, 0.0, 0.6, 0.3, 3e-310, 1e-9, 3.0, 3e5]
    imaginary = [0.0, 0.0, -0.0, -0.8, 0.4, 0.0, -1e-9, 4.0, -4e5]
    bias = torch.tensor([0.5, -0.5, 0.0, -1.0, -0.6, 0.5, 2.0, -4.9999, 1.0], dtype=torch.float64)
    size = len(bias)
    u = torch.tensor(real + imaginary, dtype=torch.float64).expand(2, 1, 2 * size).clone()
    parts, h0 = (torch.zeros(shape, dtype=torch.float64) for shape in ((2 * size, size), (1, 2 * size)))
    leaves = [tensor.requires_grad_() for tensor in (u, parts, bias, h0)]
    weight = torch.randn(2, 1, 2 * size, generator=generator, dtype=torch.float64)
    compare(leaves, weight)
    (slope,) = torch.autograd.grad((modrelu_scan(*leaves) * weight).sum(), leaves[0])
    for dead in (0, 1, 2, 3, 4):
        assert slope[:, 0, [dead, size + dead]].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("modulus", [1e-45, 1e-42, 1e-40, 1e-38, 1e-30, 1e-20])
def test_the_bias_of_a_vanishing_state_gets_a_finite_gradient(modulus: float) -> None:
    """With b = 0, where training starts, a small state is squared at every step without input, and gets subnormal."""
    u = torch.zeros(2, 1, 2)
    u[0] = modulus
    bias = torch.zeros(1, requires_grad=True)
    states = modrelu_scan(u, torch.tensor([[1.0], [0.0]]), bias, torch.zeros(1, 2))
    (found,) = torch.autograd.grad(states[0, 0, 0], bias)
    # ∂h⁺/∂b = Re z / (|z| + ε); numbers below 10⁻³⁸ have less than 24 bits
    torch.testing.assert_close(found, torch.tensor([float(u[0, 0, 0]) / 1e-5]), rtol=1e-3, atol=1e-39)


def test_a_state_that_is_still_zero_passes_no_gradient_on() -> None:
    """b / ε, the slope of modReLU at 0, is 100 here: over 30 steps without input, gradients would overflow."""
    u = torch.zeros(32, 1, 2)
    u[30:] = 1.0
    leaves = [u, torch.tensor([[1.0], [0.0]]), torch.full((1,), 1e-3), torch.zeros(1, 2)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    for run in (modrelu_scan, lambda *given: reference(*given, torch.float32)):
        found = torch.autograd.grad(run(*leaves).sum(), leaves)
        assert all(gradient.isfinite().all() for gradient in found)
        assert not found[0][:30].any()


def test_only_what_is_asked_for_gets_a_gradient(generator: torch.Generator) -> None:
    leaves = tensors(generator)
    for kept in range(4):
        own = [leaf.detach().requires_grad_(i == kept) for i, leaf in enumerate(leaves)]
        found, expected = (torch.autograd.grad(run(*own).sin().sum(), own[kept])[0] for run in (modrelu_scan, loop))
        close(found, expected)


@pytest.mark.parametrize(
    "shared", [(), ("inputs",), ("inputs", "h0"), ("W", "bias")], ids=lambda names: "+".join(names)
)
def test_stacked_networks_equal_separate_ones(
    shared: tuple[str, ...], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of them are one scan, there and back."""
    seen = []
    back = by_hand.pairs.scan_backward
    monkeypatch.setattr(by_hand.pairs, "scan_backward", lambda z, *rest: seen.append(z.shape) or back(z, *rest))
    networks = 3
    alone, stacked = tensors(generator), tensors(generator, networks=networks)
    leaves = [one if name in shared else many for name, one, many in zip(NAMES, alone, stacked, strict=True)]
    axes = tuple(None if name in shared else 0 for name in NAMES)
    weight = torch.randn(networks, 5, 3, 12, generator=generator, dtype=torch.float64)

    together = torch.func.vmap(modrelu_scan, in_dims=axes)(*leaves)
    separate = torch.stack(
        [loop(*[leaf if axis is None else leaf[s] for leaf, axis in zip(leaves, axes, strict=True)]) for s in range(3)]
    )
    close(together, separate)
    outcomes = [torch.autograd.grad((states * weight).sum(), leaves) for states in (together, separate)]
    for found, expected in zip(*outcomes, strict=True):
        close(found, expected)
    assert seen == [(networks, 5, 3, 12)]


def test_second_derivatives_hessians_and_directions(generator: torch.Generator) -> None:
    leaves = tensors(generator, steps=3, batch=2, size=3)

    def penalty(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(run(*leaves).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves)

    for found, expected in zip(penalty(modrelu_scan), penalty(loop), strict=True):
        close(found, expected)
    inputs, parts, bias, h0 = (leaf.detach() for leaf in leaves)

    def of_matrix(run: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda own: run(inputs, own, bias, h0).sin().sum()

    close(*[torch.func.hessian(of_matrix(run))(parts) for run in (modrelu_scan, loop)])
    close(*[torch.func.jvp(of_matrix(run), (parts,), (torch.ones_like(parts),))[1] for run in (modrelu_scan, loop)])


def test_second_derivatives_at_zero_are_finite() -> None:
    inputs, bias = torch.zeros(2, 1, 4, dtype=torch.float64), torch.tensor([0.5, -0.5], dtype=torch.float64)
    W, h0 = torch.eye(4, 2, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (inputs, W, bias, h0)]
    first = torch.autograd.grad(modrelu_scan(*leaves).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.sum() for g in first), leaves)
    assert all(gradient.isfinite().all() for gradient in (*first, *second))


def test_nan_stays_nan_and_the_same_bits_come_again(generator: torch.Generator) -> None:
    leaves = tensors(generator)
    outcomes = []
    for _ in range(2):
        states = modrelu_scan(*leaves)
        outcomes.append([states, *torch.autograd.grad(states.sin().sum(), leaves)])
    assert all(torch.equal(one, other) for one, other in zip(*outcomes, strict=True))
    inputs = leaves[0].detach().clone()
    inputs[2, 1, 4] = float("nan")
    states = modrelu_scan(inputs, *leaves[1:])
    assert states[:2].isfinite().all()
    assert states[2, 1, [4, 10]].isnan().all()
    assert states[:, [0, 2]].isfinite().all()


def test_compiled_it_is_the_plain_loop(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModReluScan, "apply", lambda *_: pytest.fail("the hand-written scan was traced"))
    leaves = tensors(generator, steps=3)
    torch._dynamo.reset()
    close(torch.compile(modrelu_scan, backend="aot_eager", fullgraph=True)(*leaves), loop(*leaves))


def test_autocast_rounds_the_operands_only(generator: torch.Generator) -> None:
    """The states are those of the loop to the bit, in float32; gradients differ by roundings to eight bits."""
    inputs, parts, bias, h0 = (leaf.detach().float() for leaf in tensors(generator, steps=16, batch=4, size=8))
    leaves = [inputs.bfloat16(), parts, -bias.abs(), h0]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    with torch.autocast("cpu", torch.bfloat16):
        states = modrelu_scan(*leaves)
    own = reference(*leaves, torch.bfloat16)
    assert states.dtype == torch.float32
    assert torch.equal(states, own)
    weight = torch.randn(states.shape, generator=generator)
    outcomes = [torch.autograd.grad((found * weight).sum(), leaves) for found in (states, own)]
    for leaf, found, expected in zip(leaves, *outcomes, strict=True):
        assert found.dtype == leaf.dtype
        assert float((found - expected).norm() / expected.norm()) < 2 * torch.finfo(torch.bfloat16).eps


def test_a_caller_may_change_the_states(generator: torch.Generator) -> None:
    leaves = tensors(generator)
    expected = torch.autograd.grad(loop(*leaves).sum() * 2.0, leaves)
    for found, wanted in zip(torch.autograd.grad(modrelu_scan(*leaves).mul_(2.0).sum(), leaves), expected, strict=True):
        close(found, wanted)


def test_wrong_sizes_are_refused(generator: torch.Generator) -> None:
    inputs, W, bias, h0 = tensors(generator)
    with pytest.raises(ValueError, match=r"bias has shape \(5\).*\(6\).*of a complex state"):
        modrelu_scan(inputs, W, bias[1:], h0)
    with pytest.raises(ValueError, match=r"W has shape \(10, 5\).*\(12, 12\)"):
        modrelu_scan(inputs, W[:10, :5], bias, h0)
