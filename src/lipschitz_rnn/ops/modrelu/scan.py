"""The scan of orthogonal units: h⁺ = modReLU(W h + u), modReLU(z) = sign(z) relu(|z| + b), hand-written gradients.

The states say all that a backward pass needs. h⁺ = ±(|z| + b) exactly where z ≠ 0 and |z| + b > 0, and 0 elsewhere, so
that the slope is 1 where h⁺ ≠ 0 and 0 where h⁺ = 0, the same that autograd finds (0 too at z = 0 and at |z| + b = 0),
and the derivative with respect to b is sign(h⁺). So the backward scan only computes d = ∂loss/∂z; the gradients of W,
u and b then follow from d for all steps at once.

A complex state is given as (Re h, Im h), and its matrix as (Re W, Im W). ModReLU then acts on the modulus of a pair,
and z is kept instead of the states, which follow from it (see ``pairs``).
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
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.ops.modrelu.gradients import gradients
from lipschitz_rnn.ops.modrelu.reference import in_pairs, reference

BACKENDS = ("auto", "torch", "triton")


def modrelu_scan(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, *, backend: str = "auto") -> Tensor:
    """States (T, B, N) of h⁺ = modReLU(W h + u), each after its step.

    Under autocast the operands of the products are in its dtype; z and the state keep that of W. Further derivatives,
    forward mode, `torch.compile` and half-precision parameters take the plain loop.

    Args:
        inputs: u, (T, B, N).
        W: (N, N).
        bias: b, (N,).
        h0: (B, N).
        backend: "triton" (float32 on CUDA), "torch" (anywhere), or "auto".

    For a complex state inputs are (Re u, Im u), (T, B, 2N), W is (Re W, Im W), one above the other, (2N, N), and h0 and
    the states are (Re h, Im h). Then modReLU(z) = z relu(|z| + b) / (|z| + 10⁻⁵) with the complex modulus, and on a GPU
    all steps are one kernel where W finds room on a multiprocessor.
    """
    _check(inputs, W, bias, h0, backend)
    dtype, compute = W.dtype, operand_dtype(W)
    h0 = h0.to(dtype)
    if inputs.dtype not in (dtype, compute):
        inputs = inputs.to(dtype)
    with without_autocast(W.device):
        if not traceless() or W.dtype not in (torch.float32, torch.float64):  # half-precision parameters: the loop
            return reference(inputs, W, bias, h0, compute)
        name = ("triton" if _has_kernels(W) else "torch") if backend == "auto" else backend
        ensemble_of_one = [tensor.unsqueeze(0) for tensor in signed(inputs, W, bias, h0)]
        save = torch.is_grad_enabled() and any(tracked(tensor) for tensor in ensemble_of_one)
        return ModReluScan.apply(*ensemble_of_one, compute, name, save)[0].squeeze(0)


class ModReluGradients(ScanGradients):
    tensors, tape = 4, 1  # inputs, W, bias, h0; the states, or z
    by_hand = staticmethod(gradients)

    @staticmethod
    def differentiable(
        tensors: Sequence[Any], grads: Sequence[Tensor | None], compute: torch.dtype
    ) -> Sequence[Tensor | None]:
        def loop(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor) -> list[Tensor]:
            return [reference(inputs, W, bias, h0, compute)]

        return vector_jacobian(loop, tensors, (True,) * len(tensors), grads)


class ModReluScan(ScanFunction):
    """S networks at once: inputs (S, T, B, N), W (S, N, N), bias (S, N), h0 (S, B, N) → states (S, T, B, N).

    Whatever vmap stacks becomes part of S, so that products are batched and kernels launched once for all. With
    ``save`` there is a second result for the backward pass: z of a state in pairs, otherwise the states again, because
    the caller may change the first in place.
    """

    gradients = ModReluGradients

    @staticmethod
    def forward(
        inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, compute: torch.dtype, backend: str, save: bool
    ) -> tuple[Tensor, Tensor]:
        paired = in_pairs(W)
        if backend == "triton" and paired:
            from lipschitz_rnn.ops.modrelu.triton import launch as kernels_of_pairs

            return kernels_of_pairs.scan_forward(inputs, W, bias, h0, compute, save)
        kept: list[Tensor] | None = [] if save and paired else None
        if backend == "triton":
            from lipschitz_rnn.ops.modrelu.triton import kernels as kernels

            states = kernels.scan_forward(inputs, W, bias, h0, compute)
        elif len(W) == 1:  # plain matrices: less work around each product, and the bits that the loop itself gives
            states = reference(inputs[0], W[0], bias[0], h0[0], compute, kept).unsqueeze_(0)
        else:
            states = reference(inputs, W, bias, h0, compute, kept)
        if kept is not None:
            return states, torch.stack(kept, -3).view(states.shape)
        return (states.clone(), states) if save else (states, states.new_empty((len(states), 0)))


def _has_kernels(W: Tensor) -> bool:
    if not W.is_cuda or W.dtype != torch.float32 or not support.triton_installed():
        return False
    return support.gpu_limits(W.device)[0] is None


def _check(inputs: Tensor, W: Tensor, bias: Tensor, h0: Tensor, backend: str) -> None:
    if inputs.dim() != 3 or len(inputs) == 0:
        raise ValueError(f"inputs has shape {tuple(inputs.shape)}; it must be (T, B, N) with at least one step")
    _, B, width = inputs.shape
    require_floating("W", W)
    if W.dim() == 2 and len(W) == 2 * W.shape[1] and len(W) == width:
        size, meaning = W.shape[1], "one number for each unit of a complex state"
    else:
        size, meaning = width, "one number for each unit"
        require_shape("W", W, (size, size), "one row and one column for each unit of inputs")
    require_shape("bias", bias, (size,), meaning)
    require_like("bias", bias, "W", W)
    require_shape("h0", h0, (B, width), "one state for each sample of inputs")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "triton" and not _has_kernels(W) and not (support.interpreting() and W.dtype == torch.float32):
        raise ValueError("backend 'triton' serves float32 on NVIDIA GPUs of compute capability 8.0; use backend='auto'")
