"""Layers and sequences of known random numbers, for the tests of this folder."""

from typing import Any

import torch
from torch import Tensor

import lipschitz_rnn as lr


def layer(generator: torch.Generator, input_size: int = 3, hidden_size: int = 5, **options: Any) -> lr.LipschitzRNN:
    """A layer in float64 whose parameters come from the generator, large enough that every term shows."""
    rnn = lr.LipschitzRNN(input_size, hidden_size, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return rnn


def sequence(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
