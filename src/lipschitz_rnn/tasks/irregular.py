"""Two tasks sampled at irregular times: digits of which half the pixels are lost, and pendulums seen now and then."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import (
    ACCURACY,
    MSE,
    SPLITS,
    Batch,
    Generators,
    Split,
    TaskInfo,
    check_count,
    check_split,
    member_generators,
)
from lipschitz_rnn.tasks.counting import sample_keys, uniform
from lipschitz_rnn.tasks.objectives import Classification, Regression
from lipschitz_rnn.tasks.pixels import Digits, device_indices
from lipschitz_rnn.tasks.synthetic import GeneratedTask, runge_kutta
from lipschitz_rnn.tasks.times import TimedTask, Times, with_times

ROW = 8  # pixels in a row of an image, which take one unit of time
LONGEST = 64 / ROW  # time of a whole image
SUBSTEPS = 32  # of every timespan of a pendulum, which is at most 1.6


class IrregularDigits(TimedTask, Classification):
    """scikit-learn's 8 × 8 digits, pixel by pixel, with only `kept` of the 64 pixels, chosen at random.

    The time of a pixel is its place in scanline order; a row takes one unit of time. A timespan is the time since the
    previous pixel that was kept, or since the start of the image. So the gaps tell where a pixel is: without them, only
    the order of the values is known. Every image has its own pixels. In training with a generator they are drawn anew
    each time, otherwise they are fixed by `seed` and the image.
    """

    info = TaskInfo(
        name="irregular-digits",
        summary="8 × 8 digits, pixel by pixel, with half of the pixels lost at random",
        input_size=1,
        output_size=10,
        sequence_length=32,
        readout="last",
        metric=ACCURACY,
        sizes=Digits.info.sizes,
        source=Digits.info.source,
        licence=Digits.info.licence,
    )

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        kept: int = 32,
        seed: int = 0,
        times: Times = "step",
    ) -> None:
        check_count("kept", kept, 1, 64)
        check_count("seed", seed, 0, 2**31 - 1)
        super().__init__({"kept": kept, "seed": seed, "times": times}, sequence_length=kept)
        self.see_times(times)
        self.kept, self._seed = kept, seed
        digits = Digits()
        whole = {split: digits.batch(split, torch.arange(digits.size(split))) for split in SPLITS}
        for split, batch in whole.items():
            self._data[f"{split}.pixels"] = batch.inputs.squeeze(-1).T.contiguous()
            self._data[f"{split}.labels"] = batch.targets

    def size(self, split: Split) -> int:
        return len(self._data[f"{check_split(split)}.labels"])

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = device_indices(indices, self.device)
        labels = self._data[f"{check_split(split)}.labels"][indices]
        places = self._draws(split, indices, generator).argsort(dim=-1, stable=True)[..., : self.kept].sort(-1).values
        values = self._data[f"{split}.pixels"][indices].gather(-1, places)
        spans = torch.diff(places, dim=-1, prepend=places.new_full((*indices.shape, 1), -1)).float() / ROW
        inputs, timespans = (part.transpose(-2, -1).contiguous() for part in (values, spans))
        return with_times(Batch(inputs.unsqueeze(-1), labels, timespans=timespans), self.times)

    def _draws(self, split: Split, indices: Tensor, generator: Generators) -> Tensor:
        """(..., B, 64) numbers; the pixels with the smallest are kept."""
        if generator is None or split != "train":
            return uniform(sample_keys(indices, self._seed, split), 64)
        shape = (indices.shape[-1], 64)
        drawn = [torch.rand(shape, generator=own, device=own.device) for own in member_generators(generator, indices)]
        return torch.stack(drawn).view(*indices.shape, 64).to(self.device)


class IrregularPendulum(TimedTask, GeneratedTask, Regression):
    """The frequency of a damped pendulum θ̈ = −ω² sin θ − c θ̇ from its angle at random times.

    Target: log₂ ω, uniform in [−1, 1]; always answering 0 has an error of 1/3. c is uniform in [0, 0.3], the pendulum
    starts at rest at |θ| between 0.5 and 1.5. It is seen 20 to 40 times: the times between samples are exponentially
    distributed (a Poisson process, cut at four times the mean), and their mean, as if set by the observer, is between
    0.1 and 0.4, uniform in its logarithm. So without the times, a slow pendulum seen rarely looks like a fast one seen
    often. Integrated with the classical Runge-Kutta method in float64 with 32 substeps, of at most 0.05.
    """

    info = TaskInfo(
        name="irregular-pendulum",
        summary="frequency of a damped pendulum, whose angle is seen at random times",
        input_size=1,
        output_size=1,
        sequence_length=40,
        readout="last",
        metric=MSE,
        sizes={"train": 2_000, "validation": 500, "test": 500},
        source="generated",
        licence="that of this package",
    )

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        length: int = 40,
        seed: int = 0,
        train_size: int = 2_000,
        eval_size: int = 500,
        times: Times = "step",
    ) -> None:
        check_count("length", length, 2)
        super().__init__(length, seed, train_size, eval_size, length=length, times=times)
        self.see_times(times)
        sizes = [self.size(split) for split in SPLITS]
        keys = [sample_keys(torch.arange(size), seed, split) for size, split in zip(sizes, SPLITS, strict=True)]
        drawn = uniform(torch.cat(keys), 6 + length).double()  # integrated together: thousands of small operations
        power, damping, start, side, pace, count = drawn[:, :6].unbind(-1)
        spans = 0.1 * 4.0 ** pace.unsqueeze(-1) * -torch.log1p(-drawn[:, 6:] * -math.expm1(-4.0))
        angle = (0.5 + start) * torch.where(side < 0.5, -1.0, 1.0)
        angles = _angles(angle, 2.0 ** (2.0 * power - 1.0), 0.3 * damping, spans)
        lengths = length // 2 + (count * (length - length // 2 + 1)).long()
        found = {"angles": angles.float(), "spans": spans.float(), "lengths": lengths}
        found["targets"] = (2.0 * power - 1.0).float().unsqueeze(-1)
        for name, values in found.items():
            self._data |= {f"{s}.{name}": part for s, part in zip(SPLITS, values.split(sizes), strict=True)}

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = device_indices(indices, self.device)
        names = ("angles", "spans", "targets", "lengths")
        angles, spans, targets, lengths = (self._data[f"{check_split(split)}.{name}"][indices] for name in names)
        padding = torch.arange(self.sequence_length, device=self.device) >= lengths.unsqueeze(-1)
        inputs, timespans = (part.masked_fill(padding, 0.0).transpose(-2, -1).contiguous() for part in (angles, spans))
        return with_times(Batch(inputs.unsqueeze(-1), targets, lengths, timespans), self.times)


def _angles(start: Tensor, frequency: Tensor, damping: Tensor, spans: Tensor) -> Tensor:
    """(n, T) angles after the times spans (n, T), one after another."""

    def velocity(state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        return torch.stack((speed, -(frequency**2) * angle.sin() - damping * speed), -1)

    state = torch.stack((start, torch.zeros_like(start)), -1)
    angles = []
    for span in spans.unbind(-1):
        h = (span / SUBSTEPS).unsqueeze(-1)
        for _ in range(SUBSTEPS):
            state = runge_kutta(velocity, state, h)
        angles.append(state[..., 0])
    return torch.stack(angles, -1)
