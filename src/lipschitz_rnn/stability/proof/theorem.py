"""Theorem 1 of the paper with every margin, and Lemma 1's change of variables."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from lipschitz_rnn.stability.proof.inputs import as_float, as_pair
from lipschitz_rnn.stability.proof.norms import norm, product
from lipschitz_rnn.stability.proof.rounding import (
    UNIT,
    Ball,
    Matrix,
    largest_eigenvalue_bound,
    smallest_eigenvalue_bound,
)

_LARGEST = 1e75  # of an entry and of L: products of three of them and sums over N² stay finite


@dataclass(frozen=True)
class CaseA:
    """Case (a): A_sym ≺ 0, W nonsingular and σ_min(A_sym) > L σ_max(W).

    Attributes:
        holds: all conditions are met by more than rounding.
        proof: whether the conditions prove what the theorem says; they do (W need not even be nonsingular).
        dissipation: −λ_max(A_sym).
        gain: L σ_max(W).
        margin: dissipation − gain, which is also a proved rate of contraction in the Euclidean norm when positive.
        smallest_singular_value: σ_min(W).
    """

    holds: bool
    proof: bool
    dissipation: float
    gain: float
    margin: float
    smallest_singular_value: float


@dataclass(frozen=True)
class CaseB:
    """Case (b): σ monotone, A_sym ≺ 0, W + Wᵀ ≺ 0 and AᵀW + WᵀA ≻ 0.

    As printed this is no proof unless W is symmetric. With P = −W_sym and Ω = (W − Wᵀ)/2, the inequality with all
    multipliers equal holds if AᵀP + PA + ½L ΩᵀΩ ≺ 0, so how much asymmetry is allowed follows from the other margins.

    Attributes:
        holds: the printed conditions are met by more than rounding.
        proof: ``holds`` and W is symmetric enough: ``proof_margin`` is positive.
        dissipation: −λ_max(A_sym).
        W_margin: −λ_max(W + Wᵀ).
        product_margin: λ_min(AᵀW + WᵀA).
        asymmetry: ‖W − Wᵀ‖₂.
        proof_margin: −λ_max(AᵀP + PA + ½L ΩᵀΩ).
        smallest_singular_value: σ_min(W).
        monotone: whether σ is.
    """

    holds: bool
    proof: bool
    dissipation: float
    W_margin: float
    product_margin: float
    asymmetry: float
    proof_margin: float
    smallest_singular_value: float
    monotone: bool


@dataclass(frozen=True)
class Theorem1:
    """Both cases; ``holds`` follows the paper's text, ``proof`` what is in fact proved."""

    a: CaseA
    b: CaseB

    @property
    def holds(self) -> bool:
        return self.a.holds or self.b.holds

    @property
    def proof(self) -> bool:
        return self.a.proof or self.b.proof


def theorem1(A: Any, W: Any, lipschitz: float = 1.0, monotone: bool = True) -> Theorem1:
    """Test Theorem 1 for ḣ = A h + σ(W h + U x + b) in continuous time.

    Args:
        A, W: (N, N).
        lipschitz: the Lipschitz constant L of σ.
        monotone: whether σ never decreases.
    """
    A, W = _calculable(A, W)
    L = as_float("lipschitz", lipschitz)
    if not 0 <= L <= _LARGEST:
        raise ValueError(f"lipschitz is {lipschitz}; give a Lipschitz constant from 0 to {_LARGEST:g}")
    dissipation = -_largest(0.5 * (A + A.T))
    singular = np.linalg.svd(W, compute_uv=False)
    gain = L * float(singular[0])
    # A sign counts only if rounding cannot change it.
    rounding_A, rounding_W = _rounding(A), _rounding(W)
    rounding_product = _rounding(A) * float(singular[0]) + _rounding(W) * float(np.linalg.norm(A, 2))
    nonsingular = bool(singular[-1] > rounding_W)
    stable_A = dissipation > rounding_A
    a_holds = stable_A and nonsingular and dissipation - gain > rounding_A + L * rounding_W
    case_a = CaseA(
        holds=a_holds,
        proof=a_holds and _proves_a(A, W, L),
        dissipation=dissipation,
        gain=gain,
        margin=dissipation - gain,
        smallest_singular_value=float(singular[-1]),
    )
    W_margin = -_largest(W + W.T)
    product = A.T @ W
    product_margin = -_largest(-(product + product.T))
    P, skew = -0.5 * (W + W.T), 0.5 * (W - W.T)
    flow = P @ A
    proof_margin = -_largest(flow + flow.T + 0.5 * L * skew.T @ skew)
    b_holds = (
        monotone and stable_A and nonsingular and W_margin > 2 * rounding_W and product_margin > 2 * rounding_product
    )
    rounding_proof = 2 * rounding_product + L * _rounding(W) * float(np.linalg.norm(skew, 2))
    return Theorem1(
        case_a,
        CaseB(
            holds=b_holds,
            proof=b_holds and proof_margin > rounding_proof and _proves_b(A, W, L),
            dissipation=dissipation,
            W_margin=W_margin,
            product_margin=product_margin,
            asymmetry=2 * float(np.linalg.norm(skew, 2)),
            proof_margin=proof_margin,
            smallest_singular_value=float(singular[-1]),
            monotone=monotone,
        ),
    )


