"""The scale at which a midpoint map contracts enough, as a function of tensors, so that compiled graphs can hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.tracing import exporting
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.units.lipschitz.construction import euler_pair
from lipschitz_rnn.units.lipschitz.midpoint_level import SMALLEST_SLOPE, largest_scale, midpoint_level
from lipschitz_rnn.units.lipschitz.resolvent import by_elimination


@dataclass(frozen=True)
class SlowedPair:
    """εA and εW at a scale: Euler steps of half the length contract. Rotations then cost less than with full steps, and
    together with the midpoint map of the full step this covers all shorter steps.

    Attributes:
        generator: H for the whole step, (N, N); feedback: B; restoring: εω; factor: of the half steps.
        multipliers: (2, N), free parameters of the inequality.
        step, target: ε, and the factor that the midpoint map may have.
    """

    generator: Tensor
    feedback: Tensor
    restoring: Tensor
    factor: Tensor
    multipliers: Tensor
    step: float
    target: float

    def __call__(
        self, scale: Tensor, stretch: Tensor | None = None, units: tuple[float, float] = (1.0, 1.0)
    ) -> tuple[Tensor, Tensor]:
        half = 0.5 * scale
        identity = torch.eye(len(self.generator), device=self.generator.device, dtype=self.generator.dtype)
        X = by_elimination(torch.addcmul(identity, self.generator, half))
        twice = 2.0 * units[0], 2.0 * units[1]
        root = (half * self.step).sqrt()
        return euler_pair(self.factor, X, self.feedback, root, half * self.restoring, stretch, twice)[:2]

    def stage_multipliers(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        """M₁ > ¼ and M₂ of the midpoint inequality, scaled with εω like the best multipliers of trained networks."""
        first, second = torch.tanh(self.multipliers)
        restoring = scale * self.restoring
        return 0.25 + 0.1 * torch.exp(2.0 * first) / restoring.sqrt(), 0.95 * 1.5**second / restoring

    def excess(self, scale: Tensor) -> Tensor:
        """By how much the square of the bound exceeds the target's."""
        return midpoint_level(*self(scale), *self.stage_multipliers(scale)) - self.target**2

    def largest(self) -> Tensor:
        """The largest scale at which the midpoint map contracts enough."""
        if torch.compiler.is_compiling() and not exporting():
            tensors = (self.generator, self.feedback, self.restoring, self.factor, self.multipliers)
            found: Tensor = _CompiledScale.apply(*tensors, self.step, self.target)
            return found
        return largest_scale(self.excess, self.generator)


@torch.library.custom_op("lipschitz_rnn::midpoint_scale", mutates_args=())
def midpoint_scale(
    generator: Tensor,
    feedback: Tensor,
    restoring: Tensor,
    factor: Tensor,
    multipliers: Tensor,
    step: float,
    target: float,
) -> Tensor:
    """As `SlowedPair.largest`, whose search depends on values that a graph does not have."""
    with torch.no_grad():
        return SlowedPair(generator, feedback, restoring, factor, multipliers, step, target).largest()


@midpoint_scale.register_fake
def _(generator: Tensor, *rest: Any) -> Tensor:
    return generator.new_empty(())


@torch.library.custom_op("lipschitz_rnn::midpoint_scale_backward", mutates_args=())
def midpoint_scale_backward(
    gradient: Tensor,
    scale: Tensor,
    generator: Tensor,
    feedback: Tensor,
    restoring: Tensor,
    factor: Tensor,
    multipliers: Tensor,
    step: float,
    target: float,
) -> list[Tensor]:
    """One gradient per tensor of the pair, by the implicit function excess(scale) = 0; zero where nothing is slowed."""
    tensors = (generator, feedback, restoring, factor, multipliers)
    if float(scale) >= 1.0:
        return [torch.zeros_like(each) for each in tensors]

    def excess(scale: Tensor, *own: Tensor) -> tuple[Tensor]:
        return (SlowedPair(own[0], own[1], own[2], own[3], own[4], step, target).excess(scale),)

    inputs = (scale, *tensors)
    slope, *found = vector_jacobian(excess, inputs, [True] * len(inputs), [torch.ones_like(scale)])
    assert slope is not None
    share = -gradient / slope.clamp_min(SMALLEST_SLOPE)
    return [torch.zeros_like(each) if own is None else share * own for each, own in zip(tensors, found, strict=True)]


@midpoint_scale_backward.register_fake
def _(gradient: Tensor, scale: Tensor, *rest: Any) -> list[Tensor]:
    return [torch.empty_like(each) for each in rest[:5]]


class _CompiledScale(torch.autograd.Function):
    """``lipschitz_rnn::midpoint_scale`` with its backward."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        scale: Tensor = midpoint_scale(*given)
        ctx.save_for_backward(scale, *given[:5])
        ctx.numbers = given[5:]
        return scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (*midpoint_scale_backward(gradients[0], *ctx.saved_tensors, *ctx.numbers), None, None)
