"""A contracting pair for Euler and Heun maps as the theorem states it, one formula after another, in float64.

Nothing here is shared with ``construction.py``, whose operations are merged so that a GPU starts few of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.units.lipschitz.construction import Numbers

LARGEST = 1e4  # the norm of a rotation per step, and of the square of the feedback


def scaled_down(matrix: Tensor, limit: float) -> Tensor:
    norm = torch.linalg.matrix_norm(matrix)
    return matrix * (limit / norm) if float(norm.detach()) > limit else matrix


def plain_pair(
    numbers: Numbers, rotation: Tensor, feedback: Tensor, leak: Tensor, restoring: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """A and W, (N, N), in float64."""
    step, factor, (low, high) = numbers.step, numbers.factor, numbers.slopes
    rotation, feedback, leak, restoring, scale = (
        value.double() for value in (rotation, feedback, leak, restoring, scale)
    )
    K = scaled_down((rotation - rotation.T) / 2, LARGEST / step)
    B = scaled_down(feedback, math.sqrt(LARGEST / step))
    H = step / 2 * (K + B.T @ B) + torch.diag(torch.sigmoid(leak))
    eye = torch.eye(len(H), dtype=torch.float64)
    X = torch.linalg.inv(eye + H)
    omega = (0.002 + 1.898 * torch.sigmoid(restoring)) / step
    F = factor * (eye - H) @ X
    gain = (omega * (2 / step - omega)).sqrt().unsqueeze(1)
    A = (F - eye) / step
    W = -omega.unsqueeze(1) * F + factor * gain * math.sqrt(2 * step) * (B @ X)
    if numbers.spread:
        t = torch.exp(numbers.spread * torch.tanh(scale / numbers.spread))
        A, W = A * t / t.unsqueeze(1), W * t / t.unsqueeze(1)
    A, W = A / numbers.alpha, W / ((high - low) or 1.0)
    return A - low / numbers.alpha * W, W
