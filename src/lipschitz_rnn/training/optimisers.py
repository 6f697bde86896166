"""The optimiser of stacked parameters, in groups with learning rates of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from lipschitz_rnn.training.muon import Joined, Muon
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.special_parameters import special_parameters


def build_optimiser(settings: Settings, parameters: Mapping[str, Tensor]) -> Optimizer | Joined:
    """For stacked tensors by name. PyTorch's optimisers act element by element, and so treat each member independently.

    Raises:
        ValueError: as `special_parameters`.
    """
    matrices, biases = special_parameters(settings, parameters)
    others = [value for name, value in parameters.items() if name not in matrices | biases]
    groups = [_group(others, settings), _group(list(biases.values()), settings, settings.bias_rate)]
    groups = [group for group in groups if group["params"]]
    muon = Muon([_group(list(matrices.values()), settings, settings.matrix_rate)]) if matrices else None
    if muon is not None and not groups:
        return muon
    rest = _build_rest(settings, groups)
    return rest if muon is None else Joined(muon, rest)


def _group(values: list[Tensor], settings: Settings, factor: float = 1.0) -> dict[str, Any]:
    """Parameters with one learning rate, `factor` times that of the schedule."""
    rate: Any = settings.learning_rate * factor
    if values and values[0].is_cuda:
        rate = torch.tensor(rate, device=values[0].device)  # which a captured graph reads at every replay
    return {"params": values, "lr": rate, "factor": factor, "weight_decay": settings.weight_decay}


def _build_rest(settings: Settings, groups: list[dict[str, Any]]) -> Optimizer:
    values = [value for group in groups for value in group["params"]]
    on_gpu = values[0].is_cuda
    # The fused kernels read rate and step count on the device, but do not support complex numbers.
    fused = on_gpu and not any(value.is_complex() for value in values)
    if settings.optimiser == "sgd":
        return SGD(groups, momentum=settings.momentum, fused=fused)
    if settings.optimiser == "rmsprop":
        return RMSprop(groups, alpha=settings.smoothing, capturable=on_gpu)
    kind = AdamW if settings.optimiser == "adamw" else Adam
    return kind(groups, fused=fused, capturable=on_gpu)
