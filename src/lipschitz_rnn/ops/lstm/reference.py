"""The steps of an LSTM one after another in plain PyTorch, there and back: what its kernels have to agree with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul, state_dtype


def gates(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    i, f, g, o = z.chunk(4, dim=-1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def steps(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, h0: Tensor, c0: Tensor, compute: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """z, h and c of one step after another, differentiable any number of times: x (…, T, B, p), W (…, 4N, N)."""
    dtype = state_dtype(W.dtype)
    onward = W.mT
    if x.shape[-1] == 1:  # no matrix product: it keeps its digits
        drive = x.to(dtype) * U.mT.unsqueeze(-3).to(dtype)
    else:
        drive = product_of_every_step(x, U.mT, compute, dtype)
    h, c = h0.to(dtype), c0.to(dtype)
    for u in (drive + b[..., None, None, :].to(dtype)).unbind(-3):
        z = product(h, onward, compute, dtype) + u
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


def product(left: Tensor, right: Tensor, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    return matmul(left.to(compute), right.to(compute)).to(dtype)


def product_of_every_step(sequence: Tensor, M: Tensor, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    """(…, T, B, n) and (…, n, m) → (…, T, B, m), as one product for each network."""
    return product(merged(sequence), M, compute, dtype).reshape(*sequence.shape[:-1], M.shape[-1])


def merged(sequence: Tensor) -> Tensor:
    """(…, T, B, n) → (…, T·B, n); `flatten` has no rule for batched gradients."""
    *lead, T, B, n = sequence.shape
    return sequence.reshape(*lead, T * B, n)
