"""A layer with symmetric-skew matrices as one operation: from its parameters and inputs to its states, and back.

For plain eager code on resident or compiled kernels, where Python and launches take longer than a short scan: one node
of the graph, on a GPU six launches, and nothing that is asked twice. Everything else goes through ``lipschitz_scan``,
with the same results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.precision import float32_setting
from lipschitz_rnn.ops.common.tracing import older_vmap, plain_eager
from lipschitz_rnn.ops.lipschitz.cores import pair_scan as cores
from lipschitz_rnn.ops.lipschitz.differentiation import ScanBackward, plain_gradients
from lipschitz_rnn.ops.lipschitz.pair_call import PairCall
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme
from lipschitz_rnn.ops.lipschitz.triton import support

_REMEMBERED = 1024
_runs: dict[tuple[Any, ...], Any] = {}


def symmetric_skew(M: Tensor, factor: float | Tensor, gamma: float | Tensor) -> Tensor:
    """M + f Mᵀ − γI, (…, N, N); f and γ may be tensors."""
    S = _plus(M, factor, M.mT)
    if not isinstance(gamma, Tensor) and gamma == 0.0:
        return S
    return _plus(S, -gamma, torch.eye(M.shape[-1], dtype=M.dtype, device=M.device))


def pair_scan(
    x: Tensor,
    M_A: Tensor,
    M_W: Tensor,
    hx: Tensor | None,
    U: Tensor,
    b: Tensor | None,
    *,
    maps: tuple[float, float, float, float],
    scheme: tuple[float, float, str, str],
    dtype: torch.dtype,
    backend: str,
    need_output: bool,
    batch_first: bool,
) -> tuple[Tensor | None, Tensor] | None:
    """States (T, B, N), or (B, T, N) with ``batch_first``, and the last one, (1, B, N); None if this cannot serve it.

    Args:
        x: (T, B, p), or (B, T, p) with ``batch_first``.
        hx: (1, B, N), or None for zeros.
        maps: f and γ of A, then of W.
        scheme: ε, α, integrator and nonlinearity.
        dtype: in which to compute and to return the results; other tensors are converted, as autocast does.
        backend: ``cpu`` or ``triton``.
    """
    if batch_first:
        x = x.transpose(0, 1)
    save = torch.is_grad_enabled() and (
        M_A.requires_grad
        or M_W.requires_grad
        or U.requires_grad
        or x.requires_grad
        or (b is not None and b.requires_grad)
        or (hx is not None and hx.requires_grad)
    )
    setting = float32_setting() if dtype == torch.float32 and backend == "triton" else None
    kinds = (_kind(x), _kind(M_A), _kind(M_W), _kind(U), None if b is None else _kind(b))
    key = (
        kinds,
        None if hx is None else _kind(hx),
        maps,
        scheme,
        dtype,
        backend,
        need_output,
        save,
        batch_first,
        setting,
    )
    try:
        run = _runs[key]
    except KeyError:
        tensors = (x, M_A, M_W, hx, U, b)
        run = _prepared(tensors, maps, Scheme(*scheme), dtype, backend, need_output, save, batch_first)
        _remember(key, run)
    if run is None:
        return None
    if save:
        return PairLayer.apply(x, M_A, M_W, hx, U, b, run)
    states, last, _, _ = run.forward(*run.converted(x, M_A, M_W, hx, U, b))
    return states, last


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _remember(key: tuple[Any, ...], run: Any) -> None:
    if len(_runs) >= _REMEMBERED:  # sequences of ever new lengths must not fill the memory
        _runs.clear()
    _runs[key] = run


def _prepared(
    tensors: tuple[Any, ...],
    maps: tuple[float, float, float, float],
    scheme: Scheme,
    dtype: torch.dtype,
    backend: str,
    need_output: bool,
    save: bool,
    batch_first: bool,
) -> Any:
    """What runs for such tensors; None if they do not fit together, or where other code serves them."""
    x, M_A, M_W, hx, U, b = tensors
    if x.dim() != 3 or M_A.dim() != 2:
        return None
    (T, B, p), N = x.shape, M_A.shape[-1]
    expected = ((T, B, p), (N, N), (N, N), (1, B, N), (N, p), (N,))
    given = [(tensor, shape) for tensor, shape in zip(tensors, expected, strict=True) if tensor is not None]
    if any(tuple(tensor.shape) != shape or tensor.device != x.device for tensor, shape in given):
        return None
    own = M_A.dtype
    if min(T, B) < 1 or any(tensor.dtype != own for tensor in (M_W, U, b) if tensor is not None):
        return None
    h0 = None if hx is None else hx.squeeze(0)
    problem = Problem(x, M_A, M_W, h0, U, b, None, scheme).to(dtype).lifted()
    strides = (*M_A.stride(), *M_W.stride())
    # What is converted is new memory; of the rest, the input alone may lie as it likes.
    x_strides = x.stride() if x.dtype == dtype else x.contiguous().stride()
    facts = (x_strides, strides, maps, scheme, dtype, own, x.device, hx is not None, b is not None)
    call = PairCall((T, B, p, N), *facts, need_output, save, batch_first)
    if backend == "cpu":
        return cores.prepare(problem, call)
    if torch.float64 in (x.dtype, own) or support.obstacle(problem) is not None:
        return None
    from lipschitz_rnn.ops.lipschitz.triton.pair_scan import prepare

    return prepare(problem, call)


class PairLayer(torch.autograd.Function):
    """Takes the parameters as they are, and gives their gradients; higher derivatives go through the reference."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor | None, Tensor]:
        *tensors, run = args
        used = run.converted(*tensors)
        states, last, tape, operand = run.forward(*used)
        ctx.set_materialize_grads(False)
        ctx.run = run
        x, h0, U = used[0], used[3], used[4]
        as_given = x is tensors[0] and h0 is tensors[3] and U is tensors[4]
        ctx.save_for_backward(*tensors, tape, operand, *(() if as_given else (x, h0, U)))
        return states, last

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        saved = ctx.saved_tensors
        if grad_states is None and grad_last is None:
            return (None,) * 7
        tape, operand = saved[6:8]
        if torch.is_grad_enabled() or not plain_eager() or older_vmap(grad_states, grad_last):
            found = _differentiable_gradients(ctx.run, saved[:6], tape, grad_states, grad_last, needs)
        else:
            x, h0, U = saved[8:] or (saved[0], saved[3], saved[4])
            found = ctx.run.backward((x, h0, U, tape, operand), grad_states, grad_last, needs)
        return (*[gradient if need else None for gradient, need in zip(found, needs, strict=False)], None)