def _proves_a(A: Matrix, W: Matrix, L: float) -> bool:
    """λ_max(A_sym) + L σ_max(W) < 0, with all rounding."""
    with np.errstate(all="ignore"):
        symmetric = largest_eigenvalue_bound(0.5 * (Ball.exact(A) + Ball.exact(A.T)))
        return symmetric + product(L, norm(Ball.exact(W))) * (1 + 4 * UNIT) < 0


def _proves_b(A: Matrix, W: Matrix, L: float) -> bool:
    """P = −W_sym ≻ 0 and AᵀP + PA + ½L ΩᵀΩ ≺ 0, with all rounding."""
    with np.errstate(all="ignore"):
        feedback = Ball.exact(W)
        P, skew = -0.5 * (feedback + feedback.T), 0.5 * (feedback - feedback.T)
        flow = P @ Ball.exact(A)
        form = flow + flow.T + Ball.number(Fraction(L) / 2) * (skew.T @ skew)
        return smallest_eigenvalue_bound(P) > 0 and largest_eigenvalue_bound(form) < 0


@dataclass(frozen=True)
class CohenGrossbergHopfield:
    """ż = D z + L σ(V z + U x + b) with D diagonal, and h = Lᵀ z."""

    D: Matrix
    L: Matrix
    V: Matrix


def cohen_grossberg_hopfield(A: Any, W: Any, tolerance: float = 1e-12) -> CohenGrossbergHopfield:
    """Lemma 1: for symmetric A = Q D Qᵀ, the variables z = Qᵀh satisfy ż = D z + Qᵀ σ(W Q z + U x + b).

    ``tolerance`` bounds ‖A − Aᵀ‖ / ‖A‖: beyond it the two systems would not be the same to working accuracy.
    """
    A, W = _calculable(A, W)
    if as_float("tolerance", tolerance) < 0:
        raise ValueError(f"tolerance is {tolerance}; give a number that is at least 0, for example 1e-12")
    asymmetry = float(np.linalg.norm(A - A.T))
    if asymmetry > tolerance * max(float(np.linalg.norm(A)), 1e-300):
        raise ValueError(f"A is not symmetric (‖A − Aᵀ‖ = {asymmetry:.3g}); Lemma 1 is about symmetric A only")
    values, Q = np.linalg.eigh(0.5 * (A + A.T))
    return CohenGrossbergHopfield(np.diag(values), Q.T, W @ Q)


def _calculable(A: Any, W: Any) -> tuple[Matrix, Matrix]:
    """Two matrices of one size whose products float64 can hold."""
    A, W = as_pair(A, W)
    largest = max(float(np.abs(A).max()), float(np.abs(W).max()))
    if largest > _LARGEST:
        raise ValueError(
            f"the largest entry of A and W is {largest:.3g}; float64 cannot hold the products. Measure time in another "
            f"unit, so that entries are at most {_LARGEST:g}"
        )
    return A, W


def _largest(symmetric: Matrix) -> float:
    return float(np.linalg.eigvalsh(0.5 * (symmetric + symmetric.T))[-1])


def _rounding(matrix: Matrix) -> float:
    """A bound on what rounding does to eigenvalues and singular values computed from a matrix."""
    return 16 * len(matrix) * UNIT * float(np.linalg.norm(matrix))
