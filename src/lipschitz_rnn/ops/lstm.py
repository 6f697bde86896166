"""The scan of an LSTM: z = W h + U x + b, c⁺ = f ⊙ c + i ⊙ g, h⁺ = o ⊙ tanh(c⁺), gradients by hand.

i, f, o are the sigmoids and g the tanh of z's four parts, in the order of `torch.nn.LSTM`. The walk back only finds
d = ∂loss/∂z of every step; the gradients of W, U, b and x follow from d at once for all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.checks import require_floating, require_like, require_shape, require_tensor
from lipschitz_rnn.ops.differentiation import vector_jacobian
from lipschitz_rnn.ops.problem import matmul, operand_dtype, state_dtype, tracked, without_autocast
from lipschitz_rnn.ops.registration import fold, forward_mode, plain_eager, traceless, unfold
from lipschitz_rnn.ops.triton import support

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


def gates(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    i, f, g, o = z.chunk(4, dim=-1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def steps(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, compute: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """z, h and c of one step after another, differentiable as often as one likes: x (…, T, B, p), W (…, 4N, N)."""
    dtype = state_dtype(W.dtype)
    onward = W.mT
    if x.shape[-1] == 1:  # no matrix product: it keeps its digits
        drive = x.to(dtype) * U.mT.unsqueeze(-3).to(dtype)
    else:
        drive = _of_every_step(x, U.mT, compute, dtype)
    h, c = h0.to(dtype), c0.to(dtype)
    for u in (drive + b[..., None, None, :].to(dtype)).unbind(-3):
        z = _product(h, onward, compute, dtype) + u
        i, f, g, o = gates(z)
        c = f * c + i * g
        h = o * c.tanh()
        yield z, h, c


def reference(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, compute: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The plain loop: what every other way here has to agree with."""
    _, states, cells = zip(*steps(x, U, W, b, h0, c0, compute), strict=True)
    return torch.stack(states, dim=-3).to(compute), states[-1].to(W.dtype), cells[-1].to(W.dtype)


class LstmScan(torch.autograd.Function):
    """S networks at once: x (S, T, B, p), U (S, 4N, p), W (S, 4N, N), b (S, 4N), h0 and c0 (S, B, N).

    Whatever vmap stacks becomes part of S, so that products are batched and kernels launched once for all. Beside
    states (S, T, B, N) and last h and c, (S, B, N), it returns what backward needs (see ``walk_forward``).
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
            from lipschitz_rnn.ops.triton import lstm as kernels

            tape, z, last_h, last_c = kernels.walk_forward(x, U, W, b, h0, c0, compute, save)
        else:
            tape, z, last_h, last_c = walk_forward(x, U, W, b, h0, c0, compute)
        return tape[:, 1:, 0], last_h, last_c, tape, z

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
        with without_autocast(ctx.saved_tensors[0].device):
            if plain_eager() and not torch.is_grad_enabled() and not forward_mode():
                found = gradients(needs, *args)
            else:
                found = LstmScanBackward.apply(*args)
        return (*(gradient if need else None for gradient, need in zip(found, needs, strict=True)), None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        folded = [fold(arg, dim, info.batch_size) for arg, dim in zip(args, in_dims, strict=True)]
        found = LstmScan.apply(*folded)
        return tuple(unfold(output, info.batch_size) for output in found), (0,) * len(found)


class LstmScanBackward(torch.autograd.Function):
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
            tape, z, _, _ = walk_forward(x, U, W, b, h0, c0, ctx.compute)
            options = (*grads, ctx.compute, "torch")
            return gradients((True,) * TENSORS, x, U, W, b, h0, c0, tape, z, *options)

        needs = (*ctx.needs_input_grad[:TENSORS], *ctx.needs_input_grad[TENSORS + 2 : TENSORS + 2 + GRADS])
        with without_autocast(ctx.saved_tensors[0].device):
            found = vector_jacobian(first, ctx.saved_tensors, needs, cotangents)
        # Tape and z are functions of the tensors before them: their share is in the total derivative of those.
        return (*found[:TENSORS], None, None, *found[TENSORS:], None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        folded = [fold(arg, dim, info.batch_size) for arg, dim in zip(args, in_dims, strict=True)]
        found = LstmScanBackward.apply(*folded)
        return tuple(unfold(gradient, info.batch_size) for gradient in found), (0,) * TENSORS


def walk_forward(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, compute: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tape, (S, T + 1, 2, B, N), with h and c before all steps and after each; z, (S, T, B, 4N); last h and c."""
    z, states, cells = zip(*steps(x, U, W, b, h0, c0, compute), strict=True)
    first = torch.stack((h0, c0), dim=1).to(compute)
    rest = (torch.stack(pair, dim=1).to(compute) for pair in zip(states, cells, strict=True))
    tape = torch.stack((first, *rest), dim=1)
    return tape, torch.stack(z, dim=1).to(compute), states[-1].to(W.dtype), cells[-1].to(W.dtype)


