"""What is known of one sample before a radius is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lipschitz_rnn.stability.radius.ellipsoid import Ellipsoids
from lipschitz_rnn.stability.radius.kernels import ProvedPart
from lipschitz_rnn.stability.radius.rounded_steps import RoundedSteps
from lipschitz_rnn.stability.radius.trajectory import Stepper


@dataclass(frozen=True)
class HeadRounding:
    """What reads the states of one direction.

    Attributes:
        weights: (T, B), of every state, in reading order.
        each: (B, q, N), rounding of a pair of scores, relative to what is read.
        size: (q, N), what a score grows by with what is read; ``limit``: by less than this it does not overflow.
    """

    weights: Tensor
    each: Tensor
    size: Tensor
    limit: float


@dataclass(frozen=True)
class Linearized:
    """One direction: everything about the sample that does not depend on the radius, in reading order."""

    own: ProvedPart
    stepper: Stepper
    a: Tensor  # (T, B, N), what σ is applied to
    slope: Tensor  # (T, B, N), D̂
    off: Tensor  # (T, B, 1), how far a can be from the exact one
    step: Tensor  # (T, B, 1)
    factor: Tensor  # (T, B)
    spread: Tensor  # (T, B, N), s_t
    width: Tensor  # (T + 1, B, N), the same for the state before each step, and after the last
    level: Tensor  # (T + 1, B), ‖δh‖_P at the same times, for a change of size 1
    direct: Tensor  # (T, B, N), |U Δx| for a change of size 1
    adjoint: Tensor  # (T, B, q, N), ε|λ_t|
    kernel: Tensor  # (T, B, q), what the certificate says about λ_t in the dual metric
    across: Tensor  # (N,), ‖w_i‖ in the dual metric
    whole: float  # ‖W x‖₂ ≤ whole · ‖x‖_P
    reach: Tensor  # (N,), the same for the rows of the identity
    missed: Tensor  # (B, q), rounding of the adjoint, for a unit of ‖·‖_P
    residual: Tensor  # (B, q), the same for a unit of radius
    gradient: Tensor  # (T, B, q, p), by time
    rounded: RoundedSteps | None = None
    head: HeadRounding | None = None
    fed: Tensor | None = None  # (B, q), by how much rounding grows with a change of size 1 of the inputs themselves
    errors: Ellipsoids | None = None  # around what rounding adds to the states

    def most(self, t: int, size: Tensor) -> Tensor:
        """|W δh + U Δx| before step t by the certificate alone, for changes of a size (…, B): (…, B, N)."""
        return self.across * (self.level[t] * size)[..., None] + self.direct[t] * size[..., None]
