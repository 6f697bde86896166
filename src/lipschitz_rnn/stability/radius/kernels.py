"""How much a change of one input can move what is read later: the kernels k_t of layers, stacks and directions.

A part with factor ρ_t and gain g_t at step t obeys ‖δh_t‖_P ≤ ρ_t‖δh_{t−1}‖_P + g_t‖δx_t‖. A stack is a cascade of such
scalar inequalities, so weights on what is read travel backwards through it: with m_t = w_t + ρ_{t+1} m_{t+1}, one unit
of change at the input of step t counts g_t m_t. For equal steps this is the convolution of the layers' kernels.

All numbers are non-negative, so rounding is relative: every result is multiplied by a factor that covers it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.certificate import Certificate
from lipschitz_rnn.stability.proof.energy import energy_gain
from lipschitz_rnn.stability.proof.norms import MetricNorms, product, root, total
from lipschitz_rnn.stability.proof.rates import round_up
from lipschitz_rnn.stability.proof.rounding import UNIT, Ball, Matrix, block, largest_eigenvalue_bound
from lipschitz_rnn.stability.radius.network import Network, Part, Samples, Steps
from lipschitz_rnn.units.sequences import reverse


@dataclass(frozen=True)
class StepEnergy:
    """‖δh⁺‖²_P ≤ kept · ‖δh‖²_P + gain² · ‖Δx‖² for the longest certified step; the gain may be infinite."""

    kept: float
    gain: float


@dataclass(frozen=True)
class ProvedPart:
    """A part with its certificate: norms in its metric, the factor of each step and what an input adds."""

    part: Part
    certificate: Certificate
    metric: MetricNorms
    energies: dict[float, StepEnergy] = field(default_factory=dict, repr=False, compare=False)

    @property
    def slopes(self) -> tuple[Fraction, Fraction]:
        low, high = self.part.sigma.slope_range
        return Fraction(low), Fraction(high)

    def entry(self, U: Ball, source: MetricNorms | None = None) -> float:
        """‖D U x‖_P ≤ entry · ‖x‖ for all slopes D; ‖x‖ is Euclidean, or in the metric of the part that x comes from.

        D = c + r·q with |q| ≤ 1: the average c of the slopes acts without loss. A diagonal P commutes with q.
        """
        low, high = self.slopes
        turned = U if source is None else U @ source.T
        inside = root(_over(largest_eigenvalue_bound(turned.T @ self.metric.P @ turned), source))
        fed = inside
        if not self.metric.diagonal:
            fed = product(self.metric.largest, root(_over(largest_eigenvalue_bound(turned.T @ turned), source)))
        return total(
            product(round_up(abs(low + high) / 2), inside),
            product(round_up((high - low) / 2), fed),
        )

    @cached_property
    def slope(self) -> float:
        """‖αA + D W‖_P over all slopes."""
        part = self.part
        return self.metric.slope(part.alpha * Ball.exact(part.A), Ball.exact(part.W), part.sigma.slope_range)

    def energy(self, lost: float, below: Sequence[ProvedPart] = ()) -> StepEnergy:
        """What a whole step keeps of ‖δh‖²_P and adds to it, if it is to lose this share of what ρ² takes away.

        The input is measured in the metrics of the parts that it comes from, ‖Δx‖² = Σ‖δh‖²_P over them, or in l2.
        """
        if lost not in self.energies:
            assert self.certificate.step_range is not None
            decay = min(self.certificate.rate * self.certificate.step_range[1], 1.0)
            kept = 1.0 - lost * decay * (2.0 - decay)
            U, scale, at = Ball.exact(self.part.U), 1.0, 0
            if below:
                blocks = []
                for source in below:
                    columns = np.ascontiguousarray(self.part.U[:, at : at + source.part.size])
                    at, scale = at + source.part.size, min(scale, source.metric.scale)
                    blocks.append(Ball.exact(columns) @ source.metric.T)
                U = block([blocks])
            gain = energy_gain(self.certificate, self.metric, U, kept)
            self.energies[lost] = StepEnergy(kept, product(gain, root(math.nextafter(1.0 / scale, math.inf))))
        return self.energies[lost]

    def factors(self, steps: Steps, slack: float = 0.0) -> Tensor:
        """The factor of every sample, (T, B): ρⁿ for its n steps. ``slack`` is added to the factor of each step."""
        one = self._loosened(steps, slack)
        return one if _single(steps) else torch.pow(one, steps.counts) * _grown(steps)

    def gains(self, steps: Steps, entry: float, slack: float = 0.0, extra: float = 0.0) -> Tensor:
        """What one unit of change of the input, held over all steps of a sample, adds to the state: (T, B).

        ``extra`` is added to what it adds in each step.
        """
        added = self.step_gains(steps, entry) + extra * (steps.lengths > 0)
        if _single(steps):
            return added
        # 1 + ρ + … + ρⁿ⁻¹, which is at most n, or nρⁿ for ρ > 1.
        ratio, counts = self._loosened(steps, slack), steps.counts.double()
        summed = -torch.expm1(counts * torch.log(ratio)) / (1.0 - ratio)
        most = counts * torch.pow(ratio.clamp(min=1.0), steps.counts)
        return added * torch.where(ratio < 1.0, torch.minimum(summed * (1 + 1e-12), counts), most) * _grown(steps)

    def _loosened(self, steps: Steps, slack: float) -> Tensor:
        one = self.step_factors(steps)
        return one if slack == 0.0 else (one + slack * (steps.lengths > 0)) * (1 + 2 * UNIT)

    def step_gains(self, steps: Steps, entry: float) -> Tensor:
        """The same for one step of each sample.

        Every stage adds its own change, and later stages pass earlier ones on through αA + D W.
        """
        lengths = steps.lengths * (1 + 4 * UNIT)
        changes: list[Tensor] = []
        slope = self.slope if len(self.part.tableau) > 1 else 0.0
        for row in self.part.tableau.stages:
            passed = sum((abs(a) * change for a, change in zip(row, changes, strict=True)), torch.zeros_like(lengths))
            changes.append(entry + slope * lengths * passed)
        weights = zip(self.part.tableau.weights, changes, strict=True)
        added: Tensor = lengths * sum((abs(b) * change for b, change in weights), torch.zeros_like(lengths))
        return added * (1 + 64 * UNIT)

    def step_factors(self, steps: Steps) -> Tensor:
        """ρ of one step of each sample."""
        certificate = self.certificate
        assert certificate.factor is not None  # asked for with a step
        assert certificate.step_range is not None
        shortest, longest = certificate.step_range
        if shortest == longest:  # a step of length zero, as in padding, changes nothing
            return torch.full_like(steps.lengths, certificate.factor).masked_fill(steps.lengths == 0, 1.0)
        # Proved for the range: 1 − λε. Near λε = 1 the difference is small, and its rounding is not.
        return (1.0 - certificate.rate * steps.lengths + 8 * UNIT).clamp(max=1.0)

    def reading(self, rows: Matrix, other: Matrix) -> Matrix:
        """‖(a − b) x‖ ≤ reading · ‖x‖_P for every pair of rows a, b, (n, N) each: (n,)."""
        turned = ((Ball.exact(rows) - Ball.exact(other)) @ self.metric.T).upper_magnitude()
        largest = np.maximum(turned.max(-1, keepdims=True), 2.0**-500)  # so that no square underflows
        squares = ((turned / largest) ** 2).sum(-1) * (1 + 4 * (rows.shape[1] + 8) * UNIT)
        bounds: Matrix = largest[:, 0] * np.sqrt(squares / self.metric.scale) * (1 + 8 * UNIT)
        return bounds


def _over(value: float, source: MetricNorms | None) -> float:
    return max(value, 0.0) if source is None else math.nextafter(max(value, 0.0) / source.scale, math.inf)


def _single(steps: Steps) -> bool:
    return bool((steps.counts == 1).all())


def _grown(steps: Steps) -> Tensor:
    """Covers the rounding of a power with these exponents."""
    return 1.0 + 8.0 * UNIT * (steps.counts.double() + 8.0)


@dataclass(frozen=True)
class Timeline:
    """The steps of all parts for a batch, and the order in which they read it."""

    network: Network
    samples: Samples

    def steps(self, part: Part) -> Steps:
        """In the part's reading order."""
        x = self.samples.given.inputs
        found = self.network.steps_of(part, self.samples.given.timespans, self.samples.shape, x.device)
        return Steps(self.ordered(found.lengths, part), self.ordered(found.counts, part))

    def ordered(self, sequence: Tensor, part: Part) -> Tensor:
        """(T, B, …) in the reading order of a part, and from it back: reversing twice changes nothing."""
        return reverse(sequence, self._ends) if part.reverse else sequence

    @property
    def _ends(self) -> Tensor | None:
        return self.samples.lengths if self.network.stated.unit_takes_lengths else None

    def read_weights(self, part: Part) -> Tensor:
        """(T, B), in the order of time: the weight of every state of the last layer in what the head reads."""
        samples, stated = self.samples, self.network.stated
        T, B = samples.shape
        device = samples.valid.device
        steps = torch.arange(T, device=device)[:, None]
        if stated.readout == "mean":
            return samples.valid.double() / samples.lengths
        if stated.readout == "last":
            return (steps == samples.lengths - 1).double()
        end = samples.lengths - 1 if stated.unit_takes_lengths else torch.full((B,), T - 1, device=device)
        return (steps == (torch.zeros_like(end) if part.reverse else end)).double()


