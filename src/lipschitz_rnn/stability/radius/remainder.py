"""How far the slopes of chords of σ can be from σ′(a), for |v| ≤ V: what linearizing a unit leaves out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.nonlinearities import Nonlinearity
from lipschitz_rnn.stability.proof.rounding import UNIT

_STEEPEST = math.atanh(1 / math.sqrt(3))  # where |tanh″| is largest
_LARGEST = 4 / (3 * math.sqrt(3))  # max |tanh″|
_SIGMOID = 1 / (6 * math.sqrt(3))  # max |sigmoid″|
SMOOTH = ("tanh", "sigmoid", "relu", "identity")


def curvature(sigma: Nonlinearity) -> float:
    """max |σ″|; for relu, which has none, what its slope can be off by at all."""
    return {"tanh": _LARGEST, "sigmoid": _SIGMOID, "relu": 1.0, "identity": 0.0}[sigma.name]


def chord_change(sigma: Nonlinearity, a: Tensor, slope: Tensor, V: Tensor, off: Tensor) -> Tensor:
    """A bound on |σ(a* + v) − σ(a*) − slope · v| / |v| for all |v| ≤ V and all a* within ``off`` of a.

    ½ max|σ″| V over the values that the unit can take, plus what the slope at a* can differ from ``slope``; and never
    more than the slopes of σ allow.
    """
    return _within(sigma, a, slope, V, off, 0.5)


def slope_change(sigma: Nonlinearity, a: Tensor, slope: Tensor, V: Tensor, off: Tensor) -> Tensor:
    """A bound on |s − slope| for the slopes s of all chords of σ between points within V of a*."""
    return _within(sigma, a, slope, V, off, 1.0)


def _within(sigma: Nonlinearity, a: Tensor, slope: Tensor, V: Tensor, off: Tensor, share: float) -> Tensor:
    """``share`` · max|σ″| V, plus what the slope at a* is off by; at most what the slopes of σ allow."""
    low, high = sigma.slope_range
    widest = torch.maximum(slope - low, high - slope).expand_as(V)
    if sigma.name == "identity":
        return torch.zeros_like(V)
    if sigma.name == "relu":
        return torch.where(a.abs() > V + off, 0.0, widest)
    if sigma.name == "sigmoid":
        bend = torch.full_like(V, _SIGMOID)
    else:
        reach = V + 2 * off
        nearest, farthest = (a.abs() - reach).clamp(min=0.0), a.abs() + reach
        # |tanh″| rises up to the steepest point and falls beyond it.
        there = torch.where(farthest < _STEEPEST, farthest, nearest)
        value = torch.tanh(there)
        bend = torch.where(
            (nearest < _STEEPEST) & (farthest >= _STEEPEST), _LARGEST, 2.0 * value * (1.0 - value * value)
        )
        bend = (bend + 1e-14).clamp(max=_LARGEST)
    drift = curvature(sigma) * off + 64 * UNIT  # the slope itself is rounded, and σ before it
    return torch.minimum(share * bend * V + drift, widest * (1 + 1e-12)) * (1 + 1e-12)
