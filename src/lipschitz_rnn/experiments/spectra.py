"""What happens to A and W while a network trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipschitz_rnn.stability import track

NAMES = {"A": "A.real_max", "W": "W.real_max"}  # the largest real parts, as `track` calls them


def spectral_probe(model: nn.Module) -> dict[str, float]:
    """The probe of every training run: the spectra of A and W; nothing for units without them, or once not finite."""
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        return {}
    return track(model)


def hidden_matrices(model: nn.Module) -> tuple[Tensor, Tensor] | None:
    """A and W of the first layer of a model's unit, or None for units that have no such pair."""
    find = getattr(getattr(model, "unit", model), "hidden_matrices", None)
    if find is None:
        return None
    with torch.no_grad():
        A, W = find(0, 0)
    return A.detach().double().cpu(), W.detach().double().cpu()
