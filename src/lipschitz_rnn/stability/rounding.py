"""Matrices with a bound on their own rounding error, so that a check in float64 is still a proof.

A :class:`Ball` holds a computed matrix and, entry by entry, how far the exact one can be from it. The rules are the
standard forward error bounds: with u = 2⁻⁵³, a sum or product carries a relative error of at most u, and an inner
product of length n, summed in any order, an error of at most γₙ |a|ᵀ|b| with γₙ = nu / (1 − nu).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]

UNIT = 2.0**-53
# The radii are computed in floating point too. All their terms are non-negative, so that a relative surplus covers it.
_SURPLUS = 1.0 + 1e-10
_UNDERFLOW = 1e-290


def _gamma(length: int) -> float:
    return length * UNIT / (1.0 - length * UNIT)


@dataclass(frozen=True)
class Ball:
    """All matrices X with |X − mid| ≤ rad in every entry."""

    mid: Matrix
    rad: Matrix

    @staticmethod
    def exact(values: Matrix) -> Ball:
        """The ball of a matrix that is known exactly."""
        return Ball(values, np.zeros_like(values))

    @property
    def T(self) -> Ball:
        return Ball(np.swapaxes(self.mid, -1, -2), np.swapaxes(self.rad, -1, -2))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mid.shape

    def __add__(self, other: Ball) -> Ball:
        mid = self.mid + other.mid
        return Ball(mid, _SURPLUS * (self.rad + other.rad + UNIT * np.abs(mid)))

    def __neg__(self) -> Ball:
        return Ball(-self.mid, self.rad)

    def __sub__(self, other: Ball) -> Ball:
        return self + (-other)

    def __rmul__(self, scalar: float) -> Ball:
        mid = scalar * self.mid
        return Ball(mid, _SURPLUS * (abs(scalar) * self.rad + UNIT * np.abs(mid)) + _UNDERFLOW)

    def __matmul__(self, other: Ball) -> Ball:
        left, right = np.abs(self.mid), np.abs(other.mid)
        length = left.shape[-1]
        rad = left @ other.rad + self.rad @ (right + other.rad) + _gamma(length) * (left @ right)
        return Ball(self.mid @ other.mid, _SURPLUS * rad + length * _UNDERFLOW)


def block(rows: list[list[Ball]]) -> Ball:
    """Put balls together as ``numpy.block`` does."""
    return Ball(
        np.block([[entry.mid for entry in row] for row in rows]),
        np.block([[entry.rad for entry in row] for row in rows]),
    )


def largest_eigenvalue_bound(ball: Ball) -> float:
    """An upper bound of λ_max over all symmetric matrices of the ball, or of every ball in a batch.

    λ_max is 1-Lipschitz in the spectral norm, and ‖E‖₂ ≤ ‖|E|‖_∞ for symmetric E. The eigenvalue routine is backward
    stable: what it returns belongs to a matrix within a modest multiple of n u ‖X‖; 8 n u ‖X‖_F is generous.
    """
    if not (np.all(np.isfinite(ball.mid)) and np.all(np.isfinite(ball.rad))):
        return np.inf
    middle = 0.5 * (ball.mid + np.swapaxes(ball.mid, -1, -2))
    radius = np.maximum(ball.rad, np.swapaxes(ball.rad, -1, -2)) + 2 * UNIT * np.abs(middle)
    routine = 8 * middle.shape[-1] * UNIT * np.linalg.norm(middle, axis=(-2, -1))
    bounds = np.linalg.eigvalsh(middle)[..., -1] + _SURPLUS * (radius.sum(axis=-1).max(axis=-1) + routine)
    return float(np.max(bounds))
