"""Gains of score differences from the energy of a change of the input: theorem 8 in docs/stability.md.

A step keeps at most θ of ‖δh‖²_P and adds at most γ²‖Δx‖². So squared lengths obey the inequality that lengths obey in
``kernels``, and weights on them travel backwards through a stack in the same way: with m_t = w_t + θ_{t+1} m_{t+1}, one
unit of energy at the input of step t counts γ² m_t.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.norms import product
from lipschitz_rnn.stability.proof.rounding import UNIT
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, ProvedPart, StepEnergy, Timeline, adjoint

_LOST = (0.0, 0.5, 0.9)  # shares of 1 − ρ² that a step is asked to lose: the more, the larger is γ
_TINY = 2.0**-500  # its square is positive
_LEAST = _TINY**2  # what products that underflow count at least


def energy_gains(
    network: ProvedNetwork, timeline: Timeline, readings: list[Tensor], sizes: Tensor, norm: str
) -> Tensor:
    """(B, q): how fast the score of the predicted class can fall behind others, by the energy of the change.

    Args:
        network: exact, or with the rounding of the network that runs.
        readings: as in `Scores`, likewise.
        sizes: (T,), the largest Euclidean length of an input's change, for a change of size 1 in this norm.
    """
    best = torch.full_like(readings[0], math.inf)
    # One layer, l2: a change in the last step counts in full, so nothing is won by losing more on the way.
    for lost in _LOST[:1] if len(network.layers) == 1 and norm == "l2" else _LOST:
        energies = _step_energies(network, lost)
        if all(math.isfinite(each.gain) for parts in energies for each in parts):
            found = _Energies(network, timeline, energies, sizes, norm).gains(readings)
            best = torch.minimum(best, found.masked_fill(found.isnan(), math.inf))
    return best


def _step_energies(network: ProvedNetwork, lost: float) -> list[list[StepEnergy]]:
    """By layer and direction; no further than to the first one without a gain."""
    found: list[list[StepEnergy]] = []
    below: tuple[ProvedPart, ...] = ()
    for parts in network.layers:
        found.append([own.energy(lost, below) for own in parts])
        if not all(math.isfinite(each.gain) for each in found[-1]):
            break
        below = parts
    return found


class _Energies:
    """The energies of a network for a batch, with what its steps keep and add."""

    def __init__(
        self,
        network: ProvedNetwork,
        timeline: Timeline,
        energies: list[list[StepEnergy]],
        sizes: Tensor,
        norm: str,
    ) -> None:
        self.network, self.timeline, self.energies, self.norm = network, timeline, energies, norm
        self.largest = float(sizes.max().clamp(min=2.0**-1000))
        self.given = torch.where(sizes > 0, (sizes / self.largest).clamp(min=_TINY), 0.0)[:, None] * (
            timeline.samples.valid
        )  # (T, B), the size of a change relative to the largest one

    def gains(self, readings: list[Tensor]) -> Tensor:
        found = torch.zeros_like(readings[0])
        rounds = any(
            part.state + part.entry + sum(part.sources) > 0 for parts in self.network.rounding for part in parts
        )
        moved = self._moved() if rounds else []
        for top, reading in enumerate(readings):
            unit, kernel = self._kernel(top)
            kernel = torch.where(self.given > 0, (kernel * self.given.square()).clamp(min=_LEAST), 0.0)
            length = unit * (kernel.amax(0) if self.norm == "l2" else kernel.sum(0)).sqrt()
            if rounds:
                length = length + self._rounding(top, moved)
            found = found + reading * (length * self.largest)[:, None]
        return found * (1 + 32 * UNIT * len(self.energies) * (len(self.given) + 16))

    def _passed(self, layer: int, direction: int) -> tuple[Tensor, Tensor]:
        """What each sample keeps of the energy, and how often it adds γ²‖Δx‖², (T, B) in the part's order.

        A step of length rε is the average of a whole step and of staying. Sub-steps hold their input.
        """
        own = self.network.layers[layer][direction]
        assert own.certificate.step_range is not None
        steps = self.timeline.steps(own.part)
        ratio = steps.lengths / own.certificate.step_range[1] * (1 + 4 * UNIT)
        kept = (1.0 - ratio * (1.0 - self.energies[layer][direction].kept) + 8 * UNIT).clamp(0.0, 1.0)
        return kept.pow(steps.counts) * (1 + 1e-13 * steps.counts), ratio * steps.counts

    def _kernel(self, top: int) -> tuple[float, Tensor]:
        """k (T, B) and a number c: the squared length of what is read is at most c² Σ_t k_t ‖Δx_t‖²."""
        unit, weights = 1.0, {top: self.timeline.read_weights(self.network.network.layers[-1][top])}
        for layer in range(len(self.energies) - 1, -1, -1):
            strongest = max(self.energies[layer][direction].gain for direction in weights)
            unit = max(product(unit, strongest), 1e-300) if strongest > 0 else 0.0
            entered = torch.zeros_like(self.given)
            for direction, weight in weights.items():
                part = self.network.layers[layer][direction].part
                kept, added = self._passed(layer, direction)
                m = adjoint(part, self.timeline, kept, weight).clamp(min=_TINY)
                share = max(self.energies[layer][direction].gain / strongest, _TINY) if strongest > 0 else 0.0
                entered = entered + share**2 * m * self.timeline.ordered(added, part)
            weights = dict.fromkeys(range(len(self.network.layers[layer - 1])), entered) if layer else {0: entered}
        return unit, weights[0]

    def _moved(self) -> list[list[Tensor]]:
        """By layer and direction (B,): how far a change of the input can move any state, relative to the largest."""
        found: list[list[Tensor]] = []
        below = self.given.square()  # (T, B) by time: of the input, then the sum over the parts of the last layer
        for layer, parts in enumerate(self.network.layers):
            reached, after = [], torch.zeros_like(below)
            for direction, own in enumerate(parts):
                kept, added = self._passed(layer, direction)
                more = self.timeline.ordered(below, own.part) * added
                level, levels = torch.zeros_like(more[0]), []
                for keep, each in zip(kept, more, strict=True):
                    # In l2 the whole change has the size of 1, wherever it is.
                    level = torch.maximum(level, each) if layer == 0 and self.norm == "l2" else keep * level + each
                    levels.append(level)
                gain = self.energies[layer][direction].gain
                energy = torch.stack(levels) * (gain * gain) + 2.0**-1000
                reached.append(energy.amax(0).sqrt() * (1 + 1e-12))
                after = after + self.timeline.ordered(energy, own.part)
            below = after
            found.append(reached)
        return found

    def _rounding(self, top: int, moved: list[list[Tensor]]) -> Tensor:
        """(B,): what the rounding that a change causes adds to what is read, relative to the largest change.

        In every step it grows by κ for each unit of ‖δh‖_P, of the state or of what a layer reads, and by κ_u for each
        of ‖Δx‖. The weights of states say what is left of it at the end.
        """
        found = torch.zeros_like(self.given[0])
        for layer, weights in enumerate(self.network.state_weights(self.timeline, top)):
            for direction, weight in weights.items():
                own, rounding = self.network.layers[layer][direction], self.network.rounding[layer][direction]
                once = own.gains(self.timeline.steps(own.part), 0.0, rounding.state, 1.0)
                m = weight * self.timeline.ordered(once, own.part)
                grown = rounding.state * moved[layer][direction]
                for source, each in enumerate(moved[layer - 1] if layer else ()):
                    grown = grown + rounding.sources[source] * each
                found = found + grown * m.sum(0)
                if layer == 0:
                    entered = m * self.given
                    found = found + rounding.entry * (_length(entered) if self.norm == "l2" else entered.sum(0))
        return found


def _length(values: Tensor) -> Tensor:
    """The Euclidean norm over all steps; brought to the size of 1 first, so that no square underflows."""
    top = values.amax(0).clamp(min=2.0**-1000)
    return (values / top).square().sum(0).sqrt() * top
