"""Losses and scores of series tasks: targets of -1 or NaN do not count. Leading member axes are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.data.target import Target
from lipschitz_rnn.tasks.objectives import hits, token_losses


def loss(outputs: Tensor, goals: Tensor, target: Target, weights: Tensor | None) -> Tensor:
    """Mean cross-entropy, weighted by class if there are `weights`, or mean squared error."""
    if target.classes is None:
        total, count = squared_errors(outputs, goals, target.readout)
        return total / count.clamp_min(1.0)
    _require(outputs.shape[:-1], goals.shape)
    counts = goals >= 0
    safe = goals.clamp(min=0)
    losses = token_losses(torch.where(counts.unsqueeze(-1), outputs, 0.0), safe)
    weight = counts.to(losses.dtype) if weights is None else weights.to(losses.dtype)[safe] * counts
    axes = _axes(target.readout)
    return (losses * weight).sum(axes) / weight.sum(axes).clamp_min(1e-12)


def weight_of(goals: Tensor, target: Target, weights: Tensor) -> Tensor:
    """The sum of the weights of all goals that count, which the loss is divided by."""
    return (weights[goals.clamp(min=0)] * (goals >= 0)).sum(_axes(target.readout))


def correct(outputs: Tensor, goals: Tensor, readout: str) -> tuple[Tensor, Tensor]:
    """(correct, counted); NaN if a score that counts is NaN."""
    _require(outputs.shape[:-1], goals.shape)
    counts = goals >= 0
    axes = _axes(readout)
    return torch.where(counts, hits(outputs, goals), 0.0).sum(axes), counts.float().sum(axes)


def squared_errors(outputs: Tensor, goals: Tensor, readout: str) -> tuple[Tensor, Tensor]:
    """(sum of squares, number of values that count)."""
    _require(outputs.shape, goals.shape)
    counts = goals.isfinite()
    wide = outputs if outputs.dtype == torch.float64 else outputs.float()
    # Select before subtracting: a NaN would reach the gradient through a product with zero.
    difference = torch.where(counts, wide, 0.0) - torch.where(counts, goals, 0.0).to(wide.dtype)
    axes = (-2, -1) if readout == "last" else (-3, -2, -1)
    return difference.square().sum(axes), counts.to(wide.dtype).sum(axes)


def class_weights(goals: Tensor, counted: Tensor, classes: int) -> Tensor:
    """(classes,): inverse to the number of samples in training, with mean 1 over the samples; 0 for an absent one."""
    counts = torch.bincount(goals[counted], minlength=classes).float()
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts.clamp_min(1.0)), 0.0)


def _axes(readout: str) -> tuple[int, ...]:
    """The axes of a batch of classes: (B,) or (T, B)."""
    return (-1,) if readout == "last" else (-2, -1)


def _require(outputs: torch.Size, goals: torch.Size) -> None:
    if outputs != goals:
        raise ValueError(f"outputs give shape {tuple(outputs)}, but targets have {tuple(goals)}; they must agree")
