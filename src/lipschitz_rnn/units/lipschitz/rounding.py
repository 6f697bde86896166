"""What floating point takes from a contracting pair: of its factor, and of the distance after every step.

Derivations are in ``docs/theory.md``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.integrators import Tableau

# A rotation or a feedback beyond this norm per step is scaled back to it: a solve in float64 keeps 10 digits up to
# there, and at 10⁴ a rotation is within 2·10⁻⁴ of the half turn that is the limit of all of them.
LARGEST_NORM = 1e4


def held_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of A and W for parameters of another: 16 bits hold free parameters, but no matrices with a proof."""
    return torch.promote_types(dtype, torch.float32)


def matrix_reserve(integrator: str, size: int, dtype: torch.dtype) -> float:
    """How much the norm of the map may grow when A and W are computed in float64 and rounded to ``dtype``."""
    epsilon, root = torch.finfo(dtype).eps, math.sqrt(size)
    rounding = 32.0 * (root + 1.0) * epsilon if integrator == "midpoint" else 16.0 * root * epsilon
    return max(rounding, 1e-9 * size)


def within(matrix: Tensor, limit: float) -> Tensor:
    """The matrix itself, bit for bit, where its Frobenius norm is at most ``limit``; scaled to that norm elsewhere."""
    largest = matrix.abs().amax().clamp_min(torch.finfo(matrix.dtype).tiny)  # whose square may be beyond any float
    return matrix / (torch.linalg.matrix_norm(matrix / largest) * (largest / limit)).clamp_min(1.0)


def step_rounding(
    tableau: Tableau, gain: float, state: float, drive: float, *, terms: int, ones: float, dtype: torch.dtype
) -> float:
    """A bound on ‖computed step − exact step‖_P, for a contracting map with the matrices as they are held.

    Args:
        tableau: of Euler, midpoint or Heun: the steps to their stages contract too.
        gain: a bound on ‖ε(|αA| + |DW|)‖_P over all slopes, of the matrices' absolute values.
        state, drive: bounds on ‖h‖_P and on ε‖σ(|U||x| + |b|)‖_P.
        terms: in the longest sum of a product.
        ones: the norm ‖(1, …, 1)‖_P.
        dtype: what the recurrence is computed in.
    """
    unit = 0.5 * torch.finfo(dtype).eps
    # 2 for each term: tensor cores cut off where others round. 8 for σ, α, ε, the bias and the sum of A h and σ.
    each = (2 * terms + 8) * unit
    size = state + drive  # of every stage's state
    slope = gain * size + drive  # of every stage's products and sums, all terms taken positive
    stage_error = 0.0  # of the state at which a stage is taken
    errors: list[float] = []
    for row in tableau.stages:
        if any(row):
            stage_error = sum(abs(c) * e for c, e in zip(row, errors, strict=True)) + 4.0 * unit * (size + slope)
        # ‖I + c k‖ ≤ 1 with the coefficient c of the stage, so ‖k‖ ≤ 2/c.
        errors.append(each * slope + (2.0 / sum(row) * stage_error if any(row) else 0.0))
    total = sum(abs(b) * e for b, e in zip(tableau.weights, errors, strict=True)) + 4.0 * unit * (size + slope)
    underflow = 4.0 * terms * torch.finfo(dtype).tiny * ones
    return 1.01 * total + underflow  # 1 % for products of errors
