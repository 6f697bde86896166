"""Proved upper bounds of norms, in the Euclidean norm and in that of a metric."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipschitz_rnn.stability.proof.rates import round_up
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix, largest_eigenvalue_bound, smallest_eigenvalue_bound

_TINY = 2.0**-1000


def euclidean(rows: Matrix) -> Matrix:
    """‖r‖₂ of every row. Rows are brought to scale first: the square of a number below 10⁻¹⁶² would be zero."""
    top = np.clip(np.abs(rows).max(-1, keepdims=True, initial=0.0), _TINY, 1.0 / _TINY)
    found: Matrix = np.sqrt(((rows / top) ** 2).sum(-1)) * top[..., 0]
    return found


class MetricNorms:
    """Proved norms in ‖x‖²_P = xᵀPx. With T close to L⁻ᵀ, P = LLᵀ, a change of variables x = Tz makes P nearly I.

    T may be anything nonsingular: TᵀPT ≽ p I with p > 0 is proved, and ‖Mx‖² ≤ λ_max(TᵀMᵀMT) / p · ‖x‖²_P follows.
    """

    def __init__(self, P: Matrix) -> None:
        self.P = Ball.exact(P)
        self.largest = root(largest_eigenvalue_bound(self.P))
        """√λ_max(P): ‖x‖_P ≤ largest · ‖x‖₂."""
        self.diagonal = np.array_equal(P, np.diag(np.diag(P)))
        """Then ‖qx‖_P ≤ ‖x‖_P for every diagonal |q| ≤ 1, as it is in the Euclidean norm."""
        try:
            self.root = np.linalg.cholesky(P)
            change = np.linalg.solve(self.root, np.eye(len(P))).T
        except np.linalg.LinAlgError:
            raise ValueError("the metric of the certificate is not positive definite") from None
        self.T = Ball.exact(change)
        self.scale = smallest_eigenvalue_bound(self.T.T @ self.P @ self.T)
        if not self.scale > 0:
            raise ValueError("the metric of the certificate is too close to singular for proved norms")
        L = Ball.exact(self.root)
        for slack in (1.0 + 1e-6, 1.0 + 1e-3, 2.0):
            if smallest_eigenvalue_bound(self.T.T @ (slack * (L @ L.T) - self.P) @ self.T) > 0:
                break
        else:
            raise ValueError("the metric of the certificate is too close to singular for proved norms")
        self.root_slack = root(slack)

    def length(self, matrix: Ball) -> float:
        """‖Mx‖_P ≤ length · ‖x‖₂."""
        return root(largest_eigenvalue_bound(matrix.T @ self.P @ matrix))

    def reading(self, matrix: Ball) -> float:
        """‖Mx‖₂ ≤ reading · ‖x‖_P."""
        turned = matrix @ self.T
        return root(self._over_scale(largest_eigenvalue_bound(turned.T @ turned)))

    def operator(self, matrix: Ball) -> float:
        """‖Mx‖_P ≤ operator · ‖x‖_P."""
        turned = matrix @ self.T
        return root(self._over_scale(largest_eigenvalue_bound(turned.T @ self.P @ turned)))

    def fed(self, matrix: Ball) -> float:
        """‖q M x‖_P ≤ fed · ‖x‖₂ for every diagonal |q| ≤ 1."""
        return self.length(matrix) if self.diagonal else product(self.largest, norm(matrix))

    def slope(self, A: Ball, W: Ball, slopes: tuple[float, float]) -> float:
        """‖(A + D W) x‖_P ≤ slope · ‖x‖_P for every diagonal D with slopes in the range.

        D = c + r·q with |q| ≤ 1: the average c acts without loss.
        """
        low, high = (Fraction(slope) for slope in slopes)
        centre, radius = Ball.number((low + high) / 2), round_up((high - low) / 2)
        if radius == 0.0:
            return self.operator(A + centre * W)
        rest = product(self.largest, self.reading(W)) if not self.diagonal else self.operator(W)
        rest = min(rest, self.entrywise(W.upper_magnitude()))
        return total(self.operator(A + centre * W), product(radius, rest))

    def entrywise(self, radius: Matrix) -> float:
        """‖Mx‖_P ≤ entrywise · ‖x‖_P for every M with |M| ≤ radius in each entry.

        ‖Mx‖_P ≤ √(1 + e) ‖Lᵀ M T z‖₂ with LLᵀ(1 + e) ≽ P, and |Lᵀ M T| ≤ |Lᵀ| radius |T|.
        """
        if not radius.any():
            return 0.0
        bounds = Ball.exact(np.abs(self.root.T)) @ Ball.exact(radius) @ Ball.exact(np.abs(self.T.mid))
        return product(norm(bounds), root(self._over_scale(1.0)), self.root_slack)

    def _over_scale(self, value: float) -> float:
        return math.nextafter(max(value, 0.0) / self.scale, math.inf)


def norm(matrix: Ball) -> float:
    return root(largest_eigenvalue_bound(matrix.T @ matrix))


def root(value: float) -> float:
    return math.nextafter(math.sqrt(value), math.inf) if value > 0 else 0.0


def product(*factors: float) -> float:
    """Of non-negative numbers, rounded up."""
    result = 1.0
    for factor in factors:
        result = math.nextafter(result * factor, math.inf) if result and factor else 0.0
    return result


def total(*terms: float) -> float:
    """Of non-negative numbers, rounded up."""
    result = 0.0
    for term in terms:
        result = math.nextafter(result + term, math.inf) if term else result
    return result


def power(base: float, exponent: int) -> float:
    """Of a non-negative number, rounded up; the exponent is at least 1."""
    if exponent == 1:
        return base
    half = power(base, exponent // 2)
    return product(half, half, base) if exponent % 2 else product(half, half)


def geometric_sum(ratio: float, count: int) -> float:
    """1 + r + … + r^{count − 1} of a non-negative r, rounded up; the count is at least 1."""
    if count == 1:
        return 1.0
    if count % 2:
        return total(1.0, product(ratio, geometric_sum(ratio, count - 1)))
    return product(geometric_sum(ratio, count // 2), total(1.0, power(ratio, count // 2)))
