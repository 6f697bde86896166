"""The gain of a layer from the energy of its input: ‖δh‖²_P ≤ γ² Σ_t‖Δx_t‖², however long the sequence is.

Kernels (`kernels`) add up the norms of what every step contributes, as if all of it pointed the same way. Energy does
not: if P and diagonal multipliers Λ ≥ 0 satisfy, for all δ, w and Δ,

    ‖Fδ + εlUΔ + εw‖²_P + 2 wᵀΛ((u − l)(Wδ + UΔ) − w) ≤ θ‖δ‖²_P + γ²‖Δ‖²,     F = I + ε(αA + lW),

with slopes in [l, u], then a step keeps at most θ ≤ 1 of ‖δ‖²_P and adds at most γ²‖Δ‖². Given P, Λ and θ, the smallest
γ is an eigenvalue. It is computed in plain float64, and the inequality is then proved for a slightly larger γ.
docs/stability.md, theorem 8.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.norms import MetricNorms, product
from lipschitz_rnn.stability.proof.rounding import Ball, Matrix, block, smallest_eigenvalue_bound

_LARGER = (1e-9, 1e-6, 1e-3, 0.1, 1.0)  # by how much γ exceeds its smallest value, until there is a proof
_STRONGER = (1.0, 10.0, 1e3, 1e6)


def energy_gain(certificate: Certificate, metric: MetricNorms, U: Ball, kept: float = 1.0) -> float:
    """γ for inputs that enter as U x, for the longest step that the certificate covers; ``kept`` is θ.

    Infinite where the metric and the multipliers of the certificate prove none: for other integrators than Euler, and
    for a factor so close to the best one that nothing is left for the input.
    """
    if certificate.dynamics != "euler" or not certificate.multipliers or certificate.step_range is None:
        return math.inf
    multiplier = np.asarray(certificate.multipliers[-1], dtype=np.float64)
    if multiplier.shape != U.shape[:1] or not np.all(np.isfinite(multiplier) & (multiplier >= 0)):
        return math.inf
    largest = float(U.upper_magnitude().max(initial=0.0))
    if largest == 0.0:
        return 0.0
    if not math.isfinite(largest):
        return math.inf
    unit = 2.0 ** min(round(math.log2(largest)), 1023)  # input weights of the size of 1; such powers change no digit
    p, scaled = U.shape[1], Ball(U.mid / unit, U.rad / unit)
    forms = [
        _energy_form(certificate, metric, each, scaled, kept) for each in _multipliers(certificate, metric, multiplier)
    ]
    smallest, form = min(((_smallest_gain(form.mid, p), form) for form in forms), key=lambda found: found[0])
    for more in _LARGER if math.isfinite(smallest) else ():
        gain = smallest * (1.0 + more) + 1e-300  # positive
        if _proves(form, p, gain):
            return product(gain, unit)
    return math.inf


def _multipliers(certificate: Certificate, metric: MetricNorms, known: Matrix) -> list[Matrix]:
    """Those of the certificate, and larger ones, which are better where units hardly feed back."""
    assert certificate.step_range is not None
    least = certificate.step_range[1] ** 2 * np.diag(metric.P.mid)  # about half of it is needed to bound w at all
    most = _STRONGER[-1] * least
    return [np.minimum(known, most), *(np.minimum(more * np.maximum(known, least), most) for more in _STRONGER)]


def _energy_form(certificate: Certificate, metric: MetricNorms, multiplier: Matrix, U: Ball, kept: float) -> Ball:
    """The right side minus the left side without γ²‖Δ‖², as a matrix for (z, v, Δ): δ = Tz, and w = T v/ε or nearly so.

    T makes P nearly I, so all variables have the size of 1.
    """
    assert certificate.A is not None
    assert certificate.W is not None
    assert certificate.step_range is not None
    T, P, step = metric.T, metric.P, certificate.step_range[1]
    low, high = (Fraction(slope) for slope in certificate.slopes)
    lowest, width, W = Ball.number(low), Ball.number(high - low), Ball.exact(certificate.W)
    N, p = U.shape
    none = Ball.exact(np.zeros((N, N)))
    fed = 2.0 ** -round(math.log2(step)) * T
    state = block([[T, none, Ball.exact(np.zeros((N, p)))]])
    feed = block([[none, fed, Ball.exact(np.zeros((N, p)))]])
    slope = certificate.alpha * Ball.exact(certificate.A) + lowest * W
    after = state + step * block([[slope @ T, fed, lowest * U]])
    left = block([[width * (W @ T), none, width * U]]) - feed
    cross = feed.T @ (Ball.exact(multiplier[:, None]) * left)
    return kept * (state.T @ P @ state) - after.T @ P @ after - cross - cross.T


def _smallest_gain(form: Matrix, p: int) -> float:
    """γ in plain float64, from the largest eigenvalue of a Schur complement; infinite if the rest is not positive."""
    form, k = 0.5 * (form + form.T), len(form) - p
    try:
        half = np.linalg.solve(np.linalg.cholesky(form[:k, :k]), form[:k, k:])
        square = float(np.linalg.eigvalsh(half.T @ half - form[k:, k:])[-1])
    except (np.linalg.LinAlgError, ValueError):  # not positive, or not finite
        return math.inf
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else math.inf


def _proves(form: Ball, p: int, gain: float) -> bool:
    """Whether the form with γ²‖Δ‖² is proved to be non-negative. Δ is taken in units of 1/γ, nearly."""
    units = np.ones(len(form.mid))
    units[-p:] = 2.0 ** -round(math.log2(gain))
    scaled = Ball(form.mid * units[:, None] * units, form.rad * units[:, None] * units)
    square = Ball.exact(gain * units[-1]) * Ball.exact(gain * units[-1])
    diagonal = np.diag(np.arange(len(units)) >= len(units) - p).astype(np.float64)
    return smallest_eigenvalue_bound(scaled + square * Ball.exact(diagonal)) >= 0.0
