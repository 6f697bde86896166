"""The three losses that the tasks share: classes of whole sequences, tokens at every step, real values.

All follow one rule: they score one value per sequence (`readout` "last") or per valid step of every sequence ("all").
`lengths` say which steps are valid, and have no effect if only the last state is read. Leading member axes are kept:
outputs (S, B, q) or (S, T, B, q) give S losses, each the mean over its own batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lipschitz_rnn.tasks.base import Batch, Task


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every target under its row of logits: (..., q) and (...) give (...), in float32 or better."""
    logits = outputs.flatten(0, -2)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the class with the largest score is the target, else 0: (..., q) and (...) give (...) in float32.

    NaN where a score is NaN. `argmax` takes NaN for the largest, so that a broken network would be right about every
    target of class 0; and a metric that is NaN is never selected.
    """
    return (outputs.argmax(-1) == targets).float().masked_fill(outputs.isnan().any(-1), torch.nan)


def _valid_steps(task: Task, batch: Batch, steps: int) -> Tensor | None:
    """(..., T, B) bool where some steps are padding; None where everything counts."""
    if batch.lengths is None or task.readout == "last":
        return None
    return torch.arange(steps, device=batch.lengths.device).unsqueeze(-1) < batch.lengths.unsqueeze(-2)


def _add(values: Tensor, valid: Tensor | None, readout: str) -> tuple[Tensor, Tensor]:
    """(sum, weight) over sequences, and over their valid steps if every step is read; member axes are kept.

    Computed on the device, because a copy from the host would break a CUDA graph.
    """
    axes = (-1,) if readout == "last" else (-2, -1)
    total = values.sum(axes)
    if valid is not None:
        return total, valid.expand_as(values).sum(axes).to(values.dtype)
    return total, torch.full_like(total, float(math.prod(values.shape[axis] for axis in axes)))


def _mean(total: Tensor, weight: Tensor) -> Tensor:
    """total / weight; 0, not NaN, for a batch without a valid step."""
    return total / weight.clamp_min(1.0)


class _Labels(Task):
    """Cross-entropy of integer targets, for every sequence or for every valid step."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return _mean(*self._cross_entropy(outputs, batch))

    def _cross_entropy(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        targets, valid = self._checked(outputs, batch)
        if valid is not None:  # whatever is in the padding, NaN and -1 included, and its gradient, is dropped
            outputs, targets = outputs.where(valid.unsqueeze(-1), 0.0), targets.where(valid, 0)
        losses = token_losses(outputs, targets)
        return _add(losses if valid is None else losses.where(valid, 0.0), valid, self.readout)

    def _checked(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if outputs.shape[:-1] != batch.targets.shape:
            raise ValueError(
                f"outputs have shape {tuple(outputs.shape)} and targets {tuple(batch.targets.shape)}; for the readout "
                f'"{self.readout}" they must be {_SHAPES[self.readout]}, with or without a leading member axis'
            )
        return batch.targets, _valid_steps(self, batch, outputs.shape[-3] if self.readout == "all" else 0)


_SHAPES = {"last": "(B, q) and (B,)", "all": "(T, B, q) and (T, B)"}


class Classification(_Labels):
    """One class for the whole sequence, or one at every valid step: cross-entropy and accuracy."""

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        targets, valid = self._checked(outputs, batch)
        correct = hits(outputs, targets)
        return _add(correct if valid is None else correct.where(valid, 0.0), valid, self.readout)


class TokenPrediction(_Labels):
    """The next token at every valid step: cross-entropy in nats, which the metric turns into bits or perplexity."""

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._cross_entropy(outputs, batch)


class Regression(Task):
    """Real values, for the whole sequence or at every valid step: mean squared error."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return _mean(*self.measure(outputs, batch))

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if outputs.shape != batch.targets.shape:  # subtracting would broadcast (B, 1) and (B,) to (B, B)
            raise ValueError(
                f"outputs have shape {tuple(outputs.shape)} and targets {tuple(batch.targets.shape)}; they must have "
                "the same shape: (B, q) for values per sequence, (T, B, q) for values per step"
            )
        difference = outputs - batch.targets
        difference = difference if difference.dtype == torch.float64 else difference.float()
        valid = _valid_steps(self, batch, difference.shape[-3] if self.readout == "all" else 0)
        if valid is not None:  # multiplying by the mask would keep a NaN of the padding; selecting drops it
            difference = difference.where(valid.unsqueeze(-1), 0.0)
        return _add(difference.square().mean(-1), valid, self.readout)
