"""Rounding error of a contracting pair: in its factor, and in the distance after each step.

Derivations are in ``docs/theory.md``.
"""

from __future__ import annotations

import math

import torch

from lipschitz_rnn.ops.lipschitz.integrators import Tableau

# Rotations and feedback with a larger norm per step are scaled down to it. Up to here a float64 solve keeps 10 digits,
# and at 10⁴ a rotation is within 2·10⁻⁴ of a half turn, the limit of all rotations.
LARGEST_NORM = 1e4


def held_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of A and W for parameters of ``dtype``: at least float32, because 16 bits would void the proof."""
    return torch.promote_types(dtype, torch.float32)


def matrix_reserve(integrator: str, size: int, dtype: torch.dtype) -> float:
    """How much the norm of the map may grow when A and W are computed in float64 and rounded to ``dtype``."""
    epsilon, root = torch.finfo(dtype).eps, math.sqrt(size)
    rounding = 32.0 * (root + 1.0) * epsilon if integrator == "midpoint" else 16.0 * root * epsilon
    return max(rounding, 1e-9 * size)


def step_rounding(
    tableau: Tableau, gain: float, state: float, drive: float, *, terms: int, ones: float, dtype: torch.dtype
) -> float:
    """A bound on ‖computed step − exact step‖_P, for a contracting map with the stored matrices.

    Args:
        tableau: Euler, midpoint or Heun, for which the steps to the stages contract as well.
        gain: a bound on ‖ε(|αA| + |DW|)‖_P over all slopes, with absolute values of the entries.
        state, drive: bounds on ‖h‖_P and on ε‖σ(|U||x| + |b|)‖_P.
        terms: the number of terms in the longest sum of a matrix product.
        ones: the norm ‖(1, …, 1)‖_P.
        dtype: the dtype in which the recurrence is computed.
    """
    unit = 0.5 * torch.finfo(dtype).eps
    # 2 per term, because tensor cores may truncate instead of rounding. 8 for σ, α, ε, the bias and the sum A h + σ.
    each = (2 * terms + 8) * unit
    size = state + drive  # bounds the state of every stage
    slope = gain * size + drive  # bounds the products and sums of every stage, with absolute values
    stage_error = 0.0  # error of the state at which a stage is evaluated
    errors: list[float] = []
    for row in tableau.stages:
        if any(row):
            stage_error = sum(abs(c) * e for c, e in zip(row, errors, strict=True)) + 4.0 * unit * (size + slope)
        # ‖I + c k‖ ≤ 1 with the coefficient c of the stage, so ‖k‖ ≤ 2/c.
        errors.append(each * slope + (2.0 / sum(row) * stage_error if any(row) else 0.0))
    total = sum(abs(b) * e for b, e in zip(tableau.weights, errors, strict=True)) + 4.0 * unit * (size + slope)
    underflow = 4.0 * terms * torch.finfo(dtype).tiny * ones
    return 1.01 * total + underflow  # 1 % for products of errors
