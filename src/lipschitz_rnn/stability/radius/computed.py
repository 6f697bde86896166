"""The network that runs, as a disturbed exact one: what rounding adds to the theorems about radii.

Let d_t = ‖ĥ_t − h_t‖_P, where ĥ is computed from a changed input and h is exact, from the sample. A computed step has
an error r, which grows by at most κ for each unit of ‖ĥ − h‖_P, and by κ_u for each unit of change of the input. So

    d_t ≤ (ρ_t + κ) d_{t−1} + (g_t + κ_u)‖Δ_t‖ + r_t(sample),

the inequality of an exact network with a slightly larger factor and gain, and a disturbance that no change of the input
enlarges. docs/stability.md, theorem 6, has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.arithmetic import arithmetic
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.running import PartBound, RunningPart, sensitivity
from lipschitz_rnn.stability.proof.stepping import OWN
from lipschitz_rnn.stability.radius.kernels import PartRounding, ProvedNetwork, Timeline
from lipschitz_rnn.stability.radius.rounded_steps import RoundedSteps, rounded_steps
from lipschitz_rnn.stability.radius.scores import Scores
from lipschitz_rnn.stability.running.bound import head_rounding
from lipschitz_rnn.stability.running.layers import LayerRun
from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN
from lipschitz_rnn.units.sequences import Sequences

_AT_ONCE = 1 << 22  # numbers of a trajectory whose rounding is bounded at once


@dataclass(frozen=True)
class Rounding:
    """What rounding can take from the differences of scores, (B, q) each, and from whom.

    Attributes:
        constant: at the sample itself.
        fixed: the part of it that does not depend on the states; ``bias`` (q,), |c|.
        readings: as in `Scores`, with the rounding of what reads the states.
        each: the rounding of what reads each entry of the states, (B, q, N), relative to it.
        sizes: (q, N), what a score grows by with each entry; ``limit``: by less than this it does not overflow.
        network: the network with the factors and gains of its computed steps.
    """

    constant: Tensor
    fixed: Tensor
    bias: Tensor
    readings: list[Tensor]
    each: list[Tensor]
    sizes: list[Tensor]
    limit: float
    network: ProvedNetwork

    def at_the_sample(self, read: Sequence[Tensor], chosen: slice) -> Tensor:
        """(B, q): of some samples, where what is read of each part has these magnitudes, (B, N) each."""
        found = self.fixed[chosen]
        magnitude = self.bias
        for each, size, own in zip(self.each, self.sizes, read, strict=True):
            found = found + torch.einsum("bqn,bn->bq", each[chosen], own)
            magnitude = magnitude + own @ size.T
        # Scores that overflow are no numbers.
        fits = (magnitude < 8 * self.limit).all(1, keepdim=True)
        return torch.where(fits, found * OWN, torch.inf).nan_to_num(nan=torch.inf)


@dataclass
class ComputedNetwork:
    """A proved network in the precision that it runs in."""

    proved: ProvedNetwork
    job: LayerRun = field(init=False)
    running: list[list[RunningPart]] = field(init=False)

    def __post_init__(self) -> None:
        network = self.proved.network
        unit = network.stated.unit
        assert isinstance(unit, LipschitzRNN)
        # Certified here, and then run elsewhere: the coarsest backend counts.
        self.job = LayerRun(unit, None, network.precision, "any", None, 0.0, False)
        keys = iter(unit.cells)
        self.running = [
            [self.job.running(own.certificate, next(keys)) for own in parts] for parts in self.proved.layers
        ]

    def rounding(self, timeline: Timeline, scores: Scores) -> Rounding:
        """For a batch."""
        relative = timeline.samples.given.computed_relative
        found = [
            tuple(self._grown(layer, direction, relative) for direction in range(len(parts)))
            for layer, parts in enumerate(self.running)
        ]
        return self._read(timeline, scores, ProvedNetwork(self.proved.network, self.proved.layers, tuple(found)))

    def rounded_steps(
        self, direction: int, timeline: Timeline, steps: Tensor, state: Tensor, entering: Tensor, largest: float
    ) -> RoundedSteps:
        """Of a single layer, in reading order: steps (T, B, 1), bounds on |h| before them, and what can enter."""
        own, running, given = self.proved.layers[0][direction].part, self.running[0][direction], timeline.samples.given
        off = torch.zeros_like(given.inputs) if given.computed is None else given.computed.double()
        size = given.inputs.abs() + (0.0 if given.error is None else given.error[..., None])
        return rounded_steps(
            running,
            self.job.between(own.cell, running),
            steps,
            state,
            timeline.ordered(size, own),
            timeline.ordered(off, own),
            given.computed_relative,
            entering,
            largest,
        )

    def largest_change(self, rounding: Rounding, timeline: Timeline, entering: Sequence[Tensor], size: float) -> Tensor:
        """(B,): changes up to this size, each unit of which is an input of Euclidean length ``size``, overflow nothing.

        A sample's own numbers are below ``largest`` and so are its errors, and twice that much still fits.
        """
        limit = 0.125 * min(running.model.largest for parts in self.running for running in parts)
        moved = rounding.network.distances(timeline, entering)
        most = torch.full_like(moved[0][0], size)
        for layer, parts in enumerate(self.running):
            for running, own in zip(parts, moved[layer], strict=True):
                steps, nothing = _longest(running), np.zeros(running.size)
                reached = running.step_model.growth_of_sizes(running.reach, steps) * own
                if layer == 0:
                    feed = running.feed_growth(_row_norms(running))
                    reached = reached + running.step_model.growth_of_sizes(nothing, steps, feed) * size
                for source, below in enumerate(self.running[layer - 1] if layer else ()):
                    feed = running.feed_growth(self._fed(layer, running, source, below.reach))
                    grown = running.step_model.growth_of_sizes(nothing, steps, feed)
                    reached = reached + grown * moved[layer - 1][source]
                most = torch.maximum(most, reached.nan_to_num(torch.inf))
        scores = sum(
            (
                own[:, None] * (size @ torch.from_numpy(running.reach).to(size.device))
                for own, size, running in zip(moved[-1], rounding.sizes, self.running[-1], strict=True)
            ),
            torch.zeros_like(rounding.fixed),
        ).amax(1)
        return torch.minimum(limit / most, rounding.limit / scores.nan_to_num(torch.inf).clamp(min=1e-300))

    def _grown(self, layer: int, direction: int, relative: float) -> PartRounding:
        """κ of a part: for its state, its input, and the parts below it."""
        running, unit = self.running[layer][direction], self.job.layer
        between = self.job.between(unit.cell(layer, direction), running)
        steps, nothing = _longest(running), np.zeros(running.size)

        def local(rows: Matrix, off: float) -> float:
            return float(running.length(running.step_model.growth(nothing, steps, running.feed_growth(rows, off))))

        sources = tuple(
            local(self._fed(layer, running, source, below.reach), below.model.returned)
            for source, below in enumerate(self.running[layer - 1] if layer else ())
        )
        entry = local(_row_norms(running), relative) if layer == 0 else 0.0
        return PartRounding(sensitivity(running, steps, between), entry, sources)

    def _fed(self, layer: int, running: RunningPart, source: int, reach: Matrix) -> Matrix:
        """|U| reach for what comes from one part of the layer below: (N,)."""
        assert running.U is not None
        start = sum(below.size for below in self.running[layer - 1][:source])
        fed: Matrix = np.abs(running.U[:, start : start + len(reach)]) @ reach * OWN
        return fed

    def _read(self, timeline: Timeline, scores: Scores, grown: ProvedNetwork) -> Rounding:
        """What reading the states costs."""
        network, device = self.proved.network, scores.margins.device
        D, c = np.abs(network.D), np.abs(network.c)
        head, lost = (
            torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in head_rounding(D, c, network.precision)
        )
        pick = scores.prediction
        errors, sizes = self._roughly(timeline, scores) or self._states(timeline)
        constant, fixed, at = torch.zeros_like(scores.margins), lost[pick][:, None] + lost, 0
        readings, relative, heads, magnitudes = [], [], [], []
        weight = torch.from_numpy(np.ascontiguousarray(network.D)).to(device)
        for direction, running in enumerate(self.running[-1]):
            columns = slice(at, at + running.size)
            at += running.size
            own = weight[:, columns]
            pair = (own[pick][:, None] - own[None]).abs()  # (B, q, N)
            each = (
                self._output_rounding(running, timeline) * pair + head[pick][:, None, columns] + head[None, :, columns]
            )
            weights = timeline.read_weights(network.layers[-1][direction])
            off = (weights * (errors[direction] + scores.states[direction].error)).sum(0)
            constant = constant + scores.readings[direction] * off[:, None]
            fixed = fixed + running.model.smallest * pair.sum(-1)
            readings.append((scores.readings[direction] + each @ torch.from_numpy(running.reach).to(device)) * OWN)
            relative.append(each)
            heads.append(own.abs())
            magnitudes.append((weights[..., None] * sizes[direction]).sum(0))
        limit, bias = 0.125 * arithmetic(network.precision).largest, torch.from_numpy(c).to(device)
        found = Rounding(constant, fixed, bias, readings, relative, heads, limit, grown)
        constant = constant * OWN + found.at_the_sample(magnitudes, slice(None))
        return replace(found, constant=constant.nan_to_num(nan=torch.inf))

    def _output_rounding(self, running: RunningPart, timeline: Timeline) -> float:
        """Relative, of an entry of what the head reads."""
        mean = timeline.network.stated.readout == "mean"
        # PyTorch adds up in float32 at least. A mean is a product with a mask, a sum and a quotient.
        taken = (timeline.samples.shape[0] + 4) * running.model.unit + 4 * running.model.returned if mean else 0.0
        return 1.01 * (running.model.returned + taken)

    def _roughly(self, timeline: Timeline, scores: Scores) -> tuple[list[Tensor], list[Tensor]] | None:
        """The same from norms alone, r ≤ r(0) + κ‖ĥ‖ + κ_u‖x‖, many times as fast: for one layer in float64, where the
        difference is far below every margin. None where there is more to know."""
        given, network = timeline.samples.given, self.proved.network
        plain = given.error is None and (given.computed is None or not bool(given.computed.any()))
        if len(self.proved.layers) > 1 or network.precision != "float64" or not plain:
            return None
        errors, sizes = [], []
        for direction, (own, running) in enumerate(zip(self.proved.layers[0], self.running[0], strict=True)):
            steps, rounding = timeline.steps(own.part), self._grown(0, direction, 0.0)
            states, off = (
                timeline.ordered(each, own.part)
                for each in (scores.states[direction].states, scores.states[direction].error)
            )
            largest = float(states.abs().max()) + float(given.inputs.abs().max())
            if bool((steps.counts > 1).any()) or not largest + rounding.state + rounding.entry < 1e100:
                return None
            nothing = running.feed(np.zeros((1, given.inputs.shape[-1])))
            rest = running.step_model.local(np.zeros((1, own.part.size)), nothing, np.full((1, 1), _longest(running)))[
                0
            ]
            root = torch.from_numpy(np.abs(own.metric.root)).to(states.device)
            length = own.metric.root_slack * (states.abs() @ root).norm(dim=-1) + off  # bounds ‖h‖_P, (T, B)
            length = torch.cat((torch.zeros_like(length[:1]), length[:-1]))
            x = timeline.ordered(given.inputs, own.part).norm(dim=-1)
            added = float(running.length(rest)[0]) + rounding.state * length + rounding.entry * x
            added = torch.where(steps.lengths > 0, added * OWN, 0.0)
            level, found = torch.zeros_like(off[0]), []
            for factor, more in zip(own.factors(steps, rounding.state), added, strict=True):
                level = (factor * level + more) * (1 + 1e-12)
                found.append(level)
            error = torch.stack(found)
            reach = torch.from_numpy(running.reach).to(states.device)
            errors.append(timeline.ordered(error, own.part))
            sizes.append(timeline.ordered(states.abs() + reach * (error + off)[..., None], own.part) * OWN)
        return errors, sizes

    def _states(self, timeline: Timeline) -> tuple[list[Tensor], list[Tensor]]:
        """For each part of the last layer, by time: bounds on ‖ĥ − h‖_P (T, B), and on |ĥ| (T, B, N)."""
        samples, parts = timeline.samples, self.proved.layers[-1]
        T, B = samples.shape
        at_once = max(1, _AT_ONCE // (T * sum(own.part.size for own in parts)))
        found = [self._of_some(timeline, slice(first, first + at_once)) for first in range(0, B, at_once)]
        device = samples.given.inputs.device
        errors: list[Tensor] = []
        sizes: list[Tensor] = []
        for index, own in enumerate(parts):
            bounds = [each[index] for each in found]
            for collected, values in (
                (errors, [bound.states for bound in bounds]),
                (sizes, [bound.sizes for bound in bounds]),
            ):
                whole = torch.from_numpy(np.concatenate(values, 1)).to(device)
                collected.append(timeline.ordered(whole, own.part))
        return errors, sizes

    def _of_some(self, timeline: Timeline, chosen: slice) -> Sequence[PartBound]:
        some = timeline.samples.part(chosen)
        given = some.given
        lengths = some.lengths if timeline.network.stated.unit_takes_lengths else None
        sequences = Sequences(given.inputs, lengths, given.timespans, False, True, None)
        self.job.inputs_off = given.computed
        certificates = [own.certificate for parts in self.proved.layers for own in parts]
        return self.job.bounds(sequences, certificates).parts[-len(self.running[-1]) :]


def _longest(running: RunningPart) -> float:
    assert running.certificate.step_range is not None
    return running.certificate.step_range[1] * (1 + 1e-6)


def _row_norms(running: RunningPart) -> Matrix:
    """|U x| ≤ row norm · ‖x‖₂, by row."""
    assert running.U is not None
    largest = max(float(np.abs(running.U).max(initial=0.0)), 2.0**-1000)  # so that no square leaves the range
    norms: Matrix = np.sqrt(((running.U / largest) ** 2).sum(1)) * largest * OWN
    return norms
