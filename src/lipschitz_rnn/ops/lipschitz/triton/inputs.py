"""The input map u = U x + b for a whole sequence, and its gradients.

With few features these are sums over a long axis that read and write (T, B, N) and compute next to nothing. General
matrix products are far from the speed of the memory there: with three features they take longer than the scan.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul, state_dtype
from lipschitz_rnn.ops.common.triton.gradients import matrix_partial_sums
from lipschitz_rnn.ops.common.triton.launching import Launch, divide_up, on_device, power_of_two
from lipschitz_rnn.ops.lipschitz.problem import Problem

FEW = 16  # features
ROWS, COLUMNS = 64, 64


def expanded_drive(problem: Problem) -> Tensor:
    """u, (S, T, B, N), contiguous where it is computed here."""
    x, U, b = problem.drive, problem.input_weight, problem.bias
    if U is None:
        return x
    S, T, B, N = problem.shape
    features = x.shape[-1]
    if features <= FEW:
        u = torch.empty((S, T, B, N), dtype=x.dtype, device=x.device)
        U = U.contiguous()
        bias = U if b is None else b.contiguous()
        launch = expansion((S, T, B, N), features, x.stride(), b is not None, x.dtype, x.device)
        with on_device(x):
            launch(x, U, bias, u)
        return u
    flat = x.flatten(1, 2)
    if x.is_cuda and b is not None and S <= 4:  # a product that adds the bias itself, which the one for many does not
        u = torch.empty((S, T * B, N), dtype=x.dtype, device=x.device)
        for own, rows, weight, bias in zip(u, flat, U, b, strict=True):
            torch.addmm(bias, rows, weight.mT, out=own)
        return u.view(S, T, B, N)
    u = matmul(flat, U.mT)
    return (u if b is None else u.add_(b[:, None, :])).view(S, T, B, N)


def input_gradients(d: Tensor, x: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """∂U = Σ d xᵀ, (S, N, p), and ∂b = Σ d, (S, N), from d, (S, T, B, N) with a contiguous last axis."""
    features = x.shape[-1]
    # Of several half-precision products at once, cuBLAS does not split the long sum, and leaves most of a GPU idle.
    if features <= FEW or (len(d) > 1 and d.element_size() == 2):
        sums = matrix_partial_sums([(d, x if x.stride(-1) == 1 else x.contiguous())], precision, ones=True)
        total = sums.sum(1).to(d.dtype)
        return total[..., :features].contiguous(), total[..., features].contiguous()
    flat = d.flatten(1, 2)
    return matmul(flat.mT, x.flatten(1, 2)), flat.sum(1, dtype=state_dtype(d.dtype)).to(d.dtype)


def drive_gradient(d: Tensor, U: Tensor) -> Tensor:
    """∂x = d U, (S, T, B, p)."""
    return matmul(d.flatten(1, 2), U).view(*d.shape[:-1], U.shape[-1])


@lru_cache(maxsize=1024)
def expansion(
    shape: tuple[int, int, int, int],
    features: int,
    strides: tuple[int, ...],
    bias: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Launch:
    """The launch that forms u for (S, T, B, N) from few features, with the strides of x."""
    S, T, B, N = shape
    columns = min(COLUMNS, max(16, power_of_two(N)))
    grid = (divide_up(T * B, ROWS), divide_up(N, columns), S)
    return Launch(_expand_kernel, grid, (T * B, B, N, *strides), (features, bias, ROWS, columns))


@triton.jit(do_not_specialize=["L"])
def _expand_kernel(
    x, U, b, u, L, B, N, x_s, x_t, x_b, x_p,
    FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS of the L = T·B samples and COLUMNS of the N units of one network."""
    network = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid, inside = r < L, n < N
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if HAS_BIAS:
        total += tl.load(b + network * N + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    place = x + network * x_s + (r // B) * x_t + (r % B) * x_b
    weights = U + (network * N + n) * FEATURES
    for feature in tl.static_range(FEATURES):
        values = tl.load(place + feature * x_p, mask=valid, other=0.0).to(tl.float32)
        total += values[:, None] * tl.load(weights + feature, mask=inside, other=0.0).to(tl.float32)[None, :]
    out = u + (network * L + r)[:, None] * N + n[None, :]
    tl.store(out, total, mask=valid[:, None] & inside[None, :])
