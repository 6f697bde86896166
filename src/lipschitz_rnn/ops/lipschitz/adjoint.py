"""The hand-written backward pass of the recurrence, apart from the scan through time itself.

With y = ∂L/∂h⁺ the adjoint of one explicit Runge–Kutta step is, over its stages from the last to the first,

    κᵢ = ε (bᵢ y + Σⱼ>ᵢ aⱼᵢ ηⱼ),    dᵢ = κᵢ ⊙ σ′(zᵢ),    ηᵢ = αAᵀκᵢ + Wᵀdᵢ,    ∂L/∂h = y + Σᵢ ηᵢ,

where zᵢ = W Hᵢ + u and Hᵢ is the state at which stage i is taken. The scan produces κ and d; what is here turns
them into gradients by products over all steps at once:

    ∂A = α Σ κᵢ Hᵢᵀ,    ∂W = Σ dᵢ Hᵢᵀ,    ∂u = Σ dᵢ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul
from lipschitz_rnn.ops.lipschitz.problem import Problem

FEW_COLUMNS, SUMMED_AT_ONCE = 8, 4096


def stage_states(
    problem: Problem, previous: Tensor, activations: Tensor, steps: Tensor | float, *, all_slopes: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """The states Hᵢ of every stage and the slopes kᵢ = αA Hᵢ + sᵢ, for many steps in one product.

    Nothing here depends on the step before, because the states and the values s of σ are known.

    Args:
        previous: (C, S, B, N), the state before each step.
        activations: (C, stages, S, B, N), s at every stage.
        steps: a number or (C, S, B, 1).
        all_slopes: also the slopes that no later stage needs (the gradient of the step size does).
    """
    scheme, tableau = problem.scheme, problem.scheme.tableau
    states: list[Tensor] = []
    slopes: list[Tensor] = []
    for i, row in enumerate(tableau.stages):
        increment = _weighted_sum(row, slopes)
        states.append(previous if increment is None else (previous + steps * increment).to(previous.dtype))
        needed = all_slopes or any(len(later) > i and later[i] != 0.0 for later in tableau.stages)
        slopes.append(scheme.alpha * matmul(states[i], problem.A.mT) + activations[:, i] if needed else previous)
    return states, slopes


def step_gradient(problem: Problem, adjoint: Tensor, stage_adjoints: dict[int, Tensor], slopes: list[Tensor]) -> Tensor:
    """∂L/∂ε of one step, (S, B): y·Σ bᵢkᵢ + Σⱼ ηⱼ·Σᵢ aⱼᵢkᵢ."""
    tableau = problem.scheme.tableau
    rows = [(adjoint, tableau.weights), *((eta, tableau.stages[j]) for j, eta in stage_adjoints.items())]
    total = adjoint.new_zeros(adjoint.shape[:-1])
    for cotangent, row in rows:
        increment = _weighted_sum(row, slopes)
        if increment is not None:
            total = total + (cotangent * increment).sum(-1)
    return total


def product_over_time(left: Tensor, right: Tensor) -> Tensor:
    """Σ over steps and samples of left rightᵀ: (C, S, B, M), (C, S, B, N) → (S, M, N).

    A product with few columns is one running sum for each of its entries, which over a hundred thousand terms in
    float32 loses a digit: it is taken in pieces whose results are added up.
    """
    C, _, B, _ = left.shape
    steps = C if right.shape[-1] > FEW_COLUMNS else max(1, SUMMED_AT_ONCE // max(1, B))
    pieces = zip(left.split(steps), right.split(steps), strict=True)
    products = [torch.bmm(_long(one).mT, _long(other)) for one, other in pieces]
    return products[0] if len(products) == 1 else torch.stack(products).sum(0)


def _long(sequence: Tensor) -> Tensor:
    """(C, S, B, M) → (S, C·B, M)."""
    return sequence.transpose(0, 1).flatten(1, 2)


def _weighted_sum(coefficients: tuple[float, ...], slopes: list[Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for c, k in zip(coefficients, slopes, strict=False):
        if c != 0.0:
            total = c * k if total is None else total + c * k
    return total
