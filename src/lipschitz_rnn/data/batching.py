"""From ragged series to batches: everything is preprocessed once, and batches hold series of similar length."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.data.series import SeriesSet, padded_positions

_CHUNK = 1 << 21  # padded values at a time, so that memory stays small
_SPREAD = 0.2  # lengths are blurred by ±10 %, so that batches differ between epochs


def transform(module: Preprocessing, series: SeriesSet) -> tuple[Tensor, Tensor | None]:
    """Inputs (total, inputs) and timespans (total,) or None of all samples, in float32.

    Series are padded in chunks of similar length and go through the module that a deployed model runs: there is no
    second formula for flat data.
    """
    inputs = torch.empty(series.total, module.output_size, dtype=torch.float32)
    spans = None
    order = np.argsort(series.lengths, kind="stable")
    per_sample = max(1, len(series.columns), module.output_size)
    start = 0
    while start < len(order):
        # The longest of the chunk is its last; a guess from the first is corrected by halving.
        count = max(1, _CHUNK // (per_sample * int(series.lengths[order[start]])))
        chunk = order[start : start + count]
        while len(chunk) > 1 and len(chunk) * int(series.lengths[chunk[-1]]) * per_sample > 2 * _CHUNK:
            chunk = chunk[: len(chunk) // 2]
        values, times, lengths = series.padded(chunk)
        made, own = module(values, times, lengths)
        place, inside = padded_positions(torch.from_numpy(series.offsets[chunk]), lengths)
        inputs[place[inside]] = made[inside].float()
        if own is not None:
            spans = torch.empty(series.total, dtype=torch.float32) if spans is None else spans
            spans[place[inside]] = own[inside].float()
        start += len(chunk)
    return inputs, spans


def bucketed_order(lengths: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
    """An order of the samples in which every `batch_size` of them have similar lengths.

    Which samples share a batch is drawn anew each time. Batch k of every network that trains along has about the same
    length, whatever its generator: then padding all of them to the longest costs little.
    """
    count = len(lengths)
    drawn = torch.randperm(count, generator=generator)
    used = count // batch_size * batch_size
    if int(lengths.max()) <= 1.1 * int(lengths.min()) or used == 0:
        return drawn
    blur = 1.0 + _SPREAD * (torch.rand(count, generator=generator) - 0.5)
    kept = drawn[:used]  # those left out are a random choice, not the longest
    ranked = kept[torch.argsort(lengths[kept] * blur[kept])].view(-1, batch_size)
    shuffled = torch.randperm(len(ranked), generator=torch.Generator().manual_seed(len(ranked)))
    return torch.cat((ranked[shuffled].flatten(), drawn[used:]))
