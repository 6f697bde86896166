"""The symmetric-skew decomposition: its values, its inverse, its set, and its spectrum."""

import re

import numpy as np
import pytest
import torch
from problems import symmetric_skew
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipschitz_rnn import LipschitzRNN, SymmetricSkew
from lipschitz_rnn.units.lipschitz.parametrization import SymmetricSkewPair


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.75, 1.0])
def test_values(beta: float, gamma: float, generator: torch.Generator) -> None:
    stack = normal(generator, 3, 2, 5, 5)
    found = SymmetricSkew(beta, gamma)(stack)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_allclose(found[i, j], symmetric_skew(stack[i, j].numpy(), beta, gamma), atol=1e-14)


def test_alpha_changes_no_more_than_the_scale_of_what_is_learned(generator: torch.Generator) -> None:
    """αA(M, γ) = A(αM, αγ): what α = 1.8 can express, α = 1 can too. docs/results/ablation.md relies on it."""
    scaled, plain = (
        LipschitzRNN(3, 8, alpha=alpha, gamma=(gamma, 0.2), init_scale=2.0, dtype=torch.float64)
        for alpha, gamma in ((1.8, 0.1), (1.0, 0.18))
    )
    with torch.no_grad():
        for (name, own), other in zip(scaled.named_parameters(), plain.parameters(), strict=True):
            other.copy_(own * (1.8 if name.endswith("M_A") else 1.0))
    x = normal(generator, 20, 4, 3)
    torch.testing.assert_close(scaled(x)[0], plain(x)[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exactly_skew(dtype: torch.dtype, generator: torch.Generator) -> None:
    """β = 1, γ = 0: not up to rounding, but bit for bit; β = 0 is as exactly symmetric."""
    M = normal(generator, 64, 64).to(dtype)
    skew = SymmetricSkew(1.0, 0.0)(M)
    assert torch.equal(skew, -skew.mT)
    assert skew.diagonal().eq(0).all()
    symmetric = SymmetricSkew(0.0, 0.1)(M)
    assert torch.equal(symmetric, symmetric.mT)


@pytest.mark.parametrize(("beta", "gamma"), [(0.2, 0.0), (0.5, 0.1), (0.75, 0.001), (0.99, 2.0)])
def test_inverse(beta: float, gamma: float, generator: torch.Generator) -> None:
    skew, S = SymmetricSkew(beta, gamma), normal(generator, 2, 6, 6)
    torch.testing.assert_close(skew(skew.right_inverse(S)), S, rtol=1e-12, atol=1e-12)
    M = normal(generator, 6, 6)
    torch.testing.assert_close(skew.right_inverse(skew(M)), M, rtol=1e-12, atol=1e-12)
    assert skew.contains(S)


@pytest.mark.parametrize(("beta", "kind"), [(0.0, "symmetric"), (1.0, "skew-symmetric")])
def test_inverse_where_half_of_M_is_lost(beta: float, kind: str, generator: torch.Generator) -> None:
    skew = SymmetricSkew(beta, 0.2)
    inside = skew(normal(generator, 5, 5))
    torch.testing.assert_close(skew(skew.right_inverse(inside)), inside, rtol=1e-12, atol=1e-12)
    assert skew.contains(inside)
    outside = normal(generator, 5, 5)
    assert not skew.contains(outside)
    with pytest.raises(ValueError, match=f"beta is {beta:g}.*{kind}.*0 < beta < 1"):
        skew.right_inverse(outside)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.75, 1.0])
def test_in_a_layer(beta: float, generator: torch.Generator) -> None:
    """Registered with parametrize, assigned to, and still inside its set after optimiser steps."""
    skew, layer = SymmetricSkew(beta, 0.1), nn.Linear(6, 6, bias=False, dtype=torch.float64)
    before = layer.weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", skew)
    if 0 < beta < 1:  # the weight keeps its value; where no M gives it, M starts from it
        torch.testing.assert_close(layer.weight, before, rtol=1e-12, atol=1e-12)
    target = skew(normal(generator, 6, 6))
    layer.weight = target
    torch.testing.assert_close(layer.weight, target, rtol=1e-12, atol=1e-12)

    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    x = normal(generator, 20, 6)
    for _ in range(5):
        optimiser.zero_grad()
        layer(x).square().sum().backward()
        optimiser.step()
    assert (layer.weight - target).abs().max() > 0.1
    assert skew.contains(layer.weight)
    if beta in (0.0, 1.0):  # the symmetric part of S is −γI, or all of S is symmetric: exactly
        shifted = layer.weight + 0.1 * torch.eye(6, dtype=torch.float64)
        assert (shifted + (1 - 2 * (beta == 0.0)) * shifted.mT).abs().max() < 1e-15


def random_cases(generator: torch.Generator, count: int) -> list[tuple[Tensor, float, float]]:
    """Random sizes, scales, β in [0, 1] and γ; every tenth M is symmetric, every tenth triangular."""
    cases = []
    for i in range(count):
        size = int(torch.randint(1, 24, (), generator=generator))
        beta, gamma, scale = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        M = (0.1 + 3 * scale) * normal(generator, size, size)
        M = M + M.mT if i % 10 == 0 else M.triu() if i % 10 == 1 else M
        cases.append((M, beta, gamma))
    return cases


