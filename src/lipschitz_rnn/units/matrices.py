"""Constrained matrices from free real parameters, and the nonlinearity that unitary units share."""

import torch
from torch import Tensor


def skew(triangle: Tensor, size: int) -> Tensor:
    """Skew-symmetric matrix from the n(n−1)/2 entries below its diagonal: (n(n−1)/2,) -> (n, n), Kᵀ = −K exactly."""
    rows, columns = torch.tril_indices(size, size, -1, device=triangle.device)
    lower = triangle.new_zeros(size, size).index_put((rows, columns), triangle)
    return lower - lower.mT


def triangle_size(size: int) -> int:
    """Entries below the diagonal of a (size, size) matrix: the dimension of the orthogonal group."""
    return size * (size - 1) // 2
