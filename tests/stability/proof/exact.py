"""Matrices of rational numbers, to check enclosures without any rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from lipschitz_rnn.stability.proof.rounding import Ball


def fractions(values: np.ndarray) -> np.ndarray:
    """The same numbers, exactly."""
    return np.vectorize(Fraction, otypes=[object])(np.asarray(values, dtype=float))


def identity(n: int) -> np.ndarray:
    return fractions(np.eye(n))


def contains(ball: Ball, exact: np.ndarray) -> bool:
    """Whether an exact matrix lies in a ball."""
    return bool(np.all(np.abs(fractions(ball.mid) - exact) <= fractions(ball.rad)))


def is_positive_definite(matrix: np.ndarray) -> bool:
    """By elimination: all pivots are positive."""
    X = matrix.copy()
    for k in range(len(X)):
        if X[k, k] <= 0:
            return False
        for i in range(k + 1, len(X)):
            X[i, k:] = X[i, k:] - X[i, k] / X[k, k] * X[k, k:]
    return True


def two_stage_system(
    A: np.ndarray, W: np.ndarray, stage: Fraction, weights: tuple[Fraction, Fraction]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """F, G, C, E of one step: k₁ = A δ + w₁, k₂ = A (δ + c k₁) + w₂, δ⁺ = δ + b₁ k₁ + b₂ k₂, written out."""
    one, none = identity(len(A)), 0 * identity(len(A))
    b1, b2 = weights
    second = one + stage * A
    F = one + b1 * A + b2 * A @ second
    G = np.hstack((b1 * one + b2 * stage * A, b2 * one))
    C = np.vstack((W, W @ second))
    E = np.block([[none, none], [stage * W, none]])
    return F, G, C, E