def part_kernel(part: ProvedPart, timeline: Timeline, weights: Tensor, slack: float = 0.0) -> Tensor:
    """m_t of the adjoint recursion, in the order of time: the weight of a change of the state at step t, (T, B)."""
    return adjoint(part.part, timeline, part.factors(timeline.steps(part.part), slack), weights)


def adjoint(part: Part, timeline: Timeline, factors: Tensor, weights: Tensor) -> Tensor:
    """m_t = w_t + ρ_{t+1} m_{t+1} along the part's own order, for weights in the order of time."""
    ordered = timeline.ordered(weights, part)
    kernel = torch.empty_like(ordered)
    running = torch.zeros_like(ordered[0])
    for step in range(len(ordered) - 1, -1, -1):
        running = ordered[step] + running
        kernel[step] = running
        running = factors[step] * running
    return timeline.ordered(kernel, part)


@dataclass(frozen=True)
class PartRounding:
    """By how much the rounding of a step grows, in ‖·‖_P, with the size of what it is computed from.

    Attributes:
        state: for each unit of ‖·‖_P by which the state is larger.
        entry: for each unit of Euclidean length by which the input is larger.
        sources: for each unit of ‖·‖_P by which the state of each part of the layer below is larger.
    """

    state: float = 0.0
    entry: float = 0.0
    sources: tuple[float, ...] = (0.0, 0.0)


