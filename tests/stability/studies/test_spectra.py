"""Spectra, logarithmic norms, and the corrected Proposition 1."""

import math

import numpy as np
import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.stability import log_norm, proposition1_bounds, spectrum, symmetric_part, track


def parametrized(M: np.ndarray, beta: float, gamma: float) -> np.ndarray:
    return (1 - beta) * (M + M.T) + beta * (M - M.T) - gamma * np.eye(len(M))


@pytest.mark.parametrize("beta", [0.5, 0.75, 0.95, 1.0])
def test_true_bound_holds_and_is_attained(beta: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        M, gamma = rng.normal(size=(8, 8)), rng.uniform(0, 1)
        values = spectrum(parametrized(M, beta, gamma))
        low, high = proposition1_bounds(M, beta, gamma)
        assert low - 1e-12 <= values.real_min <= values.real_max <= high + 1e-12
        assert (values.symmetric_min, values.symmetric_max) == pytest.approx((low, high))


def test_printed_bound_fails() -> None:
    """Without the factor 2 the interval misses eigenvalues: here M is symmetric and the miss is by half."""
    M, beta, gamma = np.diag([1.0, -2.0]), 0.75, 0.1
    printed = (1 - beta) * 1.0 - gamma
    assert spectrum(parametrized(M, beta, gamma)).real_max == pytest.approx(2 * (1 - beta) - gamma)
    assert spectrum(parametrized(M, beta, gamma)).real_max > printed + 0.2


@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_log_norm_is_the_derivative_of_the_norm(order: float) -> None:
    S = np.random.default_rng(1).normal(size=(5, 5))
    h = 1e-7
    numeric = (np.linalg.norm(np.eye(5) + h * S, order) - 1) / h
    assert log_norm(S, order) == pytest.approx(numeric, abs=1e-5)


def test_weighted_log_norms() -> None:
    rng = np.random.default_rng(2)
    S, X, p = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), rng.uniform(0.5, 2, 4)
    P = X @ X.T + np.eye(4)
    root = np.linalg.cholesky(P).T
    assert log_norm(S, 2, P) == pytest.approx(log_norm(root @ S @ np.linalg.inv(root)))
    for order in (1, math.inf):
        assert log_norm(S, order, p) == pytest.approx(log_norm(np.diag(p) @ S @ np.diag(1 / p), order))
    with pytest.raises(ValueError, match="positive definite"):
        log_norm(S, 2, -P)
    with pytest.raises(ValueError, match="order is 3"):
        log_norm(S, 3)
    with pytest.raises(ValueError, match="positive vector"):
        log_norm(S, 1, -p)


def test_symmetric_part_accepts_tensors() -> None:
    M = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(symmetric_part(M), 0.5 * (M.double() + M.double().T).numpy())


def test_track_names_every_layer_and_direction() -> None:
    model = torch.nn.Sequential(lr.LipschitzRNN(2, 4, num_layers=2, bidirectional=True))
    found = track(model)
    assert len(found) == 2 * 2 * 2 * 3
    assert all(isinstance(value, float) for value in found.values())
    single = lr.LipschitzRNN(2, 4)
    assert set(track(single)) == {f"{m}.{k}" for m in "AW" for k in ("real_max", "symmetric_min", "symmetric_max")}
    A = single.hidden_matrices()[0].detach().double()
    assert track(single)["A.symmetric_max"] == pytest.approx(torch.linalg.eigvalsh((A + A.T) / 2)[-1].item())
    assert track(torch.nn.Linear(2, 2)) == {}
