"""Theorem 1 with its margins, where case (b) is no proof, and Lemma 1."""

import numpy as np
import pytest
from stability_examples import COUNTEREXAMPLE_A, COUNTEREXAMPLE_SLOPES, COUNTEREXAMPLE_W

from lipschitz_rnn.stability import certify, cohen_grossberg_hopfield, theorem1


def case_a_pair(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, W = rng.normal(size=(2, n, n))
    return X - X.T - (1 + 1e-3) * np.linalg.norm(W, 2) * np.eye(n) - np.diag(rng.random(n)), W


def case_b_pair(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric W whose metric suits A: sums and products of nearly the same matrices."""
    while True:
        X, Y = rng.normal(size=(2, n, n)) / np.sqrt(n)
        W = -(Y @ Y.T) - rng.uniform(0.05, 2.0) * np.eye(n)
        A = rng.uniform(0.2, 1.0) * W + rng.uniform(0.0, 0.5) * X - 0.1 * np.eye(n)
        if theorem1(A, W).b.holds:
            return A, W


def test_margins_of_case_a_are_those_of_the_definition() -> None:
    A, W = np.diag([-3.0, -2.0]), np.diag([1.0, -0.5])
    result = theorem1(A, W, lipschitz=1.5)
    assert result.a.dissipation == pytest.approx(2.0)
    assert result.a.gain == pytest.approx(1.5)
    assert result.a.margin == pytest.approx(0.5)
    assert result.a.smallest_singular_value == pytest.approx(0.5)
    assert result.a.holds
    assert result.a.proof
    assert not theorem1(A, W, lipschitz=2.5).a.holds
    assert not theorem1(A, np.diag([1.0, 0.0])).a.holds  # W singular, as the theorem is printed


def test_margins_of_case_b_are_those_of_the_definition() -> None:
    A, W = np.diag([-3.0, -2.0]), np.diag([-4.0, -1.0])
    b = theorem1(A, W).b
    assert (b.W_margin, b.product_margin, b.dissipation) == pytest.approx((2.0, 4.0, 2.0))
    assert b.asymmetry == 0.0
    assert b.proof_margin == pytest.approx(4.0)
    assert b.holds
    assert b.proof
    assert not theorem1(A, W, monotone=False).b.holds


def test_counterexample_satisfies_case_b_yet_is_unstable() -> None:
    A, W, slopes = COUNTEREXAMPLE_A, COUNTEREXAMPLE_W, COUNTEREXAMPLE_SLOPES
    result = theorem1(A, W)
    assert result.b.holds
    assert not result.b.proof
    assert not result.proof
    certificate = certify((A, W))
    assert not certificate.holds
    assert certificate.rate < -0.05
    assert certificate.direction is not None
    assert np.linalg.norm(certificate.direction) == pytest.approx(1.0)
    # At an equilibrium with these slopes (b is chosen so that it is one) the distance from it grows.
    growth = np.linalg.eigvals(A + slopes[:, None] * W).real.max()
    assert growth == pytest.approx(0.10, abs=0.02)
    drive = np.arctanh(np.sqrt(1 - slopes))
    h_star = np.linalg.solve(A, -np.tanh(drive))
    bias = drive - W @ h_star
    rng = np.random.default_rng(0)
    h = h_star + 1e-4 * rng.normal(size=4)
    first, step = np.linalg.norm(h - h_star), 0.002
    for _ in range(int(40 / step)):
        middle = h + step / 2 * (A @ h + np.tanh(W @ h + bias))
        h = h + step * (A @ middle + np.tanh(W @ middle + bias))
    assert np.linalg.norm(h - h_star) > 10 * first


def test_small_asymmetry_keeps_case_b_a_proof() -> None:
    rng = np.random.default_rng(1)
    A, W = case_b_pair(rng, 5)
    skew = rng.normal(size=(5, 5))
    skew = skew - skew.T
    assert theorem1(A, W).b.proof
    margin = theorem1(A, W).b.proof_margin
    nudged = W + 1e-3 * margin / np.linalg.norm(skew, 2) / max(1.0, np.linalg.norm(A, 2)) * skew
    result = theorem1(A, nudged)
    assert result.b.holds
    assert result.b.proof
    assert certify((A, nudged)).holds


def test_every_case_a_system_is_certified_with_a_rate_as_good() -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        A, W = case_a_pair(rng, int(rng.integers(1, 12)))
        margin = theorem1(A, W).a.margin
        assert margin > 0
        certificate = certify((A, W), rate=margin * (1 - 1e-9))
        assert certificate.holds
        assert certificate.rate >= margin * (1 - 1e-9)


def test_every_case_b_system_with_symmetric_W_is_certified() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        A, W = case_b_pair(rng, int(rng.integers(1, 12)))
        assert theorem1(A, W).b.proof
        assert certify((A, W), rate=1e-6).holds


def test_lemma_1_gives_the_same_trajectories() -> None:
    rng = np.random.default_rng(4)
    X, W = rng.normal(size=(2, 6, 6))
    A = -(X @ X.T) / 6
    form = cohen_grossberg_hopfield(A, W)
    assert np.array_equal(form.D, np.diag(np.diag(form.D)))
    h = rng.normal(size=6)
    z = form.L @ h
    for step in range(500):
        u = np.sin(0.1 * step + np.arange(6))
        h = h + 0.01 * (A @ h + np.tanh(W @ h + u))
        z = z + 0.01 * (form.D @ z + form.L @ np.tanh(form.V @ z + u))
    np.testing.assert_allclose(form.L.T @ z, h, rtol=1e-9)
    with pytest.raises(ValueError, match="not symmetric"):
        cohen_grossberg_hopfield(A + np.triu(X, 1), W)


@pytest.mark.parametrize(
    ("A", "W", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 2)), "square"),
        (np.zeros((2, 2)), np.zeros((3, 3)), "same N"),
        (np.full((2, 2), np.nan), np.zeros((2, 2)), "not finite"),
        (np.zeros(4), np.zeros(4), "square"),
    ],
)
def test_wrong_matrices_are_named(A: np.ndarray, W: np.ndarray, message: str) -> None:
    for function in (theorem1, lambda a, w: certify((a, w))):
        with pytest.raises(ValueError, match=message):
            function(A, W)
