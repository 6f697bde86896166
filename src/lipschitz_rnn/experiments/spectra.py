"""What happens to A and W while a network trains: their largest real parts, and all eigenvalues at the end."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def hidden_matrices(model: nn.Module) -> tuple[Tensor, Tensor] | None:
    """A and W of the first layer of a model's unit, or None for units that have no such pair."""
    unit = getattr(model, "unit", model)
    find = getattr(unit, "hidden_matrices", None)
    if find is None:
        return None
    with torch.no_grad():
        A, W = find(0, 0)
    return A.detach().double().cpu(), W.detach().double().cpu()


def largest_real_parts(model: nn.Module) -> dict[str, float]:
    """The probe of every training run: max Re λ(A) and max Re λ(W); nothing for units without such matrices."""
    pair = hidden_matrices(model)
    if pair is None or not all(bool(matrix.isfinite().all()) for matrix in pair):
        return {}
    return {name: float(torch.linalg.eigvals(matrix).real.max()) for name, matrix in zip(("A", "W"), pair, strict=True)}
