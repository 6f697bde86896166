"""The formulas of a contracting pair: from free parameters to A and W. ``docs/theory.md`` has the proof.

All matrices are (…, N, N) and all vectors (…, N). Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.units.lipschitz.resolvent import by_elimination
from lipschitz_rnn.units.lipschitz.rounding import LARGEST_NORM

# εω stays within (0.002, 1.9), away from the ends of (0, 2): the multiplier degenerates and amplifies rounding there.
LOWEST_RESTORING, RESTORING_RANGE = 0.002, 1.898

_TINY = 2.0**-200


@dataclass(frozen=True)
class Numbers:
    """What a pair for Euler maps depends on besides its parameters."""

    step: float  # ε
    factor: float  # the norm of the Euler map in its metric
    alpha: float
    slopes: tuple[float, float]
    spread: float  # half the logarithm of metric_spread
    dtype: torch.dtype  # of A and W

    @property
    def units(self) -> tuple[float, float]:
        """What εA and εW, for slopes in [0, 1], are multiplied with."""
        low, high = self.slopes
        return 1.0 / (self.step * self.alpha), 1.0 / (self.step * ((high - low) or 1.0))

    @property
    def rotation_unit(self) -> float:
        """What rotations are divided by before anything else, and at least 1, so that they cannot overflow there."""
        return max(1.0, LARGEST_NORM / self.step)

    @property
    def rotation_limit(self) -> float:
        """The largest norm of a rotation, in its unit."""
        return min(1.0, LARGEST_NORM / self.step)

    @property
    def feedback_limit(self) -> float:
        return math.sqrt(LARGEST_NORM / self.step)


class Parts(NamedTuple):
    """The parameters after their bounded functions: what the theorem is about, before the metric."""

    rotation: Tensor  # skew-symmetric, in its unit
    rotation_excess: Tensor  # what it was divided by, (…, 1, 1)
    feedback: Tensor
    feedback_excess: Tensor
    shares: Tensor  # (…, 2, N), between 0 and 1: ε/2 times the leak, and the place of εω in its range
    restoring: Tensor  # εω


def free_parts(numbers: Numbers, rotation: Tensor, feedback: Tensor, leak: Tensor, restoring: Tensor) -> Parts:
    """K, B, leak and ω from the free parameters, limited where the theorem or float64 needs it."""
    wide = rotation.dtype == torch.float64, feedback.dtype == torch.float64
    half = rotation.double() * (0.5 / numbers.rotation_unit)  # halved first, so that the difference cannot overflow
    if leak.dtype == torch.float16:  # which autocast on a CPU refuses to stack
        leak, restoring = leak.double(), restoring.double()
    shares = torch.sigmoid(torch.stack((leak, restoring), -2).double())
    return Parts(
        *_within(half - half.mT, numbers.rotation_limit, wide[0]),
        *_within(feedback.double(), numbers.feedback_limit, wide[1]),
        shares,
        _restoring(shares.select(-2, 1)),
    )


def free_restoring(restoring: Tensor) -> Tensor:
    """εω from its free parameter."""
    return _restoring(torch.sigmoid(restoring.double()))


def _restoring(share: Tensor) -> Tensor:
    return torch.rsub(share, LOWEST_RESTORING, alpha=-RESTORING_RANGE)  # lowest + range · share, in one operation


def shifted_generator(numbers: Numbers, parts: Parts) -> Tensor:
    """I + H with H = (ε/2)(K + BᵀB) + leak."""
    half, K, B = 0.5 * numbers.step, parts.rotation, parts.feedback
    M = plus_product(K, B.mT, B, beta=half * numbers.rotation_unit, alpha=half)
    return plus_diagonal(M, 1.0 + parts.shares.select(-2, 0))


def log_stretch(numbers: Numbers, scale: Tensor) -> Tensor:
    """Half the logarithm of P's diagonal, within ± ``spread``."""
    return numbers.spread * _spread_share(numbers, scale)


def _spread_share(numbers: Numbers, scale: Tensor) -> Tensor:
    if numbers.spread == 0.0:  # as at the end of the range, where nothing depends on ``scale``
        return torch.ones_like(scale, dtype=torch.float64)
    return torch.tanh(scale.double() / numbers.spread)


class EulerPair(NamedTuple):
    """εA and εW in their units. With the rows a, b, c they are aX − …I and bV − 2cX + …I."""

    A: Tensor
    W: Tensor
    turned: Tensor  # X: (I + H)⁻¹ with its columns times t
    fed: Tensor  # V: B (I + H)⁻¹, likewise
    rows: tuple[Tensor | float, Tensor, Tensor]
    room: Tensor  # εω(2 − εω)


