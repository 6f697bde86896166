"""What happens to A and W while a network trains."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.stability import track
from lipschitz_rnn.stability.threads import one_blas_thread


def real_part_names(records: list[dict[str, Any]], matrix: str) -> list[str]:
    """What the largest real parts of A or W are called in the records of a run; one name per layer."""
    names = dict.fromkeys(name for record in records for name in record)
    return [name for name in names if name.endswith(f"{matrix}.real_max")]


def spectral_probe(models: Sequence[nn.Module]) -> list[dict[str, float]]:
    """The probe of every training run: the spectra of A and W of each network."""
    # Eigenvalues are found without holding Python's lock, each best by one thread.
    with one_blas_thread(), ThreadPoolExecutor() as pool:
        return list(pool.map(_spectra, models))


def _spectra(model: nn.Module) -> dict[str, float]:
    """Nothing for units without such matrices, or once not finite."""
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        return {}
    return track(getattr(model, "unit", model))


def hidden_matrices(model: nn.Module) -> tuple[Tensor, Tensor] | None:
    """A and W of the first layer of a model's unit, or None for units that have no such pair."""
    find = getattr(getattr(model, "unit", model), "hidden_matrices", None)
    if find is None:
        return None
    with torch.no_grad():
        A, W = find(0, 0)
    return A.detach().double().cpu(), W.detach().double().cpu()
