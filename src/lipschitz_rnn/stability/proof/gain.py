"""How far two outputs can be apart when the inputs differ: what a contraction certificate says about robustness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.inputs import as_array, as_float, as_pair
from lipschitz_rnn.stability.proof.norms import MetricNorms, geometric_sum, power, product, total
from lipschitz_rnn.stability.proof.precision import as_precision, held, held_input, rounded
from lipschitz_rnn.stability.proof.rates import proved_decay, round_up
from lipschitz_rnn.stability.proof.rounding import UNIT, Ball, Matrix


@dataclass(frozen=True)
class IncrementalGain:
    """Bounds on ‖Δy‖₂ for y = C h, when the inputs of two runs differ by Δx and their first states by Δh.

    Every number is an upper bound, with the rounding of its own computation included.

    Attributes:
        peak: if every ‖Δx_t‖ ≤ d and Δh = 0, then every ‖Δy_t‖ ≤ peak · d.
        factor: what one sample does to a difference at most; e^{−λ} per unit of time in continuous time.
        per_step: what one sample's ‖Δx‖ (or, in continuous time, ‖Δx‖ per unit of time) adds to ‖Δy‖ at most.
        from_state: ‖Δy‖ per ‖Δh‖ of the first states, before any decay.
        continuous: whether this is about continuous time.

    A sample is one step, or as many steps as ``max_step`` splits it into, all of them with its input.
    """

    peak: float
    factor: float
    per_step: float
    from_state: float
    continuous: bool = False

    def bound(self, differences: Sequence[float], first_state: float = 0.0) -> Matrix:
        """Bounds on ‖Δy_t‖ after each sample (T,), from ‖Δx_t‖ of each sample (T,); for the discrete map.

        A difference that only a few samples carry fades: that is what a single number like ``peak`` does not show.
        """
        if self.continuous:
            raise ValueError("this gain is about continuous time, which has no steps; certify with a step_size")
        steps = as_array(differences, "differences", "a sequence (T,)")
        first = as_float("first_state", first_state)
        if steps.ndim != 1 or not np.all(steps >= 0) or first < 0:
            raise ValueError(
                "differences must be a sequence of non-negative norms, and first_state a non-negative norm"
            )
        bounds = np.empty_like(steps)
        level = self.from_state * first * (1 + 4 * UNIT)
        for index, difference in enumerate(steps):
            level = (self.factor * level + self.per_step * difference) * (1 + 4 * UNIT)
            bounds[index] = level
        return bounds


def incremental_gain(
    certificate: Certificate,
    pair: tuple[Any, Any] | None = None,
    *,
    input_matrix: Any = None,
    output_matrix: Any = None,
    alpha: float | None = None,
) -> IncrementalGain:
    """Turn a certificate into a bound on the response to a change of the input.

    In the metric P of the certificate a step multiplies a difference by at most ρ and adds at most g‖Δx‖, so the
    differences stay below g / (1 − ρ). A change Δx enters behind the slopes, as D U Δx, in every stage.

    Args:
        certificate: a certificate of a single pair that holds. It carries the matrices, α and all else that counts.
        pair, alpha: the (A, W) and α it is about. Not needed; if given, they are compared with the certificate's.
        input_matrix: U (N, p), rounded as the kernels round W at the certificate's precision; the identity, that is a
            change of U x + b itself, by default.
        output_matrix: C (q, N), taken as it is; the identity by default.

    Not covered, as in the certificate: the rounding of inputs, states and sums while the network runs.
    """
    if not isinstance(certificate, Certificate):
        raise TypeError(
            f"certificate is a {type(certificate).__name__}; give what certify returned, as in "
            "incremental_gain(certify(model))"
        )
    if certificate.parts:
        raise ValueError(
            f"the certificate is about {len(certificate.parts)} recurrent parts; pass one of certificate.parts"
        )
    P, A, W = certificate.metric, certificate.A, certificate.W
    if not certificate.holds or P is None or A is None or W is None:
        raise ValueError("the certificate does not hold for a single pair; there is no gain to derive from it")
    _require_same(certificate, pair, alpha)
    n = len(A)
    U = np.eye(n) if input_matrix is None else as_array(input_matrix, "input_matrix", f"a matrix ({n}, p)")
    C = np.eye(n) if output_matrix is None else as_array(output_matrix, "output_matrix", f"a matrix (q, {n})")
    if U.ndim != 2 or U.shape[0] != n or C.ndim != 2 or C.shape[1] != n or not U.size or not C.size:
        raise ValueError(
            f"input_matrix must be ({n}, p) and output_matrix (q, {n}), with p and q at least 1; got {U.shape} and "
            f"{C.shape}"
        )
    precision = as_precision(certificate.precision)
    feed = Ball.exact(U) if input_matrix is None else held_input(rounded(U, precision), precision)
    with np.errstate(all="ignore"):
        return _gain(certificate, MetricNorms(P), feed, C)


def entry_gain(metric: MetricNorms, U: Ball, slopes: tuple[float, float]) -> float:
    """‖D U x‖_P ≤ entry_gain · ‖x‖₂ for every diagonal D of slopes: what an input adds behind σ."""
    low, high = (Fraction(slope) for slope in slopes)
    # D = c + r·q with |q| ≤ 1: the average of the slopes acts without loss.
    return total(
        product(round_up(abs(low + high) / 2), metric.length(U)),
        product(round_up((high - low) / 2), metric.fed(U)),
    )


def step_gain(certificate: Certificate, metric: MetricNorms, U: Ball) -> float:
    """What ‖x‖₂ of one step's input adds to ‖h⁺‖_P at most, at the longest step; for shorter ones in proportion.

    Every stage adds its own change, and later stages pass earlier ones on through K = αA + D W. That makes a polynomial
    in ε with non-negative coefficients and no constant term.
    """
    assert certificate.A is not None
    assert certificate.W is not None
    assert certificate.step_range is not None
    precision = as_precision(certificate.precision)
    A, W = held(certificate.A, certificate.W, certificate.alpha, precision)
    entry = entry_gain(metric, U, certificate.slopes)
    slope = metric.slope(A, W, certificate.slopes)
    tableau = get_integrator(certificate.dynamics)
    step = certificate.step_range[1] * (1 + 2 * precision.scalars + 8 * UNIT)
    changes: list[float] = []
    for row in tableau.stages:
        passed = total(*(product(step, abs(a), change) for a, change in zip(row, changes, strict=True)))
        changes.append(total(entry, product(slope, passed)))
    return total(*(product(step, abs(b), change) for b, change in zip(tableau.weights, changes, strict=True)))


def _gain(certificate: Certificate, metric: MetricNorms, U: Ball, C: Matrix) -> IncrementalGain:
    read = metric.reading(Ball.exact(C))
    from_state = product(read, metric.largest)
    if certificate.step_range is None:
        per_time = product(read, entry_gain(metric, U, certificate.slopes))
        peak = math.nextafter(per_time / certificate.rate, math.inf)
        return IncrementalGain(peak, proved_decay(certificate.rate), per_time, from_state, continuous=True)
    shortest, longest = certificate.step_range
    assert certificate.factor is not None  # a discrete certificate has one
    per_step, factor = product(read, step_gain(certificate, metric, U)), certificate.factor
    decay = 1 - Fraction(factor)
    if shortest < longest:
        # 1 − λε per step and an addition in proportion to ε: the longest step's ratio holds for all.
        decay = Fraction(certificate.rate) * Fraction(longest)
        factor = round_up(1 - Fraction(certificate.rate) * Fraction(shortest))
    peak = round_up(Fraction(per_step) / decay) if math.isfinite(per_step) else math.inf
    fewest, most = certificate.substeps
    if most > 1:  # the input of a sample is held over all its steps: ρⁿ, and g + ρg + … + ρⁿ⁻¹g
        per_step = product(per_step, geometric_sum(factor, most))
    return IncrementalGain(peak, power(factor, fewest), per_step, from_state)


def _require_same(certificate: Certificate, pair: tuple[Any, Any] | None, alpha: float | None) -> None:
    if alpha is not None and as_float("alpha", alpha) != certificate.alpha:
        raise ValueError(
            f"alpha is {alpha}, but the certificate is for alpha={certificate.alpha:g}; leave it out, or certify again"
        )
    if pair is None:
        return
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"pair is a {type(pair).__name__}; give the two matrices (A, W), or leave it out")
    precision = as_precision(certificate.precision)
    for name, given, own in zip("AW", as_pair(*pair), (certificate.A, certificate.W), strict=True):
        if own is None or not np.array_equal(rounded(given, precision), own):
            raise ValueError(
                f"{name} of the pair is not the one that the certificate is about; leave the pair out, or certify again"
            )
