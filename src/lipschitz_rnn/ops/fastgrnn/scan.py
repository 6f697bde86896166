"""The scan of FastGRNN, with hand-written gradients.

s = W h + u, z = sigmoid(s + b_z), g = tanh(s + b_g), h⁺ = (ζ(1 − z) + ν) ⊙ g + z ⊙ h: both gates share one product. The
states and s say all that a backward pass needs. It finds d = ∂loss/∂s of every step and the sums that are the gradients
of b_z, b_g, ζ and ν; the gradient of W then follows from d for all steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import operand_dtype, without_autocast
from lipschitz_rnn.ops.common.functions import EnsembleFunction, hand_written_gradients
from lipschitz_rnn.ops.common.tracing import traceless, tracked
from lipschitz_rnn.ops.common.triton import support
from lipschitz_rnn.ops.common.validation import require_floating, require_like, require_shape
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.ops.fastgrnn.gradients import gradients
from lipschitz_rnn.ops.fastgrnn.reference import reference

BACKENDS = ("auto", "torch", "triton")
TENSORS = 7  # inputs, W, gate_bias, update_bias, zeta, nu, h0
TAPE = 2  # states and s


def fastgrnn_scan(
    inputs: Tensor,
    W: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    h0: Tensor,
    *,
    backend: str = "auto",
) -> Tensor:
    """States (T, B, N) of h⁺ = (ζ(1 − z) + ν) ⊙ g + z ⊙ h, each after its step.

    Under autocast the operands of the products are in its dtype; s and the state keep that of W. Further derivatives,
    forward mode, `torch.compile` and half-precision parameters take the plain loop.

    Args:
        inputs: u, (T, B, N).
        W: (N, N).
        gate_bias, update_bias: b_z and b_g, (N,).
        zeta, nu: ζ and ν, tensors without axes.
        h0: (B, N).
        backend: "triton" (float32 on CUDA), "torch" (anywhere), or "auto".
    """
    _check(inputs, W, gate_bias, update_bias, zeta, nu, h0, backend)
    dtype, compute = W.dtype, operand_dtype(W)
    if inputs.dtype not in (dtype, compute):
        inputs = inputs.to(dtype)
    tensors = (inputs, W, gate_bias, update_bias, zeta, nu, h0.to(dtype))
    with without_autocast(W.device):
        if not traceless() or W.dtype not in (torch.float32, torch.float64):  # half-precision parameters: the loop
            return reference(*tensors, compute)
        name = ("triton" if _has_kernels(W) else "torch") if backend == "auto" else backend
        ensemble_of_one = [tensor.unsqueeze(0) for tensor in tensors]
        save = torch.is_grad_enabled() and any(tracked(tensor) for tensor in ensemble_of_one)
        return FastGRNNScan.apply(*ensemble_of_one, compute, name, save)[0].squeeze(0)


class FastGRNNScan(EnsembleFunction):
    """S networks at once: inputs (S, T, B, N), W (S, N, N), biases (S, N), ζ and ν (S,), h0 (S, B, N).

    Whatever vmap stacks becomes part of S, so that products are batched and kernels launched once for all. Besides the
    states (S, T, B, N), with ``save`` it returns the tape: the states again, because the caller may change the first in
    place, and s.
    """

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        tensors, (compute, backend, save) = args[:TENSORS], args[TENSORS:]
        if backend == "triton":
            from lipschitz_rnn.ops.fastgrnn.triton import kernels as kernels

            states, sums = kernels.scan_forward(*_joined(tensors, compute, save))
        else:
            kept: list[Tensor] | None = [] if save else None
            if len(tensors[1]) == 1:  # plain matrices: less work around each product, and the bits of the loop itself
                states = reference(*_joined([tensor[0] for tensor in tensors], compute, kept)).unsqueeze_(0)
            else:
                states = reference(*_joined(tensors, compute, kept))
            sums = states.new_empty((len(states), 0)) if kept is None else torch.stack(kept, -3).view(states.shape)
        return (states.clone(), states, sums) if save else (states, states.new_empty((len(states), 0)), sums)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], *output[1:])
        ctx.options = inputs[TENSORS:-1]

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_states is None:
            return (None,) * (TENSORS + 3)
        needs = ctx.needs_input_grad[:TENSORS]
        args = (*ctx.saved_tensors, grad_states, *ctx.options)
        return (*hand_written_gradients(gradients, FastGRNNScanBackward, needs, args), None, None, None)


class FastGRNNScanBackward(EnsembleFunction):
    """The gradients as a function that can be differentiated again: its own derivative is that of the plain loop."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor | None, ...]:
        return gradients((True,) * TENSORS, *args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], inputs[TENSORS + TAPE])
        ctx.compute = inputs[-2]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        def loop(*tensors: Any) -> list[Tensor]:
            return [reference(*_joined(tensors, ctx.compute))]

        def first(*inputs: Any) -> list[Tensor | None]:
            return vector_jacobian(loop, inputs[:TENSORS], (True,) * TENSORS, inputs[TENSORS:])

        needs = (*ctx.needs_input_grad[:TENSORS], ctx.needs_input_grad[TENSORS + TAPE])
        with without_autocast(ctx.saved_tensors[0].device):
            *found, of_grads = vector_jacobian(first, ctx.saved_tensors, needs, cotangents)
        # The tape is a function of the tensors before it: its contribution is in the total derivative of those.
        return (*found, None, None, of_grads, None, None)


def _joined(tensors: Sequence[Tensor], *options: Any) -> tuple[Any, ...]:
    return (*tensors, *options)


def _has_kernels(W: Tensor) -> bool:
    if not W.is_cuda or W.dtype != torch.float32 or not support.triton_installed():
        return False
    return support.gpu_limits(W.device)[0] is None


def _check(
    inputs: Tensor,
    W: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    h0: Tensor,
    backend: str,
) -> None:
    if inputs.dim() != 3 or len(inputs) == 0:
        raise ValueError(f"inputs has shape {tuple(inputs.shape)}; it must be (T, B, N) with at least one step")
    _, B, size = inputs.shape
    require_floating("W", W)
    require_shape("W", W, (size, size), "one row and one column for each unit of inputs")
    for name, tensor in {"gate_bias": gate_bias, "update_bias": update_bias}.items():
        require_shape(name, tensor, (size,), "one number for each unit")
        require_like(name, tensor, "W", W)
    for name, tensor in {"zeta": zeta, "nu": nu}.items():
        require_shape(name, tensor, (), "one number")
        require_like(name, tensor, "W", W)
    require_shape("h0", h0, (B, size), "one state for each sample of inputs")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "triton" and not _has_kernels(W) and not (support.interpreting() and W.dtype == torch.float32):
        raise ValueError("backend 'triton' serves float32 on NVIDIA GPUs of compute capability 8.0; use backend='auto'")