def gradients(
    needs: Sequence[bool],
    x: Tensor,
    U: Tensor,
    W: Tensor,
    b: Tensor,
    h0: Tensor,
    c0: Tensor,
    tape: Tensor,
    z: Tensor,
    grad_states: Tensor | None,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    compute: torch.dtype,
    backend: str,
) -> tuple[Tensor | None, ...]:
    """∂x = Uᵀ d, ∂U = Σ d xᵀ, ∂W = Σ d hᵀ with the h before a step, ∂b = Σ d, ∂h0, ∂c0; products only where needed."""
    dtype = state_dtype(W.dtype)
    of_input: Tensor | None = None
    of_U: Tensor | None
    if backend == "triton":
        from lipschitz_rnn.ops.triton import lstm as kernels

        d, of_h0, of_c0, of_input = kernels.walk_backward(x, W, tape, z, grad_states, grad_h, grad_c)
        of_W = kernels.matrix_gradient(d, tape, W.dtype) if needs[2] else None
    else:
        d, of_h0, of_c0 = walk_backward(W, tape, z, grad_states, grad_h, grad_c, compute)
        of_W = _over_time(d, tape[:, :-1, 0], compute, W.dtype) if needs[2] else None
    of_x = _of_every_step(d, U, compute, x.dtype) if needs[0] else None
    if of_input is not None:
        of_U, of_b = of_input[:, 0].unsqueeze(-1).to(U.dtype), of_input[:, 1].to(b.dtype)
    else:
        of_U = _over_time(d, x, compute, U.dtype) if needs[1] else None
        of_b = d.sum((1, 2), dtype=dtype).to(b.dtype)
    return of_x, of_U, of_W, of_b, of_h0, of_c0


def walk_backward(
    W: Tensor,
    tape: Tensor,
    z: Tensor,
    grad_states: Tensor | None,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """d of every step, (S, T, B, 4N) in ``compute``, ∂h0 and ∂c0, (S, B, N)."""
    dtype = state_dtype(W.dtype)
    cells = tape[:, :, 1].to(dtype).unbind(1)
    of_h, of_c = (torch.zeros_like(cells[0]) if grad is None else grad.to(dtype) for grad in (grad_h, grad_c))
    found: list[Tensor] = []
    for t in reversed(range(z.shape[1])):
        if grad_states is not None:
            of_h = of_h + grad_states[:, t]
        i, f, g, o = gates(z[:, t].to(dtype))
        s = cells[t + 1].tanh()
        of_c = of_c + of_h * o * (1 - s * s)
        parts = (of_c * g * i * (1 - i), of_c * cells[t] * f * (1 - f), of_c * i * (1 - g * g), of_h * s * o * (1 - o))
        found.append(torch.cat(parts, dim=-1).to(compute))
        of_h = _product(found[-1], W, compute, dtype)
        of_c = of_c * f
    return torch.stack(found[::-1], dim=1), of_h.to(W.dtype), of_c.to(W.dtype)


def _product(left: Tensor, right: Tensor, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    return matmul(left.to(compute), right.to(compute)).to(dtype)


def _of_every_step(sequence: Tensor, M: Tensor, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    """(…, T, B, n) and (…, n, m) → (…, T, B, m), as one product for each network."""
    return _product(sequence.flatten(-3, -2), M, compute, dtype).unflatten(-2, sequence.shape[-3:-1])


def _over_time(d: Tensor, other: Tensor, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Σ d otherᵀ over steps and samples: (S, T, B, 4N) and (S, T, B, n) → (S, 4N, n)."""
    return _product(d.flatten(1, 2).mT, other.flatten(1, 2), compute, dtype)


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
    from lipschitz_rnn.ops.triton.lstm import shared_bytes
    from lipschitz_rnn.ops.triton.plan import shared_memory

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
