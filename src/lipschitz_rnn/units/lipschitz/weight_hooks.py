"""Pruning and the older norms of PyTorch on a cell: hooks that set a weight before each call of it."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_SETTING_A_WEIGHT = (BasePruningMethod, SpectralNorm, WeightNorm)


def set_weights(cell: nn.Module) -> None:
    """Run those hooks. A layer reads the weights of its cells but calls none of them, so that nothing else would.

    Other hooks on a cell are about calls of it, and stay without effect here.
    """
    for hook in list(cell._forward_pre_hooks.values()):
        if isinstance(hook, _SETTING_A_WEIGHT):
            hook(cell, ())  # they read no input