def euler_pair(
    factor: Tensor | float,
    inverse: Tensor,
    feedback: Tensor,
    root: Tensor | float,
    restoring: Tensor,
    stretch: Tensor | None = None,
    units: tuple[float, float] = (1.0, 1.0),
) -> EulerPair:
    """εA and εW from (I + H)⁻¹, B, √ε and εω, such that the norm of the Euler map is at most ``factor``.

    [I − H; √(2ε) B] (I + H)⁻¹ is an isometry, which is the whole proof, and (I − H)(I + H)⁻¹ = 2(I + H)⁻¹ − I. The
    metric multiplies column j by t_j and divides row i by t_i, which leaves the diagonal as it is.
    """
    for_A, for_W = units
    room, restored = restoring * (2.0 - restoring), (for_W * factor) * restoring
    rows: tuple[Tensor | float, Tensor, Tensor] = (
        (2.0 * for_A) * factor,
        ((math.sqrt(2.0) * for_W) * factor * root * room.sqrt()).unsqueeze(-1),
        restored.unsqueeze(-1),
    )
    if stretch is not None:
        inverse = inverse * stretch.unsqueeze(-2)
        back = stretch.reciprocal().unsqueeze(-1)
        rows = rows[0] * back, rows[1] * back, rows[2] * back
    fed = feedback @ inverse
    A = rows[0] * inverse
    A.diagonal(dim1=-2, dim2=-1).sub_(for_A * (factor + 1.0))
    W = torch.addcmul(rows[1] * fed, rows[2], inverse, value=-2.0)
    W.diagonal(dim1=-2, dim2=-1).add_(restored)
    return EulerPair(A, W, inverse, fed, rows, room)


def in_slopes(numbers: Numbers, A: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """A and W for the slopes of σ instead of [0, 1], in their dtype."""
    low, _ = numbers.slopes
    if low != 0.0:
        A = A - (low / numbers.alpha) * W
    return A.to(numbers.dtype), W.to(numbers.dtype)


class Built(NamedTuple):
    """A and W, and what a gradient needs."""

    A: Tensor
    W: Tensor
    parts: Parts
    inverse: Tensor
    spread_share: Tensor  # of the logarithm of the metric, between −1 and 1
    pair: EulerPair


def build(
    numbers: Numbers,
    rotation: Tensor,
    feedback: Tensor,
    leak: Tensor,
    restoring: Tensor,
    scale: Tensor,
    *,
    inverse: Callable[[Tensor], Tensor] = by_elimination,
) -> Built:
    """The pair for Euler and Heun maps."""
    parts = free_parts(numbers, rotation, feedback, leak, restoring)
    share = _spread_share(numbers, scale)
    X = inverse(shifted_generator(numbers, parts))
    root, units = math.sqrt(numbers.step), numbers.units
    pair = euler_pair(numbers.factor, X, parts.feedback, root, parts.restoring, (numbers.spread * share).exp(), units)
    return Built(*in_slopes(numbers, pair.A, pair.W), parts, X, share, pair)


def plus_product(base: Tensor, left: Tensor, right: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """β·base + α·left @ right, in one operation."""
    if base.dim() == left.dim() == right.dim() == 2:
        return torch.addmm(base, left, right, beta=beta, alpha=alpha)
    flat = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (base, left, right)]
    return torch.baddbmm(*flat, beta=beta, alpha=alpha).reshape(base.shape)


def plus_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """matrix + diag(diagonal); may change the matrix."""
    # vmap refuses to write a value for each network into a matrix that all share.
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(diagonal):
        return matrix + torch.diag_embed(diagonal)
    matrix.diagonal(dim1=-2, dim2=-1).add_(diagonal)
    return matrix


def _within(matrix: Tensor, limit: float, wide: bool) -> tuple[Tensor, Tensor]:
    """The matrix, scaled down to Frobenius norm ``limit`` if it exceeds that, otherwise unchanged; and the divisor."""
    # The norm of zero, as of the rotation of a single unit, has no second derivative. So little changes no divisor.
    least = _TINY if torch.is_grad_enabled() else 0.0
    if wide:  # squares may overflow; the result does not depend on ``largest``, hence neither does its gradient
        largest = matrix.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp_min(_TINY)
        excess = _norm(matrix / largest, least) * (largest / limit)
    else:
        excess = _norm(matrix, least)
        excess = excess if limit == 1.0 else excess / limit
        # Infinity becomes NaN, so that a parameter of that size gives no matrix at all.
        excess = torch.add(excess, excess, alpha=0.0)
    excess = excess.clamp_min(1.0)
    return matrix / excess, excess


def _norm(matrix: Tensor, least: float) -> Tensor:
    return torch.linalg.vector_norm(matrix + least if least else matrix, dim=(-2, -1), keepdim=True)
