"""The task of an estimator: noise on the inputs in training, and class weights in the score that chooses the epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.data import SeriesTask
from lipschitz_rnn.tasks import Batch, Split
from lipschitz_rnn.tasks.base import Generators, member_generators


class EstimatorTask(SeriesTask):
    """A `SeriesTask` with two additions.

    Args:
        input_noise: standard deviation of the noise that training adds to the scaled numbers.
    """

    def __init__(self, *arguments: Any, input_noise: float = 0.0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.input_noise = input_noise

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        batch = super().batch(split, indices, generator)
        if self.input_noise == 0.0 or generator is None:
            return batch
        # Drawn for the longest series: how far a batch is padded, which depends on other networks, changes no draw.
        count = len(self.preprocessing_module.fitted.numbers)
        shape = (self.sequence_length, indices.shape[-1], count)
        drawn = [
            torch.randn(shape, generator=own, device=own.device)[: batch.inputs.shape[-3]]
            for own in member_generators(generator, indices)
        ]
        noise = self.input_noise * (torch.stack(drawn) if indices.dim() == 2 else drawn[0]).to(batch.inputs.device)
        noisy = torch.cat((batch.inputs[..., :count] + noise, batch.inputs[..., count:]), -1)
        return Batch(noisy, batch.targets, batch.lengths, batch.timespans)

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        weights = self._data.get("weights")
        if weights is None:
            return super().measure(outputs, batch)
        weight = weights[batch.targets]
        right = (outputs.argmax(-1) == batch.targets).to(weight.dtype)
        return (right * weight).sum(-1), weight.sum(-1).clamp_min(1e-12)
