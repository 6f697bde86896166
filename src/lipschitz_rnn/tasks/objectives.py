"""The three losses that the tasks share: classes of whole sequences, tokens at every step, real values.

Each keeps leading member axes: outputs (S, B, q) give S losses, each the mean over its own batch only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipschitz_rnn.tasks.base import Batch, Task


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every target under its row of logits: (..., q) and (...) give (...), in float32 or better."""
    logits = outputs.flatten(0, -2)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def _count(like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Number of elements along `axes`, filled on the device so that no host copy breaks a CUDA graph."""
    number = 1
    for axis in axes:
        number *= like.shape[axis]
    kept = [size for axis, size in enumerate(like.shape) if axis - like.dim() not in axes]
    return torch.full(kept, float(number), device=like.device)


class Classification(Task):
    """One class for the whole sequence, from the last state: cross-entropy and accuracy."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return token_losses(outputs, batch.targets).mean(-1)

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        correct = (outputs.argmax(-1) == batch.targets).float()
        return correct.sum(-1), _count(correct, (-1,))


class TokenPrediction(Task):
    """The next token at every step: cross-entropy in nats, whose mean the metric turns into bits or perplexity."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return token_losses(outputs, batch.targets).mean((-2, -1))

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        losses = token_losses(outputs, batch.targets)
        return losses.sum((-2, -1)), _count(losses, (-2, -1))


class Regression(Task):
    """Real values, for the whole sequence or at every valid step: mean squared error."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        total, weight = self.measure(outputs, batch)
        return total / weight

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        difference = outputs - batch.targets
        difference = difference if difference.dtype == torch.float64 else difference.float()
        if batch.lengths is None:
            errors, axes = difference.square().mean(-1), (-1,) if self.readout == "last" else (-2, -1)
            return errors.sum(axes), _count(errors, axes)
        steps = torch.arange(difference.shape[-3], device=difference.device).unsqueeze(-1)
        valid = steps < batch.lengths.unsqueeze(-2)
        # Multiplying by the mask would keep a NaN of the padding; selecting drops it, and its gradient too.
        errors = difference.where(valid.unsqueeze(-1), 0.0).square().mean(-1)
        return errors.sum((-2, -1)), valid.sum((-2, -1)).to(errors.dtype)
