"""What only complex states, given as (Re h, Im h), have: the modulus near 0, its slopes, and NaN in one part."""

from __future__ import annotations

import pytest
import torch
from modrelu_cases import COMPLEX

from lipschitz_rnn.ops.modrelu import modrelu_scan
from lipschitz_rnn.ops.modrelu.reference import reference


def test_gradients_agree_with_finite_differences(generator: torch.Generator) -> None:
    leaves = COMPLEX.tensors(generator, steps=3, batch=2, size=3)
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
    COMPLEX.compare(leaves, weight)
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


def test_second_derivatives_at_zero_are_finite() -> None:
    inputs, bias = torch.zeros(2, 1, 4, dtype=torch.float64), torch.tensor([0.5, -0.5], dtype=torch.float64)
    W, h0 = torch.eye(4, 2, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (inputs, W, bias, h0)]
    first = torch.autograd.grad(modrelu_scan(*leaves).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.sum() for g in first), leaves)
    assert all(gradient.isfinite().all() for gradient in (*first, *second))


def test_nan_stays_nan_and_the_same_bits_come_again(generator: torch.Generator) -> None:
    leaves = COMPLEX.tensors(generator)
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


def test_a_caller_may_change_the_states(generator: torch.Generator) -> None:
    leaves = COMPLEX.tensors(generator)
    expected = torch.autograd.grad(COMPLEX.loop(*leaves).sum() * 2.0, leaves)
    for found, wanted in zip(torch.autograd.grad(modrelu_scan(*leaves).mul_(2.0).sum(), leaves), expected, strict=True):
        COMPLEX.close(found, wanted)


def test_wrong_sizes_are_refused(generator: torch.Generator) -> None:
    inputs, W, bias, h0 = COMPLEX.tensors(generator)
    with pytest.raises(ValueError, match=r"bias has shape \(5\).*\(6\).*of a complex state"):
        modrelu_scan(inputs, W, bias[1:], h0)
    with pytest.raises(ValueError, match=r"W has shape \(10, 5\).*\(12, 12\)"):
        modrelu_scan(inputs, W[:10, :5], bias, h0)
