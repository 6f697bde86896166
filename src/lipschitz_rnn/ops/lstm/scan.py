"""The scan of an LSTM: z = W h + U x + b, c⁺ = f ⊙ c + i ⊙ g, h⁺ = o ⊙ tanh(c⁺), with hand-written gradients.

i, f, o are the sigmoids and g the tanh of z's four parts, in the order of `torch.nn.LSTM`. The backward scan only finds
d = ∂loss/∂z of every step; the gradients of W, U, b and x follow from d at once for all steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import operand_dtype, without_autocast
from lipschitz_rnn.ops.common.functions import EnsembleFunction, hand_written_gradients
from lipschitz_rnn.ops.common.tracing import traceless, tracked
from lipschitz_rnn.ops.common.triton import support
from lipschitz_rnn.ops.common.validation import require_floating, require_like, require_shape, require_tensor
from lipschitz_rnn.ops.common.vjp import vector_jacobian
from lipschitz_rnn.ops.lstm.gradients import gradients, scan_forward
from lipschitz_rnn.ops.lstm.reference import reference

BACKENDS = ("auto", "torch", "triton")
TENSORS = 6  # x, U, W, b, h0, c0
GRADS = 3  # of the states, of the last h, of the last c
MOST_UNITS = 128  # whose four matrices one multiprocessor holds in half precision


def lstm_scan(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, *, backend: str = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """States (T, B, N), each after its step, last h and last c, (B, N).

    Under autocast the operands of the products, and the states that come back, are in its dtype; h and c themselves are
    float32, like the last ones returned. In half precision on a GPU all of time is one kernel, for any number of
    networks that `torch.func.vmap` stacks. Further derivatives, forward mode and `torch.compile` take the plain loop.

    Args:
        x: (T, B, p).
        U, W, b: (4N, p), (4N, N) and (4N,), the rows of i, f, g and o in this order; b is the sum of PyTorch's two.
        h0, c0: (B, N).
        backend: "triton" (half precision on CUDA, N ≤ 128), "torch" (anywhere), or "auto".
    """
    _check(x, U, W, b, h0, c0, backend)
    dtype, compute = W.dtype, operand_dtype(W)
    if x.dtype not in (dtype, compute):
        x = x.to(dtype)
    tensors = (x, U, W, b, h0.to(dtype), c0.to(dtype))
    with without_autocast(W.device):
        if not traceless():
            return reference(*tensors, compute)
        if backend == "auto":
            backend = "triton" if W.is_cuda and x.shape[1] > 0 and obstacle(W, compute) is None else "torch"
        elif backend == "triton" and (reason := obstacle(W, compute)) is not None:
            raise ValueError(f"backend 'triton' cannot serve this call: {reason}. Use backend='auto'")
        save = torch.is_grad_enabled() and any(tracked(tensor) for tensor in tensors)
        ensemble_of_one = [tensor.unsqueeze(0) for tensor in tensors]
        states, last_h, last_c, _, _ = LstmScan.apply(*ensemble_of_one, compute, backend, save)
        return states.squeeze(0), last_h.squeeze(0), last_c.squeeze(0)


class LstmScan(EnsembleFunction):
    """S networks at once: x (S, T, B, p), U (S, 4N, p), W (S, 4N, N), b (S, 4N), h0 and c0 (S, B, N).

    Whatever vmap stacks becomes part of S, so that products are batched and kernels launched once for all. Besides
    states (S, T, B, N) and last h and c, (S, B, N), it returns what backward needs (see ``scan_forward``).
    """

    @staticmethod
    def forward(
        x: Tensor,
        U: Tensor,
        W: Tensor,
        b: Tensor,
        h0: Tensor,
        c0: Tensor,
        compute: torch.dtype,
        backend: str,
        save: bool,
    ) -> tuple[Tensor, ...]:
        if backend == "triton":
            from lipschitz_rnn.ops.lstm.triton import launch as kernels

            tape, z, last_h, last_c = kernels.scan_forward(x, U, W, b, h0, c0, compute, save)
        else:
            tape, z, last_h, last_c = scan_forward(x, U, W, b, h0, c0, compute)
        # A copy, which the caller may change in place: the tape is for the backward pass.
        states = tape[:, 1:, 0].clone(memory_format=torch.contiguous_format)
        return states, last_h, last_c, tape, z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tape, z = output[-2:]
        ctx.mark_non_differentiable(tape, z)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], tape, z)
        ctx.options = inputs[TENSORS : TENSORS + 2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[:TENSORS]
        if all(grad is None for grad in grads[:GRADS]):
            return (None,) * (TENSORS + 3)
        args = (*ctx.saved_tensors, *grads[:GRADS], *ctx.options)
        return (*hand_written_gradients(gradients, LstmScanBackward, needs, args), None, None, None)


class LstmScanBackward(EnsembleFunction):
    """The gradients as a function that can be differentiated again: through the plain loops, there and back."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor | None, ...]:
        return gradients((True,) * TENSORS, *args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:TENSORS], *inputs[TENSORS + 2 : TENSORS + 2 + GRADS])
        ctx.compute = inputs[-2]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        def first(
            x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, *grads: Any
        ) -> tuple[Tensor | None, ...]:
            tape, z, _, _ = scan_forward(x, U, W, b, h0, c0, ctx.compute)
            options = (*grads, ctx.compute, "torch")
            return gradients((True,) * TENSORS, x, U, W, b, h0, c0, tape, z, *options)

        needs = (*ctx.needs_input_grad[:TENSORS], *ctx.needs_input_grad[TENSORS + 2 : TENSORS + 2 + GRADS])
        with without_autocast(ctx.saved_tensors[0].device):
            found = vector_jacobian(first, ctx.saved_tensors, needs, cotangents)
        # Tape and z are functions of the tensors before them: their contribution is in the total derivative of those.
        return (*found[:TENSORS], None, None, *found[TENSORS:], None, None)


