"""What the kernels and their callers agree on: the sizes of scratch, and the numbers of the nonlinearities."""

from __future__ import annotations

from typing import Any

NONLINEARITIES = ("tanh", "relu", "sigmoid", "identity")  # a kernel knows them by their places


def gap(padded: Any, lanes: int) -> Any:
    """Distance of rows in scratch: never a power of two, at which rows would evict each other from the cache."""
    return padded + lanes


def forward_scratch(rows: int, padded: int, stages: int, lanes: int) -> int:
    """Reals of the forward kernel: state, point of a stage, slopes, and W h beside αA h."""
    return rows * ((2 + stages) * gap(padded, lanes) + gap(2 * padded, lanes))


def backward_scratch(rows: int, padded: int, stages: int, lanes: int, chunk: int, features: int) -> int:
    """Reals of the backward kernel: y and ηᵢ; for each step of a chunk Hᵢ, kᵢ, Σdᵢ, (κᵢ, dᵢ) and (x, 1)."""
    narrow, wide = gap(padded, lanes), gap(2 * padded, lanes)
    return rows * (1 + stages) * narrow + rows * chunk * ((2 * stages + 1) * narrow + stages * wide + features + 1)
