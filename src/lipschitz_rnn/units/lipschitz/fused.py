"""A contracting pair as one operation with its own gradient, for any number of networks at once.

The gradient reuses the inverse, so it costs five products and no second elimination. Second derivatives, forward-mode
derivatives and traced programs use the formulas of ``construction.py`` as PyTorch differentiates them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.tracing import exporting, forward_mode, plain_eager
from lipschitz_rnn.units.lipschitz.construction import RESTORING_RANGE, Numbers, build, plus_product
from lipschitz_rnn.units.lipschitz.resolvent import by_elimination, inverse, traced_inverse

_PARAMETERS = 5


def pair_matrices(numbers: Numbers, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    """A and W, (N, N), from rotation, feedback, leak, restoring and scale."""
    if torch.compiler.is_compiling():
        return build(numbers, *parameters, inverse=by_elimination if exporting() else traced_inverse)[:2]
    if exporting() or forward_mode():
        return build(numbers, *parameters)[:2]
    if plain_eager() and not torch.is_grad_enabled():
        return build(numbers, *parameters, inverse=inverse)[:2]
    if plain_eager():
        found: tuple[Tensor, Tensor] = _EagerPair.apply(numbers, *parameters)
        return found
    A, W = _FusedPair.apply(numbers, *parameters)[:2]
    return A, W


def _computed(numbers: Numbers, parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A and W, and what :func:`_gradients` needs."""
    A, W, parts, X, share, pair = build(numbers, *parameters, inverse=inverse)
    rows: Any = pair.rows
    return A, W, *parts, X, share, pair.turned, pair.fed, *rows, pair.room


def _pulled_back(ctx: Any, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    numbers: Numbers = ctx.numbers
    kept = ctx.saved_tensors  # once: torch.utils.checkpoint computes them for a single reading
    parameters, saved = kept[:_PARAMETERS], kept[_PARAMETERS:]
    G_A, G_W = (
        torch.zeros_like(parameters[0], dtype=numbers.dtype) if gradient is None else gradient
        for gradient in gradients[:2]
    )
    if torch.is_grad_enabled() or not saved:  # second derivatives follow
        pullback: Any = torch.func.vjp(lambda *own: build(numbers, *own)[:2], *parameters)[1]
        return None, *pullback((G_A, G_W))
    results = _gradients(numbers, G_A, G_W.double(), *saved)
    return None, *[gradient.to(parameter.dtype) for gradient, parameter in zip(results, parameters, strict=True)]


class _EagerPair(torch.autograd.Function):
    """The plain case. A function that vmap accepts takes PyTorch 0.05 ms more to call."""

    @staticmethod
    def forward(ctx: Any, numbers: Numbers, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        A, W, *saved = _computed(numbers, parameters)
        ctx.numbers = numbers
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*parameters, *saved)
        return A, W

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _pulled_back(ctx, gradients)


class _FusedPair(torch.autograd.Function):
    """Under vmap the stacked parameters of all networks arrive here as one batch."""

    @staticmethod
    def forward(numbers: Numbers, *parameters: Tensor) -> tuple[Tensor, ...]:
        return _computed(numbers, parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.numbers, *parameters = inputs
        _, _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*parameters, *saved)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _pulled_back(ctx, gradients)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], numbers: Numbers, *parameters: Tensor) -> tuple[Any, int]:
        stacked = [
            value.expand(info.batch_size, *value.shape) if axis is None else value.movedim(axis, 0)
            for value, axis in zip(parameters, in_dims[1:], strict=True)
        ]
        # The inner call keeps the rest. A gradient taken inside vmap has only these, and differentiates the formulas.
        return _FusedPair.apply(numbers, *stacked)[:2], 0


def _gradients(
    numbers: Numbers,
    G_A: Tensor,
    G_W: Tensor,
    rotation: Tensor,
    rotation_excess: Tensor,
    feedback: Tensor,
    feedback_excess: Tensor,
    shares: Tensor,
    restoring: Tensor,
    inverse: Tensor,
    spread_share: Tensor,
    turned: Tensor,
    fed: Tensor,
    row_A: Tensor,
    row_fed: Tensor,
    row_turned: Tensor,
    room: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of the five parameters from those of A and W, with what :func:`build` computed.

    With X = (I + H)⁻¹, Y = X diag(t) and V = BY: A = aY + …, W = bV − 2cY + … with rows a, b, c that contain 1/t. The
    gradient of X times Xᵀ is that of Y times Yᵀ, so the gradient of I + H, −Xᵀ (∂X) Xᵀ, needs no ∂X.
    Every product with a float64 tensor is one in float64, so that G_A needs no copy.
    """
    low, _ = numbers.slopes
    if low != 0.0:
        G_W = G_W - (low / numbers.alpha) * G_A.double()
    G_V = row_fed * G_W
    direct = torch.addcmul(row_A * G_A, row_turned, G_W, value=-2.0)  # of Y, without the way through V
    from_fed, through_turned = G_V * fed, (G_W * turned).sum(-1)
    weights = torch.addcmul(from_fed, direct, turned)
    G_log = weights.sum(-2) - weights.sum(-1)

    # b grows with the square root of ω(2 − ω), and 2c with ω, as a constant times a. ω is on the diagonal of W as well.
    for_A, for_W = numbers.units
    on_diagonal = (RESTORING_RANGE * for_W * numbers.factor) * G_W.diagonal(dim1=-2, dim2=-1)
    G_share = torch.addcmul(on_diagonal, row_A.squeeze(-1), through_turned, value=-RESTORING_RANGE * for_W / for_A)
    G_share = torch.addcdiv(G_share, (1.0 - restoring) * from_fed.sum(-1), room, value=RESTORING_RANGE)

    G_feedback = G_V @ turned.mT
    inner = plus_product(direct @ turned.mT, feedback.mT, G_feedback, beta=-1.0, alpha=-1.0)
    G_M = inverse.mT @ inner
    step = numbers.step
    G_feedback = plus_product(G_feedback, feedback, G_M + G_M.mT, alpha=0.5 * step)
    G_rotation = (0.25 * step) * (G_M - G_M.mT)
    G_leak = G_M.diagonal(dim1=-2, dim2=-1)
    leak_share, restoring_share = shares.unbind(-2)
    return (
        _before_limit(G_rotation, rotation, rotation_excess, numbers.rotation_limit),
        _before_limit(G_feedback, feedback, feedback_excess, numbers.feedback_limit),
        torch.ops.aten.sigmoid_backward(G_leak, leak_share),
        torch.ops.aten.sigmoid_backward(G_share, restoring_share),
        torch.ops.aten.tanh_backward(G_log, spread_share),
    )


def _before_limit(gradient: Tensor, matrix: Tensor, excess: Tensor, limit: float) -> Tensor:
    """The gradient of a matrix before it was scaled down: the part along the matrix itself is lost there."""
    along = (gradient * matrix).sum(dim=(-2, -1), keepdim=True)
    lost = torch.ops.aten.threshold_backward(along, excess, 1.0)  # nothing where the excess is 1
    return torch.addcmul(gradient, matrix, lost, value=-1.0 / limit**2) / excess
