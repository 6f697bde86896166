"""Ellipsoids around what remainders add to a state, for one sample: far smaller than balls of the certificate's metric.

q_t = J_t q_{t−1} + ε R_t with |R_t| in a box. For any matrices Q_t ≽ J_t Q_{t−1} J_tᵀ / θ_t + ε² diag(d_t) / (1 − θ_t),
0 < θ_t < 1, and q_{t−1} in n_{t−1} E(Q_{t−1}), where E(Q) = {Q^{1/2} z : ‖z‖ ≤ 1}: q_t lies in n_t E(Q_t) with

    n_t² = θ_t n_{t−1}² + (1 − θ_t) κ_t²,   κ_t² = Σ_j R²_{t,j} / d_{t,j}.

θ and d are chosen once, for remainders of a likely size; the inequality holds for all others too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.rounding import UNIT
from lipschitz_rnn.stability.radius.trajectory import Stepper

_SMALL = 1e-12  # θ keeps this distance from 0 and 1


@dataclass(frozen=True)
class Ellipsoids:
    """For every step: θ (T, B), d (T, B, N), and reach (T, B, N): |w_i q| ≤ reach · n for the q before the step.

    ``width`` (T + 1, B, N): |q_i| ≤ width · n, before every step and after the last.
    """

    theta: Tensor
    d: Tensor
    reach: Tensor
    width: Tensor

    def bound(self, t: int, squared: Tensor) -> Tensor:
        """On |W q| before step t, (K, B, N); infinite where the ellipsoid is not finite."""
        return _finite(self.reach[t] * squared.sqrt()[..., None] * (1 + 4 * UNIT))

    def entries(self, t: int, squared: Tensor) -> Tensor:
        """On |q| before step t, (K, B, N)."""
        return _finite(self.width[t] * squared.sqrt()[..., None] * (1 + 4 * UNIT))

    def grown(self, t: int, squared: Tensor, left: Tensor, moves: Tensor) -> Tensor:
        """n_t² (K, B) from n_{t−1}² and bounds on the remainders, (K, B, N)."""
        kappa = (left.square() / self.d[t]).sum(-1) * moves
        return (self.theta[t] * squared + (1.0 - self.theta[t]) * kappa) * (1 + 1e-12)


def _finite(found: Tensor) -> Tensor:
    return found.masked_fill(found.isnan(), torch.inf)


def ellipsoids(
    stepper: Stepper, step: Tensor, slope: Tensor, remainders: Callable[[int, Tensor], Tensor]
) -> Ellipsoids:
    """Around q of one sample, for remainders of a likely size.

    Args:
        step, slope: (T, B, 1) and (T, B, N).
        remainders: step t and a bound (B, N) on |W q| before it -> a bound (B, N) on the remainders of the step.
    """
    T, B, N = slope.shape
    eye = torch.eye(N, dtype=torch.float64, device=slope.device)
    Q = slope.new_zeros(B, N, N)
    theta, d, reach = slope.new_empty(T, B), torch.empty_like(slope), torch.empty_like(slope)
    width = slope.new_empty(T + 1, B, N)
    wide, columns = stepper.W.square().sum(-1), stepper.W.norm(dim=0).clamp(min=1e-100)
    each = 8.0 * (N + 16) * UNIT
    for t in range(T):
        size = Q.square().sum((-2, -1)).sqrt()
        inner = ((stepper.W @ Q) * stepper.W).sum(-1) + each * size[:, None] * wide
        reach[t], width[t] = root_of(inner), root_of(Q.diagonal(dim1=-2, dim2=-1))
        left = remainders(t, reach[t])
        left = left + 1e-3 * left.mean(-1, keepdim=True) + 1e-100
        d[t] = left / columns * (left * columns).sum(-1, keepdim=True)  # the ellipsoid around the box, small across W
        J = eye + step[t, :, :, None] * (stepper.A + slope[t, :, :, None] * stepper.W)
        moved = J @ Q @ J.mT
        added = step[t].square() * d[t]  # (B, N), a diagonal
        a = ((stepper.W @ moved) * stepper.W).sum((-2, -1)).clamp(min=0.0).sqrt()
        b = (added * columns.square()).sum(-1).sqrt()
        theta[t] = (a / (a + b).clamp(min=1e-150)).nan_to_num(0.5).clamp(_SMALL, 1.0 - _SMALL)
        first, second = 1.0 / theta[t], 1.0 / (1.0 - theta[t])
        Q = first[:, None, None] * 0.5 * (moved + moved.mT) + torch.diag_embed(second[:, None] * added)
        # The entries of J may cancel: rounding follows the sizes of their terms.
        whole = N**0.5 + step[t].squeeze(-1) * stepper.size.norm()
        rounding = each * (first * whole.square() * size + second * added.sum(-1))
        Q = Q + rounding[:, None, None] * eye
    width[T] = root_of(Q.diagonal(dim1=-2, dim2=-1))
    return Ellipsoids(theta, d, reach, width)


def root_of(squares: Tensor) -> Tensor:
    """√ of bounds on squares, some of which may have underflowed, rounded up."""
    return (squares.clamp(min=0.0) + 2.0**-900).sqrt() * (1 + 1e-9)
