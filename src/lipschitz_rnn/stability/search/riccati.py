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


def metric_exists(loop: Loop, rate: float, multiplier: Matrix) -> bool:
    """Whether some P proves the rate with this multiplier (up to rounding: a search uses it, never a proof)."""
    if rate >= loop.decay:
        return False
    hamiltonian = loop.hamiltonian(rate, multiplier)
    if hamiltonian is None:
        return False
    eigenvalues = np.linalg.eigvals(hamiltonian)
    return bool(np.abs(eigenvalues.real).min() > 1e-8 * np.abs(eigenvalues).max())


def critical_angles(loop: Loop, rate: float, multiplier: Matrix) -> Matrix:
    """Non-negative contour angles near which the scaled H is longest, read off the Hamiltonian's spectrum."""
    hamiltonian = loop.hamiltonian(rate, multiplier)
    if hamiltonian is None:
        return np.zeros(0)
    eigenvalues = np.linalg.eigvals(hamiltonian)
    near = eigenvalues[np.argsort(np.abs(eigenvalues.real))[:8]]
    frequencies = np.unique(np.round(np.abs(near.imag), 12))
    middles = 0.5 * (frequencies[1:] + frequencies[:-1])
    frequencies = np.concatenate((frequencies, middles))
    return frequencies if loop.step is None else 2.0 * np.arctan(frequencies)


def metric(loop: Loop, rate: float, multiplier: Matrix) -> Matrix | None:
    """P from the stable invariant subspace of the Hamiltonian, symmetric and positive definite, or None."""
    try:
        from scipy.linalg import schur
    except ImportError as error:
        raise ImportError('this certificate needs SciPy: pip install "lipschitz-rnn[stability]"') from error

    hamiltonian = loop.hamiltonian(rate, multiplier, surplus=1e-8)
    if hamiltonian is None:
        return None
    n = len(loop.F)
    try:
        _, basis, count = schur(hamiltonian, sort="lhp")
        if count != n:
            return None
        P = np.linalg.solve(basis[:n, :n].T, basis[n:, :n].T)
    except np.linalg.LinAlgError:
        return None
    P = 0.5 * (P + P.T)
    return P if np.all(np.isfinite(P)) and np.linalg.eigvalsh(P)[0] > 0 else None
