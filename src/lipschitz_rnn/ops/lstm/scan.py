"""The scan of an LSTM: z = W h + U x + b, c⁺ = f ⊙ c + i ⊙ g, h⁺ = o ⊙ tanh(c⁺), with hand-written gradients.

i, f, o are the sigmoids and g the tanh of z's four parts, in the order of `torch.nn.LSTM`. The backward scan only finds
d = ∂loss/∂z of every step; the gradients of W, U, b and x follow from d at once for all steps.
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
from lipschitz_rnn.ops.common.validation import require_floating, require_like, require_shape, require_tensor
from lipschitz_rnn.ops.lstm.gradients import gradients, scan_forward
from lipschitz_rnn.ops.lstm.reference import reference

BACKENDS = ("auto", "torch", "triton")
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
        ensemble_of_one = [tensor.unsqueeze(0) for tensor in signed(*tensors)]
        states, last_h, last_c, _, _ = LstmScan.apply(*ensemble_of_one, compute, backend, save)
        return states.squeeze(0), last_h.squeeze(0), last_c.squeeze(0)


class LstmGradients(ScanGradients):
    tensors, tape = 6, 2  # x, U, W, b, h0, c0; the tape and z
    by_hand = staticmethod(gradients)

    @staticmethod
    def differentiable(
        tensors: Sequence[Any], grads: Sequence[Tensor | None], compute: torch.dtype
    ) -> Sequence[Tensor | None]:
        x, U, W, b, h0, c0 = tensors
        of_states, of_h, of_c = grads
        tape, z, _, _ = scan_forward(x, U, W, b, h0, c0, compute)
        needs = (True,) * len(tensors)
        return gradients(needs, x, U, W, b, h0, c0, tape, z, of_states, of_h, of_c, compute, "torch")


class LstmScan(ScanFunction):
    """S networks at once: x (S, T, B, p), U (S, 4N, p), W (S, 4N, N), b (S, 4N), h0 and c0 (S, B, N).

    Whatever vmap stacks becomes part of S, so that products are batched and kernels launched once for all. Besides
    states (S, T, B, N) and last h and c, (S, B, N), it returns what backward needs (see ``scan_forward``).
    """

    gradients, results = LstmGradients, 3

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
