"""How far two outputs can be apart when the inputs differ: what a contraction certificate says about robustness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lipschitz_rnn.ops.integrators import get_integrator
from lipschitz_rnn.stability.certificate import Certificate
from lipschitz_rnn.stability.inputs import as_pair, as_slopes
from lipschitz_rnn.stability.rounding import Matrix

_ROUNDING = 1.0 + 1e-9  # far more than a few norms and products lose


@dataclass(frozen=True)
class IncrementalGain:
    """Bounds on ‖Δy‖₂ for y = C h, when the inputs of two runs differ by Δx and their first states by Δh.

    Attributes:
        peak: if every ‖Δx_t‖ ≤ d and Δh = 0, then every ‖Δy_t‖ ≤ peak · d.
        factor: what one step does to a difference at most; e^{−λ} per unit of time in continuous time.
        per_step: what one step's ‖Δx‖ (or, in continuous time, ‖Δx‖ per unit of time) adds to ‖Δy‖ at most.
        from_state: ‖Δy‖ per ‖Δh‖ of the first states, before any decay.
    """

    peak: float
    factor: float
    per_step: float
    from_state: float

    def bound(self, differences: Sequence[float], first_state: float = 0.0) -> Matrix:
        """Bounds on ‖Δy_t‖ after each step (T,), from ‖Δx_t‖ of each step (T,); for the discrete map.

        A difference that only a few steps carry fades: that is what a single number like ``peak`` does not show.
        """
        steps = np.asarray(differences, dtype=np.float64)
        if steps.ndim != 1 or not np.all(steps >= 0) or first_state < 0:
            raise ValueError(
                "differences must be a sequence of non-negative norms, and first_state a non-negative norm"
            )
        bounds = np.empty_like(steps)
        level = self.from_state * first_state
        for index, difference in enumerate(steps):
            level = self.factor * level + self.per_step * difference
            bounds[index] = level
        return bounds


def incremental_gain(
    certificate: Certificate,
    pair: tuple[Any, Any],
    *,
    input_matrix: Any = None,
    output_matrix: Any = None,
    alpha: float = 1.0,
) -> IncrementalGain:
    """Turn a certificate for ``pair`` into a bound on the response to a change of the input.

    In the metric P of the certificate a step multiplies a difference by at most ρ and adds at most g‖Δx‖, so the
    differences stay below g / (1 − ρ). A change Δx enters behind the slopes, as D U Δx, in every stage.

    Args:
        certificate: a certificate of a single pair that holds.
        pair: the (A, W) it is about.
        input_matrix: U (N, p); the identity, that is a change of U x + b itself, by default.
        output_matrix: C (q, N); the identity by default.
        alpha: the factor of A.
    """
    if not certificate.holds or certificate.metric is None:
        raise ValueError("the certificate does not hold for a single pair; there is no gain to derive from it")
    A, W = as_pair(*pair)
    n = len(A)
    P = certificate.metric
    if P.shape != A.shape:
        raise ValueError(
            f"the certificate is about {P.shape[0]} units and the pair has {n}; give the pair it was made for"
        )
    root = np.linalg.cholesky(P)
    inverse = np.linalg.inv(root).T
    U = np.eye(n) if input_matrix is None else _array(input_matrix)
    C = np.eye(n) if output_matrix is None else _array(output_matrix)
    if U.ndim != 2 or U.shape[0] != n or C.ndim != 2 or C.shape[1] != n:
        raise ValueError(f"input_matrix must be ({n}, p) and output_matrix (q, {n}); got {U.shape} and {C.shape}")
    low, high = as_slopes(certificate.slopes)
    # ‖D U Δx‖_P ≤ ‖Lᵀ‖ max|d| ‖U‖, or with D = c + r·q, |q| ≤ 1, the average of the slopes without its loss.
    centre, radius = 0.5 * (low + high), 0.5 * (high - low)
    spread = float(np.linalg.norm(root, 2)) * float(np.linalg.norm(U, 2))
    entry = abs(centre) * float(np.linalg.norm(root.T @ U, 2)) + radius * spread
    read = _ROUNDING * float(np.linalg.norm(C @ inverse, 2))
    from_state = read * float(np.linalg.norm(root, 2))
    if certificate.step_range is None:
        rate = certificate.rate
        return IncrementalGain(read * entry / rate, math.exp(-rate), read * entry, from_state)
    step = certificate.step_range[1]
    # Every stage adds its own change, and later stages pass earlier ones on through K = αA + D W.
    slope = _norm_bound(root, inverse, alpha * A + centre * W) + radius * float(
        np.linalg.norm(root, 2) * np.linalg.norm(W @ inverse, 2)
    )
    tableau = get_integrator(certificate.dynamics)
    changes: list[float] = []
    for row in tableau.stages:
        state_change = step * sum(abs(a) * change for a, change in zip(row, changes, strict=True))
        changes.append(entry + slope * state_change)
    added = step * sum(abs(b) * change for b, change in zip(tableau.weights, changes, strict=True))
    assert certificate.factor is not None  # a discrete certificate has one
    shortest, factor = certificate.step_range[0], certificate.factor
    if shortest < step:
        # 1 − λε per step and an addition in proportion to ε: the longest step's ratio holds for all.
        peak = read * added / (step * certificate.rate)
        factor = 1.0 - certificate.rate * shortest
    else:
        peak = read * added / (1.0 - factor)
    return IncrementalGain(peak, factor, read * added, from_state)


def _norm_bound(root: Matrix, inverse: Matrix, matrix: Matrix) -> float:
    return float(np.linalg.norm(root.T @ matrix @ inverse, 2))


def _array(values: Any) -> Matrix:
    return values.detach().cpu().double().numpy() if hasattr(values, "detach") else np.asarray(values, dtype=np.float64)
