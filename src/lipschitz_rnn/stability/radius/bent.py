"""What a change of a given size can take from a difference of scores beyond its linear part, and what rounding can.

Step by step through a sample, for several sizes at once: the remainders of the linearization (docs/stability.md,
theorem 4), and the distance between the computed and the exact states of the changed input (theorem 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.stability.radius.carried import ErrorBounds, least
from lipschitz_rnn.stability.radius.ellipsoid import Ellipsoids
from lipschitz_rnn.stability.radius.linearized import Linearized
from lipschitz_rnn.stability.radius.remainder import chord_change


@dataclass(frozen=True)
class Lost:
    """(K, B, q) each: by curvature, and by rounding, which is infinite where something may overflow."""

    bent: Tensor
    rounding: Tensor


def bent(line: Linearized, around: Ellipsoids, size: Tensor, energy: Tensor, norm: str) -> Lost:
    """Σ_t ε|λ_t|ᵀ remainder_t for changes of a size (K, B) with at most this l2 norm (K, B); and all rounding but
    that of the sample's own scores.
    """
    lost = energy.new_zeros(*energy.shape, line.adjoint.shape[2])
    q, squared = torch.zeros_like(energy), torch.zeros_like(energy)
    error = ErrorBounds(line, size) if line.rounded is not None else None

    def moved(t: int) -> Tensor:
        """|h(x + Δ) − h| in every entry, before step t."""
        known = reach_of(line.width[t], energy[..., None], least(line.reach, q, around.entries(t, squared)))
        return torch.minimum(known, line.reach * (line.level[t] * size)[..., None])

    for t in range(len(line.a)):
        # Two bounds on W q: in the metric of the certificate, and by the ellipsoids of this sample.
        V = reach_of(line.spread[t], energy[..., None], least(line.across, q, around.bound(t, squared)))
        V = torch.minimum(V, line.most(t, size))
        change = chord_change(line.own.part.sigma, line.a[t], line.slope[t], V, line.off[t])  # (K, B, N)
        left = change * V
        lost = lost + torch.einsum("bqn,kbn->kbq", line.adjoint[t], left)
        if error is not None:
            error.step(t, V, moved(t))
        # The exact map contracts q whatever its slopes are: only what they do to the linear part is new.
        linear = line.stepper.length(change * (energy[..., None] * line.spread[t]))
        new = torch.minimum(line.stepper.length(left), linear)
        q = (line.factor[t] * q + line.step[t].squeeze(-1) * new) * (1 + 1e-12)
        squared = around.grown(t, squared, left, (line.step[t] > 0).squeeze(-1))
    if error is None:
        return Lost(lost, torch.zeros_like(lost))
    return Lost(lost, error.read(moved(len(line.a)), norm))


def reach_of(spread: Tensor, energy: Tensor, known: Tensor) -> Tensor:
    """|W δh + U Δx| in every entry: what the linear part can be, and what the remainders so far have added."""
    return energy * spread + known
