"""Gradients of large matrices of 16 bits by cuBLAS, whose fast kernels want rows that begin at multiples of 16 bytes.

Rows of N units do so only for some N. The others get wider rows. What lies behind the N units of a row may be anything:
it ends in rows and columns of the result that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def cublas_is_faster(N: int, dtype: torch.dtype) -> bool:
    """As measured on an H200; small matrices are sums over a long axis alone."""
    return dtype != torch.float32 and N > 256


def gradient_width(N: int, dtype: torch.dtype) -> int:
    """From one row of N units to the next."""
    return -(-N // 8) * 8 if cublas_is_faster(N, dtype) else N


def sums_by_cublas(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Σ [κ; d] Hᵀ over steps and samples, (S, 1, 2·width, width) in float32, of which N rows and columns each matter.

    Args:
        pairs: κ and d, (S, T, B, 2·width), and H, (S, T, B, N).
    """
    total: Tensor | None = None
    for left, right in pairs:
        rows = wide_rows(right, left.shape[-1] // 2).flatten(1, 2)
        part = torch.bmm(left.flatten(1, 2).mT, rows, out_dtype=torch.float32)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.unsqueeze(1)


def wide_rows(values: Tensor, width: int) -> Tensor:
    """(S, T, B, N) as (S, T, B, width), without gaps between the rows of a network."""
    _, T, B, N = values.shape
    if width == N and (T == 1 or values.stride(1) == B * N) and values[0, 0].is_contiguous():
        return values
    wide = values.new_empty((*values.shape[:-1], width))
    rows = wide[..., :N]
    # PyTorch copies rows with gaps between them number by number: the wider the number, the faster.
    size = values.element_size()
    for dtype in (torch.int64, torch.int32):
        many = dtype.itemsize // size
        # What comes from another library may begin anywhere, with an offset of 0.
        places = [N, width, values.storage_offset(), values.data_ptr() // size, *values.stride()[:-1]]
        if values.stride(-1) == 1 and all(place % many == 0 for place in places):
            rows, values = rows.view(dtype), values.view(dtype)
            break
    rows.copy_(values)
    return wide
