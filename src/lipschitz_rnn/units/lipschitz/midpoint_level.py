"""How much the midpoint rule may stretch, for a pair that contracts under Euler steps.

The incremental inequality of ``docs/theory.md`` with given diagonal multipliers needs no solver: the level is the
largest eigenvalue of a Schur complement. Slower dynamics bring it down, so that some number slows them enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.tracing import exporting

_TOLERANCE = 1e-13
_SMALLEST_SHARE = 1e-60  # never reached by finite parameters


def midpoint_level(a: Tensor, v: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The square of a bound on ‖J‖ over all slopes in [0, 1]; infinity where the multipliers prove none.

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
    # What is not finite proves nothing, and has no eigenvalues. One question, as a GPU has to wait for the answer.
    if bool(failed.bool() | ~torch.isfinite(tail.sum() + cross.sum())):
        return a.new_full((), math.inf)
    half = torch.linalg.solve_triangular(root, cross, upper=False)
    return torch.linalg.eigvalsh(linear.T @ linear + half.T @ half)[-1]


def largest_share(excess: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The largest s in (0, 1] found with ``excess(s)`` ≤ 0, differentiable in whatever ``excess`` depends on.

    ``excess`` must be negative for small s. If it is negative at 1, that is the answer; otherwise s is a root, found
    from below so that the value returned satisfies the inequality, with the implicit function's derivative. NaN where
    no s is small enough, which only parameters that are not finite can bring about.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(like):
        raise NotImplementedError(
            "torch.func cannot follow the search that slows a contracting midpoint unit down, which looks at values; "
            "run such networks one by one, or use integrator='euler' or 'heun'"
        )
    if exporting():
        raise NotImplementedError(
            "torch.export cannot follow the search that slows a contracting midpoint unit down; export one with "
            "integrator='euler' or 'heun', or a module that keeps A and W of hidden_matrices() as buffers and calls "
            "lipschitz_scan on them"
        )
    high = torch.ones((), device=like.device, dtype=like.dtype)
    with torch.no_grad():
        above = float(excess(high))
        if above <= 0.0:
            return high
        low = 0.5 * high
        while (below := float(excess(low))) > 0.0:
            high, above, low = low, below, 0.5 * low
            if low < _SMALLEST_SHARE:
                return torch.full_like(high, math.nan)
        for count in range(80):
            if below > -_TOLERANCE or float(high - low) <= 4e-16 * float(high):
                break
            # False position; every third step halves, as one end may stay put, and an end may have no finite value.
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
    return low - (reached - reached.detach()) / slope.clamp_min(1e-12)
