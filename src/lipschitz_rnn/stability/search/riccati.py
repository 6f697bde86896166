"""The metric that goes with a multiplier, by a Riccati equation instead of a semidefinite program.

Slopes in [0, 1] are ½(1 + q) with |q| ≤ 1. Writing w = ½(v + q·v) turns the inequality for a fixed Λ into the bounded
real lemma: a metric exists at a level exactly if Λ^½ H(s) Λ^{−½} is stable and shorter than one on the level's contour
(the line Re s = −λ or the circle |s| = ρ), where H is the transfer function from q·v to v. So N(N + 1)/2 unknowns
disappear, and what is left is the multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System


@dataclass(frozen=True)
class Loop:
    """H(s) = C (s − F)⁻¹ G + E, from q·v to v."""

    F: Matrix
    G: Matrix
    C: Matrix
    E: Matrix
    step: float | None

    @staticmethod
    def of(system: System[Matrix]) -> Loop:
        m = system.channels
        inner = np.linalg.solve(np.eye(m) - 0.5 * system.E, np.hstack((system.C, 0.5 * system.E)))
        C, E = inner[:, : system.size], inner[:, system.size :]
        return Loop(system.F + 0.5 * system.G @ C, 0.5 * system.G @ (np.eye(m) + E), C, E, system.step)

    @cached_property
    def decay(self) -> float:
        """The rate λ at which the system with all slopes at ½ decays: no contour beyond it is possible."""
        eigenvalues = np.linalg.eigvals(self.F)
        if self.step is None:
            return -float(eigenvalues.real.max())
        return -float(np.log(max(np.abs(eigenvalues).max(), 1e-300))) / self.step

    def contour(self, rate: float, angles: Matrix) -> Matrix:
        """Points of the contour of a rate; ``angles`` are frequencies, or angles on the circle."""
        if self.step is None:
            return -rate + 1j * angles
        return np.exp(min(-rate * self.step, 200.0) + 1j * angles)

    def response(self, points: Matrix) -> Matrix:
        """H at complex points: (K, m, m)."""
        resolvent = points[:, None, None] * np.eye(len(self.F)) - self.F
        return self.C @ np.linalg.solve(resolvent, np.broadcast_to(self.G, (len(points), *self.G.shape))) + self.E

    def normalized(self, rate: float, multiplier: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """The scaled loop in continuous time with the contour moved onto the imaginary axis; P stays what it is."""
        n = len(self.F)
        scale = np.sqrt(multiplier)
        G, C, E = self.G / scale, scale[:, None] * self.C, scale[:, None] * self.E / scale
        if self.step is None:
            return self.F + rate * np.eye(n), G, C, E
        factor = np.exp(min(-rate * self.step, 200.0))
        F, G = self.F / factor, G / factor
        # The bilinear map z = (1 + s)/(1 − s) takes the unit circle to the imaginary axis.
        inverse = np.linalg.inv(F + np.eye(n))
        return inverse @ (F - np.eye(n)), np.sqrt(2.0) * inverse @ G, np.sqrt(2.0) * C @ inverse, E - C @ inverse @ G

    def hamiltonian(self, rate: float, multiplier: Matrix, surplus: float = 0.0) -> Matrix | None:
        """The Hamiltonian matrix whose imaginary eigenvalues are where H is exactly one long; None if E is too long.

        ``surplus`` asks for more decay than needed, relative to C. A singular W then still gives a definite metric.
        """
        F, G, C, E = self.normalized(rate, multiplier)
        inner = np.eye(len(E)) - E.T @ E
        try:
            root = np.linalg.cholesky(inner)
        except np.linalg.LinAlgError:
            return None
        half_G, half_EC = np.linalg.solve(root, G.T), np.linalg.solve(root, E.T @ C)
        drift = F + half_G.T @ half_EC
        observed = C.T @ C
        observed[np.diag_indices(len(F))] += surplus * (float(np.trace(observed)) / len(F) or 1.0)
        lower = -(observed + half_EC.T @ half_EC)
        return np.block([[drift, half_G.T @ half_G], [lower, -drift.T]])


@dataclass(frozen=True)
class Verdict:
    """Whether some P proves a rate with a multiplier, and contour angles near which the scaled H is longest.

    Up to rounding: a search uses it, never a proof.
    """

    exists: bool
    angles: Matrix


def examine(loop: Loop, rate: float, multiplier: Matrix) -> Verdict:
    """Read the answer off the Hamiltonian's spectrum: H is one long where an eigenvalue is imaginary."""
    hamiltonian = loop.hamiltonian(rate, multiplier) if rate < loop.decay else None
    if hamiltonian is None:
        return Verdict(False, np.zeros(0))
    eigenvalues = np.linalg.eigvals(hamiltonian)
    near = eigenvalues[np.argsort(np.abs(eigenvalues.real))[:8]]
    frequencies = np.unique(np.round(np.abs(near.imag), 12))
    frequencies = np.concatenate((frequencies, 0.5 * (frequencies[1:] + frequencies[:-1])))
    exists = bool(np.abs(near[0].real) > 1e-8 * np.abs(eigenvalues).max())
    return Verdict(exists, frequencies if loop.step is None else 2.0 * np.arctan(frequencies))


def metric(loop: Loop, rate: float, multiplier: Matrix) -> Matrix | None:
    """P from the stable invariant subspace of the Hamiltonian, symmetric and positive definite, or None."""
    hamiltonian = loop.hamiltonian(rate, multiplier, surplus=1e-8)
    if hamiltonian is None:
        return None
    n = len(loop.F)
    try:
        # The stable subspace is the kernel of sign(H) + I, and holds the columns of (I, P).
        rows = _matrix_sign(hamiltonian)
        rows[np.diag_indices(2 * n)] += 1.0
        P = -np.linalg.lstsq(rows[:, n:], rows[:, :n], rcond=None)[0]
    except np.linalg.LinAlgError:
        return None
    P = 0.5 * (P + P.T)
    return P if np.all(np.isfinite(P)) and np.linalg.eigvalsh(P)[0] > 0 else None


def _matrix_sign(M: Matrix, steps: int = 60) -> Matrix:
    """sign(M) by Newton's iteration, scaled by the determinant until it is close: faster than a Schur form."""
    size = len(M)
    scaled = True
    for _ in range(steps):
        inverse = np.linalg.inv(M)
        factor = np.exp(-np.linalg.slogdet(M)[1] / size) if scaled else 1.0
        following = 0.5 * (factor * M + inverse / factor)
        change = float(np.linalg.norm(following - M, 1) / np.linalg.norm(following, 1))
        M, scaled = following, scaled and change > 1e-2
        if not change > 1e-13 * size:
            break
    return M
