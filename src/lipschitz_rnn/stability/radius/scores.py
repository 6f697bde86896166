"""The scores of the exact network: their order, and lower bounds of their differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.rounding import UNIT
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, Timeline
from lipschitz_rnn.stability.radius.trajectory import Trajectory, enclosed_states


@dataclass(frozen=True)
class Scores:
    """For B samples and q classes.

    Attributes:
        prediction: (B,).
        margins: (B, q), lower bounds of the exact score of the predicted class minus that of each class.
        readings: for each direction of the last layer (B, q): ‖(d_i − d_j) x‖ ≤ reading · ‖x‖_P, i the predicted class.
        states: what the states were, for each direction.
        lost: (B, q), what was subtracted from the margins for the rounding of the network that runs.
    """

    prediction: Tensor
    margins: Tensor
    readings: list[Tensor]
    states: tuple[Trajectory, ...]
    lost: Tensor


def scores_of(proved: ProvedNetwork, timeline: Timeline) -> Scores:
    """Evaluate the network in float64, with all rounding bounded."""
    network = proved.network
    found = enclosed_states(proved, timeline)
    device = found[0].states.device
    read, errors = [], []
    for part, trajectory in zip(network.layers[-1], found, strict=True):
        weights = timeline.read_weights(part)
        read.append((weights[..., None] * trajectory.states).sum(0))
        errors.append((weights * trajectory.error).sum(0))
    h = torch.cat(read, -1)
    D, c = (torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (network.D, network.c))
    scores = h @ D.T + c
    # The mean over T steps, the product with the head and the bias.
    terms = h.shape[-1] + len(timeline.samples.valid) + 8
    largest = torch.cat(
        [
            (timeline.read_weights(part)[..., None] * t.states.abs()).sum(0)
            for part, t in zip(network.layers[-1], found, strict=True)
        ],
        -1,
    )
    rounding = 1.01 * terms * UNIT * (largest @ D.abs().T + c.abs()) + 2.0**-1000
    prediction = scores.argmax(1)
    readings = _readings(proved, prediction)
    pick = prediction[:, None]
    margins = scores.gather(1, pick) - scores - rounding - rounding.gather(1, pick)
    for a, error in zip(readings, errors, strict=True):
        margins = margins - a * error[:, None] * (1 + 1e-9)
    margins = margins - 16 * UNIT * (scores.abs() + scores.abs().gather(1, pick))
    return Scores(prediction, margins, readings, found, torch.zeros_like(margins))


def _readings(proved: ProvedNetwork, prediction: Tensor) -> list[Tensor]:
    D, found = proved.network.D, []
    start = 0
    for own in proved.layers[-1]:
        block = np.ascontiguousarray(D[:, start : start + own.part.size])
        start += own.part.size
        table = torch.zeros(len(D), len(D), dtype=torch.float64)
        for i in torch.unique(prediction).tolist():
            table[i] = torch.from_numpy(own.reading(np.broadcast_to(block[i], block.shape), block))
            table[i, i] = 0.0
        found.append(table.to(prediction.device)[prediction])
    return found