def test_spectrum_bound_holds_and_the_printed_one_does_not(generator: torch.Generator) -> None:
    """The real parts of all eigenvalues of S, for 1,000 random M.

    The paper's Proposition 1 prints [(1−β)λ_min(M_sym) − γ, (1−β)λ_max(M_sym) − γ], without the factor 2: it fails on
    the same set.
    """
    printed_failures = 0
    for M, beta, gamma in random_cases(generator, 1000):
        skew = SymmetricSkew(beta, gamma)
        S = skew(M)
        real_parts = torch.linalg.eigvals(S).real
        symmetric_part = torch.linalg.eigvalsh((S + S.mT) / 2)
        slack = 1e-9 * (1 + S.norm())
        low, high = skew.spectrum_bounds(M)
        assert low - slack <= real_parts.min()
        assert real_parts.max() <= high + slack
        # The interval is no larger than it must be: it is the spectrum of the symmetric part.
        torch.testing.assert_close(torch.stack((low, high)), symmetric_part[[0, -1]], rtol=1e-9, atol=1e-9)
        eigenvalues = torch.linalg.eigvalsh((M + M.mT) / 2)
        printed_low, printed_high = (1 - beta) * eigenvalues[[0, -1]] - gamma
        inside = printed_low - slack <= real_parts.min() and real_parts.max() <= printed_high + slack
        printed_failures += not inside
    assert printed_failures > 500


def test_bounds_of_a_stack(generator: torch.Generator) -> None:
    skew, stack = SymmetricSkew(0.75, 0.1), normal(generator, 3, 5, 5)
    low, high = skew.spectrum_bounds(stack)
    assert low.shape == high.shape == (3,)
    torch.testing.assert_close(low[1], skew.spectrum_bounds(stack[1])[0])


def test_initial_distribution() -> None:
    """N(0, (init_scale/N)²): 2·256² numbers give the spread within a percent, the mean within a thousandth of it."""
    pair = SymmetricSkewPair(256, 0.75, 0.001, init_scale=12.0)
    for M in (pair.M_A.detach(), pair.M_W.detach()):
        assert float(M.std()) == pytest.approx(12 / 256, rel=0.02)
        assert abs(float(M.mean())) < 5 * 12 / 256 / 256
    assert (pair.M_A - pair.M_W).abs().max() > 12 / 256


def test_a_pair_for_A_and_W(generator: torch.Generator) -> None:
    pair = SymmetricSkewPair(5, (1.0, 0.5), (0.0, 2.0), init_scale=1.0, dtype=torch.float64)
    A, W = pair()
    np.testing.assert_allclose(A.detach(), symmetric_skew(pair.M_A.detach().numpy(), 1.0, 0.0), atol=1e-14)
    np.testing.assert_allclose(W.detach(), symmetric_skew(pair.M_W.detach().numpy(), 0.5, 2.0), atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-0.1, 0.0), ValueError, "beta is -0.1; it must be in [0, 1]"),
        ((1.5, 0.0), ValueError, "beta is 1.5; it must be in [0, 1]"),
        ((float("nan"), 0.0), ValueError, "beta is nan; it must be in [0, 1]"),
        ((0.5, -1.0), ValueError, "gamma is -1.0; it must be at least 0 and finite"),
        ((0.5, float("inf")), ValueError, "gamma is inf; it must be at least 0 and finite"),
        (("half", 0.0), TypeError, "beta is 'half', a str; pass a number"),
    ],
)
def test_wrong_parameters(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        SymmetricSkew(*arguments)


@pytest.mark.parametrize("method", ["forward", "right_inverse", "spectrum_bounds", "contains"])
def test_wrong_matrix(method: str) -> None:
    function = getattr(SymmetricSkew(0.75, 0.0), method)
    with pytest.raises(ValueError, match=re.escape("the matrix has shape (2, 3); it must be square, (…, N, N)")):
        function(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="matrix is a list; pass a"):
        function([[1.0]])


def test_repr() -> None:
    assert repr(SymmetricSkew(0.75, 0.001)) == "SymmetricSkew(beta=0.75, gamma=0.001)"


@pytest.mark.parametrize("gamma", [(0.0, 0.3), (0.3, 0.0)])
def test_a_pair_is_its_two_maps(gamma: tuple[float, float], generator: torch.Generator) -> None:
    """Plain eager code takes both at once; values, gradients and second derivatives are those of the maps alone."""
    pair = SymmetricSkewPair(5, (0.6, 0.9), gamma, 0.1, dtype=torch.float64)
    weights = normal(generator, 2, 5, 5)

    def derivatives(A: Tensor, W: Tensor) -> list[Tensor]:
        loss = (weights[0] * A**3).sum() + (weights[1] * W**3 * A).sum()
        first = torch.autograd.grad(loss, (pair.M_A, pair.M_W), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (pair.M_A, pair.M_W))
        return [A, W, *first, *second]

    together = derivatives(*pair())
    alone = derivatives(pair.skew_A(pair.M_A), pair.skew_W(pair.M_W))
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_pair_of_which_one_matrix_is_used(generator: torch.Generator) -> None:
    pair = SymmetricSkewPair(4, 0.75, 0.1, 0.1, dtype=torch.float64)
    pair()[1].sum().backward()
    assert pair.M_A.grad is None
    torch.testing.assert_close(pair.M_W.grad, torch.full((4, 4), 0.5, dtype=torch.float64))


def test_a_pair_in_forward_mode_and_under_transforms(generator: torch.Generator) -> None:
    pair = SymmetricSkewPair(4, 0.75, 0.1, 0.1, dtype=torch.float64)
    names = {name: parameter.detach() for name, parameter in pair.named_parameters()}
    direction = {name: normal(generator, 4, 4) for name in names}
    _, (moved, _) = torch.func.jvp(lambda given: torch.func.functional_call(pair, given), (names,), (direction,))
    expected = direction["M_A"] - 0.5 * direction["M_A"].mT
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12)
    stacked = {name: torch.stack((value, 2.0 * value)) for name, value in names.items()}
    A, _ = torch.func.vmap(lambda given: torch.func.functional_call(pair, given))(stacked)
    torch.testing.assert_close(A[0], pair()[0].detach(), rtol=1e-12, atol=1e-12)