def _differentiable_gradients(
    run: Any,
    tensors: tuple[Any, ...],
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    call = run.call
    x, M_A, M_W, hx, U, b = tensors
    with without_autocast(x.device):
        factors = call.maps[0], call.maps[2]
        A, W = symmetric_skew(M_A, *call.maps[:2]), symmetric_skew(M_W, *call.maps[2:])
        h0 = None if hx is None else hx.squeeze(0)
        problem = Problem(x, A, W, h0, U, b, None, call.scheme).to(call.dtype).lifted()
        if grad_states is not None:
            grad_states = (grad_states.transpose(0, 1) if call.batch_first else grad_states).unsqueeze(0)
        found: Any
        wanted = (*needs[:6], False, False)  # drive, A, W, h0, U, b, timespans, noise
        if older_vmap(grad_states, grad_last):
            found = plain_gradients(problem, grad_states, grad_last, wanted)
        else:
            given = (*problem.tensors, tape.unsqueeze(0), grad_states, grad_last)
            found = ScanBackward.apply(*given, *call.scheme.arguments, run.backend, wanted)
        grad_x, grad_A, grad_W, grad_h, grad_U, grad_b, _, _ = found
        pairs = zip((grad_A, grad_W), needs[1:3], factors, strict=True)
        matrices = [_transposed(G[0].to(M_A.dtype), factor) if need else None for G, need, factor in pairs]
        return [
            grad_x[0] if needs[0] else None,
            *matrices,
            grad_h if needs[3] else None,
            grad_U[0] if needs[4] else None,
            grad_b[0] if needs[5] else None,
        ]


def _transposed(G: Tensor, factor: float) -> Tensor:
    """The gradient of M from that of S(M): γI is constant, and the transposed of M ↦ f Mᵀ is itself."""
    return torch.add(G, G.mT, alpha=factor)


def _plus(left: Tensor, factor: float | Tensor, right: Tensor) -> Tensor:
    """left + factor · right, in one operation if factor is a number; a tensor is first converted to the dtype."""
    if isinstance(factor, Tensor):
        return left + factor.to(right.dtype) * right
    return torch.add(left, right, alpha=factor)
