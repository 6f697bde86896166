"""Matrices with a bound on their own rounding error, so that a check in float64 is still a proof.

A :class:`Ball` holds a computed matrix and, entry by entry, how far the exact one can be from it. The rules are the
standard forward error bounds: with u = 2⁻⁵³, the result x of a sum or product in round-to-nearest is off by at most
u |x|, plus less than 2⁻¹⁰²² if it underflows, and an inner product of length n, summed in any order, with or without
fused operations, by at most γₙ |a|ᵀ|b| with γₙ = nu / (1 − nu), plus n underflows.

Nothing that LAPACK returns is trusted. Its factors are guesses, and what counts is the residual, enclosed by a ball.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]

UNIT = 2.0**-53
# More than underflow can take from a sum of 2²⁰ products, also where the processor flushes small numbers to zero.
UNDERFLOW = 2.0**-1000


def _gamma(length: int) -> float:
    return 1.01 * length * UNIT


def _surplus(length: int) -> float:
    """Covers the rounding of a radius: a sum of non-negative terms, each of which saw at most length + 8 roundings."""
    return 1.0 + 4.0 * (length + 8) * UNIT


@dataclass(frozen=True)
class Ball:
    """All matrices X with |X − mid| ≤ rad in every entry; with shape () a number. Radii are never rounded down."""

    mid: Matrix
    rad: Matrix

    __array_ufunc__ = None  # so that a NumPy number on the left leaves the product to __rmul__

    @staticmethod
    def exact(values: Matrix | float) -> Ball:
        """The ball of a matrix or a number that is known exactly."""
        array = np.asarray(values, dtype=np.float64)
        return Ball(array, np.zeros_like(array))

    @staticmethod
    def number(value: Fraction, relative: float = 0.0) -> Ball:
        """A number that need not be a float, and everything within ``relative`` of it."""
        middle = float(value)
        off = abs(value - Fraction(middle))
        lost = UNDERFLOW if off or relative else 0.0
        return Ball(np.array(middle), np.array(_surplus(0) * (float(off) + relative * abs(middle)) + lost))

    def widened(self, relative: float, absolute: float = 0.0) -> Ball:
        """Room for every entry to be off by ``relative`` times itself and by ``absolute``."""
        reach = np.abs(self.mid) + self.rad
        return Ball(self.mid, _surplus(2) * (self.rad + relative * reach + absolute) + UNDERFLOW * (relative > 0))

    @property
    def T(self) -> Ball:
        return Ball(np.swapaxes(self.mid, -1, -2), np.swapaxes(self.rad, -1, -2))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mid.shape

    @property
    def upper(self) -> float:
        """The largest number in the ball."""
        return math.nextafter(float(np.max(self.mid + self.rad)), math.inf)

    def upper_magnitude(self) -> Matrix:
        """The largest |X| of every entry."""
        magnitude: Matrix = _surplus(0) * (np.abs(self.mid) + self.rad)
        return magnitude

    def __add__(self, other: Ball) -> Ball:
        mid = self.mid + other.mid
        return Ball(mid, _surplus(0) * (self.rad + other.rad + UNIT * np.abs(mid)) + UNDERFLOW)

    def __neg__(self) -> Ball:
        return Ball(-self.mid, self.rad)

    def __sub__(self, other: Ball) -> Ball:
        return self + (-other)

    def __mul__(self, other: Ball) -> Ball:
        """Entry by entry, or a number times a matrix."""
        left, right = np.abs(self.mid), np.abs(other.mid)
        mid = self.mid * other.mid
        rad = left * other.rad + self.rad * (right + other.rad) + UNIT * np.abs(mid)
        return Ball(mid, _surplus(0) * rad + UNDERFLOW)

    def __rmul__(self, scalar: float) -> Ball:
        return Ball.exact(scalar) * self

    def __matmul__(self, other: Ball) -> Ball:
        left, right = np.abs(self.mid), np.abs(other.mid)
        length = left.shape[-1]
        rad = _gamma(length) * (left @ right)
        if other.rad.any():
            rad = rad + left @ other.rad
        if self.rad.any():
            rad = rad + self.rad @ (right + other.rad)
        return Ball(self.mid @ other.mid, _surplus(length) * rad + length * UNDERFLOW)


def block(rows: list[list[Ball]]) -> Ball:
    """Put balls together as ``numpy.block`` does."""
    return Ball(
        np.block([[entry.mid for entry in row] for row in rows]),
        np.block([[entry.rad for entry in row] for row in rows]),
    )


def smallest_eigenvalue_bound(ball: Ball) -> float:
    """A lower bound of λ_min over all symmetric matrices X of the ball, or of every ball in a batch.

    For any number c and any matrix L, X = cI + LLᵀ + E with E = X − cI − LLᵀ. As LLᵀ ≽ 0 and ‖E‖₂ ≤ ‖E‖_∞ for a
    symmetric E, λ_min(X) ≥ c − ‖E‖_∞. This is true whatever c and L are; it is sharp when c is close to λ_min and L
    is a Cholesky factor of X − cI, which LAPACK provides. E is computed with its rounding.
    """
    if not (np.all(np.isfinite(ball.mid)) and np.all(np.isfinite(ball.rad))):
        return -math.inf
    n = ball.shape[-1]
    middle = 0.5 * (ball.mid + np.swapaxes(ball.mid, -1, -2))
    identity = np.eye(n)
    try:
        guess = np.linalg.eigvalsh(middle)[..., 0]
    except np.linalg.LinAlgError:
        return -math.inf
    size = np.abs(middle).sum(axis=-1).max(axis=-1)
    for slack in (4.0, 64.0, 4096.0):
        shift = np.minimum(guess, np.finfo(float).max) - slack * n * UNIT * size - UNDERFLOW
        cI = shift[..., None, None] * identity
        try:
            L = Ball.exact(np.linalg.cholesky(middle - cI))
        except np.linalg.LinAlgError:
            continue
        E = ball - Ball.exact(cI) - L @ L.T
        rows = (np.abs(E.mid) + E.rad).sum(axis=-1).max(axis=-1)
        bound = float(np.min(shift - _surplus(n) * rows))
        bound -= 4 * UNIT * abs(bound) + UNDERFLOW
        return bound if math.isfinite(bound) else -math.inf
    return -math.inf


def largest_eigenvalue_bound(ball: Ball) -> float:
    """An upper bound of λ_max over all symmetric matrices of the ball, or of every ball in a batch."""
    return -smallest_eigenvalue_bound(-ball)
