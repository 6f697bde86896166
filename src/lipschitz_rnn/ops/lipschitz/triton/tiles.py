"""Which units and samples a program works on."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile(units, columns, B, N, WIDE: tl.constexpr):
    """Units and columns (samples) with their masks, the mask of the tile, and its offsets in a (B, N) matrix.

    WIDE: offsets may pass 2³¹, so they are computed in 64 bits.
    """
    if WIDE:
        columns, units = columns.to(tl.int64), units.to(tl.int64)
    unit_mask, column_mask = units < N, columns < B
    mask = unit_mask[:, None] & column_mask[None, :]
    cells = units[:, None] + columns[None, :] * N
    return units, columns, unit_mask, column_mask, mask, cells
