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
from lipschitz_rnn.ops.common.functions import ScanFunction, ScanGradients
from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.common.tracing import traceless, tracked
from lipschitz_rnn.ops.common.triton import support
from lipschitz_rnn.ops.common.validation import require_floating, require_like, require_shape
from lipschitz_rnn.ops.fastgrnn.gradients import gradients
from lipschitz_rnn.ops.fastgrnn.reference import FastGRNN, reference

BACKENDS = ("auto", "torch", "triton")


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
    given = FastGRNN(inputs, W, gate_bias, update_bias, zeta, nu, h0)
    _check(given, backend)
    dtype, compute = W.dtype, operand_dtype(W)
    if inputs.dtype not in (dtype, compute):
        inputs = inputs.to(dtype)
    given = given._replace(inputs=inputs, h0=h0.to(dtype))
    with without_autocast(W.device):
        if not traceless() or W.dtype not in (torch.float32, torch.float64):  # half-precision parameters: the loop
            return reference(given, compute)
        name = ("triton" if _has_kernels(W) else "torch") if backend == "auto" else backend
        ensemble_of_one = [tensor.unsqueeze(0) for tensor in signed(*given)]
        save = torch.is_grad_enabled() and any(tracked(tensor) for tensor in ensemble_of_one)
        return FastGRNNScan.apply(*ensemble_of_one, compute, name, save)[0].squeeze(0)


class FastGRNNGradients(ScanGradients):
    tensors, tape = 7, 2  # those of a FastGRNN; the states and s
    by_hand = staticmethod(gradients)

    @staticmethod
    def differentiable(
        tensors: Sequence[Any], grads: Sequence[Tensor | None], compute: torch.dtype
    ) -> Sequence[Tensor | None]:
        # Not torch.func.vjp of the loop: PyTorch fails on one such function inside another where both are curved.
        kept: list[Tensor] = []
        states = reference(FastGRNN(*tensors), compute, kept)
        return gradients((True,) * len(tensors), *tensors, states, torch.stack(kept, -3), *grads, compute, "torch")


class FastGRNNScan(ScanFunction):
    """S networks at once: the tensors of a FastGRNN with an axis S, and the states (S, T, B, N).

    Whatever vmap stacks becomes part of S, so that products are batched and kernels launched once for all. Besides the
    states, with ``save`` it returns the tape: the states again, because the caller may change the first in place, and
    s.
    """

    gradients = FastGRNNGradients

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, compute, backend, save = args
        given = FastGRNN(*tensors)
        if backend == "triton":
            from lipschitz_rnn.ops.fastgrnn.triton import kernels as kernels

            states, sums = kernels.scan_forward(given, compute, save)
        else:
            kept: list[Tensor] | None = [] if save else None
            if len(given.W) == 1:  # plain matrices: less work around each product, and the bits of the loop itself
                states = reference(FastGRNN(*(tensor[0] for tensor in given)), compute, kept).unsqueeze_(0)
            else:
                states = reference(given, compute, kept)
            sums = states.new_empty((len(states), 0)) if kept is None else torch.stack(kept, -3).view(states.shape)
        return (states.clone(), states, sums) if save else (states, states.new_empty((len(states), 0)), sums)


def _has_kernels(W: Tensor) -> bool:
    if not W.is_cuda or W.dtype != torch.float32 or not support.triton_installed():
        return False
    return support.gpu_limits(W.device)[0] is None


def _check(given: FastGRNN, backend: str) -> None:
    inputs, W, *_ = given
    if inputs.dim() != 3 or len(inputs) == 0:
        raise ValueError(f"inputs has shape {tuple(inputs.shape)}; it must be (T, B, N) with at least one step")
    _, B, size = inputs.shape
    require_floating("W", W)
    require_shape("W", W, (size, size), "one row and one column for each unit of inputs")
    for name in ("gate_bias", "update_bias"):
        require_shape(name, getattr(given, name), (size,), "one number for each unit")
    for name in ("zeta", "nu"):
        require_shape(name, getattr(given, name), (), "one number")
    for name in ("gate_bias", "update_bias", "zeta", "nu"):
        require_like(name, getattr(given, name), "W", W)
    require_shape("h0", given.h0, (B, size), "one state for each sample of inputs")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "triton" and not _has_kernels(W) and not (support.interpreting() and W.dtype == torch.float32):
        raise ValueError("backend 'triton' serves float32 on NVIDIA GPUs of compute capability 8.0; use backend='auto'")
