"""A bound on the norm of the midpoint map, for a pair that contracts under Euler steps.

With given diagonal multipliers, the incremental inequality of ``docs/theory.md`` needs no solver: the squared bound
("level") is the largest eigenvalue of a Schur complement. Slower dynamics lower it, so some scale is small enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.tracing import exporting

_TOLERANCE = 1e-13
_SMALLEST_SCALE = 1e-60  # never reached by finite parameters
SMALLEST_SLOPE = 1e-12  # of the excess at its root


def midpoint_level(a: Tensor, v: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The square of a bound on ‖J‖ over all slopes in [0, 1]; infinity if these multipliers give no bound.

    Args:
        a, v: εA and εW, (N, N).
        first, second: diagonals (N,) of the multipliers M₁, M₂ of the two stages, for w₁ = D₁vδ and w₂ = D₂vδ′.

    With δ′ = (I + a/2)δ + w₁/2 and δ⁺ = δ + aδ′ + w₂, the level t is the smallest number for which
    ‖δ⁺‖² + 2w₁ᵀM₁(vδ − w₁) + 2w₂ᵀM₂(vδ′ − w₂) ≤ t‖δ‖² for all δ, w₁ and w₂.
    """
    identity = torch.eye(len(a), device=a.device, dtype=a.dtype)
    half_step = identity + 0.5 * a
    linear = identity + a @ half_step
    below = -0.5 * (a + second.unsqueeze(1) * v)
    tail = torch.cat(
        (
            torch.cat((torch.diag(2.0 * first) - 0.25 * a.T @ a, below.T), dim=1),
            torch.cat((below, torch.diag(2.0 * second - 1.0)), dim=1),
        )
    )
    cross = torch.cat((0.5 * a.T @ linear + first.unsqueeze(1) * v, linear + second.unsqueeze(1) * (v @ half_step)))
    root, failed = torch.linalg.cholesky_ex(tail)
    # Non-finite values prove nothing and have no eigenvalues. One test for all, because a GPU must wait for the result.
    if bool(failed.bool() | ~torch.isfinite(tail.sum() + cross.sum())):
        return a.new_full((), math.inf)
    half = torch.linalg.solve_triangular(root, cross, upper=False)
    return torch.linalg.eigvalsh(linear.T @ linear + half.T @ half)[-1]


def largest_scale(excess: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """A root search for the largest s in (0, 1] with ``excess(s)`` ≤ 0, differentiable in the inputs of ``excess``.

    ``excess`` must be negative for small s. If ``excess(1)`` ≤ 0, the result is 1. Otherwise s is a root, approached
    from below so that the result satisfies the inequality, with the gradient of the implicit function. Returns NaN if
    no s is small enough, which happens only for non-finite parameters.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(like):
        raise NotImplementedError(
            "torch.func does not support a contracting unit with integrator='midpoint', whose matrices come from a "
            "root search; run such networks one by one, or use integrator='euler' or 'heun'"
        )
    if exporting():
        raise NotImplementedError(
            "torch.export does not support a contracting unit with integrator='midpoint', whose matrices come from a "
            "root search; use integrator='euler' or 'heun', or export a module that stores A and W from "
            "hidden_matrices() as buffers and calls lipschitz_scan"
        )
    high = torch.ones((), device=like.device, dtype=like.dtype)
    with torch.no_grad():
        above = float(excess(high))
        if above <= 0.0:
            return high
        low = 0.5 * high
        while (below := float(excess(low))) > 0.0:
            high, above, low = low, below, 0.5 * low
            if low < _SMALLEST_SCALE:
                return torch.full_like(high, math.nan)
        for count in range(80):
            if below > -_TOLERANCE or float(high - low) <= 4e-16 * float(high):
                break
            # False position. Bisect every third time, because one end may stay fixed, and if an end is not finite.
            halve = count % 3 == 2 or not math.isfinite(above)
            middle = low + (0.5 if halve else -below / (above - below)) * (high - low)
            value = float(excess(middle))
            if value > 0.0:
                high, above = middle, value
            else:
                low, below = middle, value
    if not torch.is_grad_enabled():
        return low
    at = low.clone().requires_grad_()
    (slope,) = torch.autograd.grad(excess(at), at)
    reached = excess(low)
    return low - (reached - reached.detach()) / slope.clamp_min(SMALLEST_SLOPE)
