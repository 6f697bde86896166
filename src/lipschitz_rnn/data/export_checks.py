"""Inputs for the check of an exported model, made or real, and what PyTorch gives for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.data.ensemble import SeriesEnsemble
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.prediction import as_trained
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.target import Target

_MOST_SERIES, _MOST_STEPS = 32, 500  # of real data
_ROUNDED = 1e-3  # of the standard deviation: coarser steps of float32 than this are worth a warning


@dataclass(frozen=True)
class Feed:
    """Raw inputs of a model."""

    values: Tensor
    times: Tensor | None
    lengths: Tensor
    gap: float = 1.0
    """The typical time between samples."""

    @property
    def next_times(self) -> Tensor | None:
        """(B,): a time after the last sample of every series, at which to predict."""
        if self.times is None:
            return None
        if self.times.dim() == 1:  # of one sample
            return self.times + self._further
        last = self.times.gather(1, (self.lengths - 1).unsqueeze(-1)).squeeze(-1)
        return last + self._further

    @property
    def _further(self) -> Tensor:
        return 0.3 * self.gap * (1 + torch.arange(len(self.values), dtype=torch.float64) % 5)

    def sample(self, index: int) -> Feed:
        """One sample of every series, without the axis of time."""
        times = None if self.times is None else self.times[:, index].contiguous()
        return replace(self, values=self.values[:, index].contiguous(), times=times)

    def first_sample(self) -> Feed:
        return self.sample(0)

    def without_padding(self) -> Feed:
        """The first steps, which all series have."""
        steps = int(self.lengths.min())
        times = None if self.times is None else self.times[:, :steps]
        return replace(self, values=self.values[:, :steps], times=times, lengths=torch.full_like(self.lengths, steps))


def made_inputs(model: SeriesModel, rows: int, steps: int, dtype: torch.dtype, seed: int) -> Feed:
    """Series of different lengths at irregular times, with the means, spreads and categories of the training data; one
    value in five is missing."""
    fitted = model.preprocessing.fitted
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, steps, len(fitted.columns))
    center, scale = model.preprocessing.center.cpu(), model.preprocessing.scale.cpu()
    values = center + scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    for name, table in fitted.categories.items():
        values[..., fitted.columns.index(name)] = torch.randint(0, len(table), shape[:2], generator=generator).double()
    values[torch.rand(shape, generator=generator) < 0.2] = torch.nan
    values[-1, steps // 2] = torch.inf  # counts as missing
    times = None
    if fitted.gap is not None:
        gaps = torch.rand((rows, steps), generator=generator, dtype=torch.float64) + 0.25
        times = (gaps * (fitted.gap if fitted.time_use != "ignored" else 1.0)).cumsum(1)
    lengths = torch.randint(1, steps + 1, (rows,), generator=generator)
    lengths[0] = steps
    return Feed(values.to(dtype), times, lengths, fitted.gap or 1.0)


def real_inputs(model: SeriesModel, series: SeriesSet, dtype: torch.dtype) -> list[Feed]:
    """The first series of a file, cut to a length that is checked in seconds."""
    fitting = as_trained(series, model)
    values, times, lengths = fitting.padded(np.arange(min(len(fitting), _MOST_SERIES)))
    values, lengths = values[:, :_MOST_STEPS].to(dtype), lengths.clamp(max=_MOST_STEPS)
    gap = model.preprocessing.fitted.gap or 1.0
    return [Feed(values, None if times is None else times[:, :_MOST_STEPS], lengths, gap)]


@torch.no_grad()
def expected_steps(eager: SeriesEnsemble, feed: Feed, timed: bool) -> Tensor:
    """(B, T, q): what the models predict for the series up to each sample, in batches of whole series."""
    times = feed.times if timed else None
    ahead = timed and eager.looks_ahead
    if eager.target.readout == "all" and not ahead:
        result: Tensor = eager(feed.values, times, feed.lengths)
        return result
    if ahead:  # each sample is predicted at the time that its step was asked for, not when the next one came
        each = []
        for stop in range(1, feed.values.shape[1] + 1):
            cut = None if times is None else times[:, :stop]
            own = replace(feed, values=feed.values[:, :stop], times=cut, lengths=torch.full_like(feed.lengths, stop))
            each.append(eager(own.values, own.times, own.lengths, own.next_times)[:, -1])
        return torch.stack(each, 1)
    ends = torch.arange(1, feed.values.shape[1] + 1)
    each = []
    for row in range(feed.values.shape[0]):
        values = feed.values[row].expand(len(ends), -1, -1)
        each.append(eager(values, None if times is None else times[row].expand(len(ends), -1), ends))
    return torch.stack(each)


def largest_difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value if that is above 1; inf if only one of them is NaN."""
    if found.shape != expected.shape or bool((found.isnan() != expected.isnan()).any()):
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    size = float(expected.nan_to_num().abs().max().clamp(min=1.0))
    return float((found.double() - expected.double()).nan_to_num().abs().max()) / size


def _scales(target: Target) -> list[tuple[str, float, float]]:
    """Name, center and scale of every target that is a number."""
    return [] if target.classes is not None else list(zip(target.names, target.center, target.scale, strict=True))


def lost_in_float32(model: SeriesModel) -> str | None:
    """What to say if a column or target varies by little beside its size, so that float32 rounds it; None otherwise."""
    fitted, target = model.preprocessing.fitted, model.target
    known = [(f"column {fitted.columns[k]!r}", fitted.center[k], fitted.scale[k]) for k in fitted.numbers]
    if target.kind != "forecast":  # a forecast adds small changes to the values of its columns
        known += [(f"the target {name!r}", c, s) for name, c, s in _scales(target)]
    for what, center, scale in known:
        spacing = float(np.spacing(np.float32(abs(center))))
        if spacing > _ROUNDED * scale:
            return (
                f"{what} is {center:.6g} ± {scale:.3g}, and float32 holds such numbers in steps of {spacing:.3g}; "
                "export in float64 (--float64, float64=True in Python)"
            )
    return None