class ProvedNetwork:
    """All parts of a network with their certificates, and how strongly each layer feeds the next.

    With ``rounding``, by layer and direction, it is the network as it is computed: a step multiplies differences by ρ +
    state, and an input adds g + entry.
    """

    def __init__(
        self,
        network: Network,
        layers: tuple[tuple[ProvedPart, ...], ...],
        rounding: tuple[tuple[PartRounding, ...], ...] | None = None,
    ) -> None:
        self.network, self.layers = network, layers
        self.rounding = rounding or tuple(tuple(PartRounding() for _ in parts) for parts in layers)
        self._couplings: dict[tuple[int, int, int], float] = {}

    def fed(self, timeline: Timeline, layer: int, direction: int, source: int) -> Tensor:
        """What a unit of change of a part of the layer below adds to the state of a part, (T, B), by time."""
        part, own = self.layers[layer][direction], self.rounding[layer][direction]
        entry = self.coupling(layer, direction, source)
        found = part.gains(timeline.steps(part.part), entry, own.state, own.sources[source])
        return timeline.ordered(found, part.part)

    def coupling(self, layer: int, direction: int, source: int) -> float:
        """The entry of what direction ``source`` of the layer below gives to a part."""
        place = layer, direction, source
        if place not in self._couplings:
            part, below = self.layers[layer][direction], self.layers[layer - 1]
            start = sum(other.part.size for other in below[:source])
            block = np.ascontiguousarray(part.part.U[:, start : start + below[source].part.size])
            self._couplings[place] = part.entry(Ball.exact(block), below[source].metric)
        return self._couplings[place]

    def input_kernel(self, timeline: Timeline, top: int, first: Sequence[Tensor]) -> Tensor:
        """k (T, B): how far one unit of change of the input at each step moves what is read of part ``top`` of the
        last layer; zero in padding.

        Args:
            first: for each part of the first layer, what a unit of change of the input adds, (T, B), in the order of
                time.
        """
        kernel = sum(
            (m * first[direction] for direction, m in self.state_weights(timeline, top)[0].items()),
            torch.zeros_like(timeline.samples.valid, dtype=torch.float64),
        )
        grown = 1.0 + 16.0 * UNIT * len(self.layers) * (timeline.samples.shape[0] + 16)
        return (kernel * grown).masked_fill(~timeline.samples.valid, 0.0)

    def state_weights(self, timeline: Timeline, top: int) -> list[dict[int, Tensor]]:
        """By layer and direction, (T, B) by time: how far one unit of change of a state moves what is read of part
        ``top`` of the last layer."""
        found: list[dict[int, Tensor]] = []
        weights = {top: timeline.read_weights(self.network.layers[-1][top])}
        for layer in range(len(self.layers) - 1, -1, -1):
            own: dict[int, Tensor] = {}
            below: dict[int, Tensor] = {}
            for direction, weight in weights.items():
                slack = self.rounding[layer][direction].state
                own[direction] = part_kernel(self.layers[layer][direction], timeline, weight, slack)
                for source in range(len(self.layers[layer - 1]) if layer else 0):
                    moved = own[direction] * self.fed(timeline, layer, direction, source)
                    below[source] = below[source] + moved if source in below else moved
            found.append(own)
            weights = below
        return found[::-1]

    def distances(self, timeline: Timeline, first: Sequence[Tensor]) -> list[list[Tensor]]:
        """By layer and direction (B,): how far a change of the input of one unit in every step can move any state."""
        moved: list[Tensor] = []  # (T, B) by time, of the layer below
        found: list[list[Tensor]] = []
        for layer, parts in enumerate(self.layers):
            current = []
            for direction, own in enumerate(parts):
                added = (
                    first[direction]
                    if layer == 0
                    else _along(
                        [self.fed(timeline, layer, direction, source) * each for source, each in enumerate(moved)]
                    )
                )
                factors = own.factors(timeline.steps(own.part), self.rounding[layer][direction].state)
                level, reached = torch.zeros_like(added[0]), []
                for factor, more in zip(factors, timeline.ordered(added, own.part), strict=True):
                    level = (factor * level + more) * (1 + 4 * UNIT)
                    reached.append(level)
                current.append(timeline.ordered(torch.stack(reached), own.part))
            moved = current
            found.append([each.amax(0) for each in current])
        return found


def _along(terms: list[Tensor]) -> Tensor:
    return sum(terms[1:], terms[0])