def obstacle(W: Tensor, compute: torch.dtype) -> str | None:
    """Why the kernels cannot serve this call, or None if they can."""
    N = W.shape[-1]
    if compute not in (torch.bfloat16, torch.float16):
        return f"it has no kernels for products in {compute}"
    if N > MOST_UNITS:
        return f"the hidden size is {N}, and its kernels go up to {MOST_UNITS}"
    if not support.triton_installed():
        return "Triton is not installed (pip install triton)"
    if W.device.type == "cpu" and support.interpreting():
        return None
    if not W.is_cuda:
        return f"the tensors are on {W.device}, and it needs a CUDA device"
    lacking, _ = support.gpu_limits(W.device)
    if lacking is not None:
        return lacking
    from lipschitz_rnn.ops.common.triton.device import shared_memory
    from lipschitz_rnn.ops.lstm.triton.launch import shared_bytes

    if shared_bytes(N) > shared_memory(W.device):
        return f"the matrices of {N} units need {shared_bytes(N)} bytes of shared memory, more than {W.device} has"
    return None


def _check(x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, backend: str) -> None:
    named = {"x": x, "U": U, "W": W, "b": b, "h0": h0, "c0": c0}
    for name, tensor in named.items():
        require_floating(name, require_tensor(name, tensor))
    if x.dim() != 3 or len(x) == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be (T, B, p) with at least one step")
    if W.dim() != 2 or W.shape[0] != 4 * W.shape[1] or W.shape[1] == 0:
        raise ValueError(f"W has shape {tuple(W.shape)}; it must be (4N, N), the rows of i, f, g and o")
    (_, B, p), N = x.shape, W.shape[1]
    require_shape("U", U, (4 * N, p), "a row for each of W and a column for each feature of x")
    require_shape("b", b, (4 * N,), "one number for each row of W")
    for name in ("h0", "c0"):
        require_shape(name, named[name], (B, N), "one state for each sample of x")
    for name in ("U", "b"):
        require_like(name, named[name], "W", W)
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
