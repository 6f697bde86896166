"""Maps that are not steps of a differential equation: h⁺ = F h + G σ(v) + …, v = C h + E σ(v) + ….

The inequality takes them as they are, for the numbers of exact arithmetic. What a kernel holds instead changes the
Jacobian by an amount that is bounded entry by entry, and its norm is added to the proved factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.precision import Precision
from lipschitz_rnn.stability.proof.rounding import UNDERFLOW, Ball, Matrix
from lipschitz_rnn.stability.proof.systems import M, System
from lipschitz_rnn.units.recurrence import FeedbackMap, UnstatedRecurrenceError

_NAMES = ("F", "G", "C", "E")


@dataclass(frozen=True)
class Feedback:
    """F, G, C and E, with the magnitudes that their rounding is relative to; one step is one unit of time."""

    matrices: tuple[Matrix, Matrix, Matrix, Matrix]
    magnitudes: tuple[Matrix, Matrix, Matrix, Matrix]

    @staticmethod
    def of(stated: FeedbackMap) -> Feedback:
        F, C = _array(stated.F, "F"), _array(stated.C, "C")
        m = len(C)
        E = np.zeros((m, m)) if stated.E is None else _array(stated.E, "E")
        matrices = (F, _array(stated.G, "G"), C, E)
        n = len(F)
        for name, matrix, shape in zip(_NAMES, matrices, ((n, n), (n, m), (m, n), (m, m)), strict=True):
            if matrix.shape != shape:
                raise UnstatedRecurrenceError(f"{name} of the stated map has shape {matrix.shape}; it must be {shape}")
        if np.triu(E).any():
            raise UnstatedRecurrenceError("E of the stated map must be strictly lower triangular")
        terms = [
            np.abs(matrix) if given is None else np.abs(_array(given, f"terms of {name}"))
            for name, matrix, given in zip(_NAMES, matrices, stated.terms, strict=True)
        ]
        return Feedback(matrices, (terms[0], terms[1], terms[2], terms[3]))

    @property
    def depth(self) -> int:
        """After how many factors E vanishes, at most."""
        return len(self.matrices[3]) - 1 if self.matrices[3].any() else 0

    def system(self, slopes: tuple[float, float]) -> System[Matrix]:
        """The map for a search."""
        F, G, C, E = self.matrices
        return _sector_form(F, G, C, E, slopes, self.depth)

    def enclosed(self, slopes: tuple[float, float]) -> System[Ball]:
        """The map of exact arithmetic, with all rounding of a proof."""
        F, G, C, E = (Ball.exact(matrix) for matrix in self.matrices)
        return _sector_form(F, G, C, E, slopes, self.depth)

    def deviation(self, slopes: tuple[float, float], precision: Precision) -> Matrix:
        """|ΔJ| at most, entry by entry, of the Jacobian J = F + G (I − D E)⁻¹ D C of every map that a kernel may hold.

        ΔJ = ΔF + ΔG K D C′ + G K D ΔC + G K D ΔE K D C′ with K = (I − D E)⁻¹, and |K| ≤ Σ_k (s|E′|)^k, s = max |D|.
        All numbers are non-negative, so their sums and products lose no more than the last factor gives back.
        """
        room = (precision.products + 4.0 * precision.unit + 4.0 * precision.second) * (1 + 1e-12)
        smallest = 2.0**-24 if precision.name == "float16" else precision.smallest
        # A zero of the structure is no number that is held.
        dF, dG, dC, dE = (np.where(terms > 0, room * terms + smallest, 0.0) for terms in self.magnitudes)
        _, G, C, E = (np.abs(matrix) for matrix in self.matrices)
        steepest = max(abs(slope) for slope in slopes) * (1 + 1e-12)
        K = _resolvent(steepest * (E + dE))
        into, out = steepest * (G + dG) @ K, K @ (C + dC)
        return (1 + 1e-9) * (dF + steepest * dG @ out + into @ dC + into @ (dE @ (steepest * out))) + UNDERFLOW


def _resolvent(E: Matrix) -> Matrix:
    """Σ_k E^k of a strictly lower triangular E ≥ 0: (I + E)(I + E²)(I + E⁴)…, which ends because E vanishes."""
    result, power = np.eye(len(E)) + E, E
    for _ in range(max(len(E) - 1, 0).bit_length()):
        power = power @ power
        result = result + power @ result
    return result


def _sector_form(F: M, G: M, C: M, E: M, slopes: tuple[float, float], depth: int) -> System[M]:
    """The same map with slopes in [0, 1], by σ(v) = l v + (u − l) w; with E only for l = 0."""
    low, high = (Fraction(slope) for slope in slopes)
    if low != 0:
        if depth:
            raise ValueError(f"slopes are {slopes}; a map with feedthrough is certified for slopes from 0 only")
        F = F + _number(F, low) * (G @ C)
    scale = _number(F, high - low)
    return System(F, scale * G, C, scale * E, Fraction(1), depth=depth)


def _number(like: Any, value: Fraction) -> Any:
    return Ball.number(value) if isinstance(like, Ball) else float(value)


def _array(tensor: Tensor, name: str) -> Matrix:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or tensor.is_complex():
        raise UnstatedRecurrenceError(f"{name} of the stated map is {repr(tensor)[:60]}; it must be a real matrix")
    array: Matrix = tensor.detach().cpu().double().numpy()
    if not np.all(np.isfinite(array)) or np.abs(array).max(initial=0.0) > 1e100:
        raise ValueError(f"{name} of the stated map has entries that are not finite, or beyond 1e100; give finite ones")
    return array
