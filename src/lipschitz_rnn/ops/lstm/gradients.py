"""The LSTM's forward scan with what its backward pass needs, and that backward pass by hand, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import state_dtype
from lipschitz_rnn.ops.lstm.reference import gates, merged, product, product_of_every_step, steps


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
        from lipschitz_rnn.ops.lstm.triton import launch as kernels

        d, of_h0, of_c0, of_input = kernels.scan_backward(x, W, tape, z, grad_states, grad_h, grad_c)
        of_W = kernels.matrix_gradient(d, tape, W.dtype) if needs[2] else None
    else:
        d, of_h0, of_c0 = scan_backward(W, tape, z, grad_states, grad_h, grad_c, compute)
        of_W = _over_time(d, tape[:, :-1, 0], compute, W.dtype) if needs[2] else None
    of_x = product_of_every_step(d, U, compute, x.dtype) if needs[0] else None
    if of_input is not None:
        of_U, of_b = of_input[:, 0].unsqueeze(-1).to(U.dtype), of_input[:, 1].to(b.dtype)
    else:
        of_U = _over_time(d, x, compute, U.dtype) if needs[1] else None
        of_b = d.sum((1, 2), dtype=dtype).to(b.dtype)
    return of_x, of_U, of_W, of_b, of_h0, of_c0


def scan_forward(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, compute: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tape, (S, T + 1, 2, B, N), with h and c before all steps and after each; z, (S, T, B, 4N); last h and c."""
    z, states, cells = zip(*steps(x, U, W, b, h0, c0, compute), strict=True)
    first = torch.stack((h0, c0), dim=1).to(compute)
    rest = (torch.stack(pair, dim=1).to(compute) for pair in zip(states, cells, strict=True))
    tape = torch.stack((first, *rest), dim=1)
    return tape, torch.stack(z, dim=1).to(compute), states[-1].to(W.dtype), cells[-1].to(W.dtype)


def scan_backward(
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
        of_h = product(found[-1], W, compute, dtype)
        of_c = of_c * f
    return torch.stack(found[::-1], dim=1), of_h.to(W.dtype), of_c.to(W.dtype)


def _over_time(d: Tensor, other: Tensor, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Σ d otherᵀ over steps and samples: (S, T, B, 4N) and (S, T, B, n) → (S, 4N, n)."""
    return product(merged(d).mT, merged(other), compute, dtype)
