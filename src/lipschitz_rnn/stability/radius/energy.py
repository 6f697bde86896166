"""Gains of score differences from the energy of a change of the input: theorem 8 in docs/stability.md."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.rounding import UNIT
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, Timeline, part_kernel


def energy_gains(
    network: ProvedNetwork, timeline: Timeline, readings: list[Tensor], sizes: Tensor, norm: str
) -> Tensor:
    """(B, q): how fast the score of the predicted class can fall behind others, by the energy of the change.

    Args:
        network: exact, or with the rounding of the network that runs.
        readings: as in `Scores`, likewise.
        sizes: (T,), the largest Euclidean length of an input's change, for a change of size 1 in this norm.
    """
    nothing = torch.full_like(readings[0], math.inf)
    if len(network.layers) > 1:  # what a layer passes on changes in every step
        return nothing
    gains = torch.zeros_like(readings[0])
    for direction, own in enumerate(network.layers[0]):
        if not math.isfinite(own.energy):
            return nothing
        assert own.certificate.step_range is not None
        rounding, steps, longest = (
            network.rounding[0][direction],
            timeline.steps(own.part),
            own.certificate.step_range[1],
        )
        given = sizes[:, None] * timeline.samples.valid
        # A step of length rε is the average of a whole step and of staying. Sub-steps hold their input.
        shares = (steps.counts * (steps.lengths / longest)).sqrt() * (1 + 8 * UNIT)
        changed = given * timeline.ordered(shares, own.part)
        moved = own.energy * (changed.amax(0) if norm == "l2" else _length(changed))  # ‖δh‖_P at every step
        # Rounding grows by κ for each unit of ‖δh‖_P and by κ_u for each of ‖Δx‖; m is what is left of it at the end.
        m = part_kernel(own, timeline, timeline.read_weights(own.part), rounding.state)
        m = m * timeline.ordered(own.gains(steps, 0.0, rounding.state, 1.0), own.part)
        entered = _length(m * given) if norm == "l2" else (m * given).sum(0)
        lost = rounding.state * moved * m.sum(0) + rounding.entry * entered
        gains = gains + readings[direction] * (moved + lost)[:, None]
    gains = gains * (1 + 32 * UNIT * (len(sizes) + 8))
    return gains.masked_fill(gains.isnan(), math.inf)


def _length(values: Tensor) -> Tensor:
    """The Euclidean norm over all steps; brought to the size of 1 first, so that no square underflows."""
    top = values.amax(0).clamp(min=2.0**-1000)
    return (values / top).square().sum(0).sqrt() * top
