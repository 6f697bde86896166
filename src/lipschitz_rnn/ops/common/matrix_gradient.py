"""The gradient of a matrix that every step multiplies by the state, for all steps at once."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import matmul

PIECES = 16  # at most, of the sum


def matrix_gradient(d: Tensor, before: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ d hᵀ over steps and samples, in pieces of equal length.

    One product is a sum of T·B terms for each of only N² entries: pieces keep all of a GPU at work, and what
    half-precision products round at their end is added up in float32.
    """
    S, T, B, N = d.shape
    pieces = max(count for count in range(1, PIECES + 1) if T % count == 0)
    left, right = (tensor.reshape(S * pieces, T // pieces * B, N) for tensor in (d.to(before.dtype), before))
    return matmul(left.mT, right).view(S, pieces, N, N).sum(1, dtype=dtype)
