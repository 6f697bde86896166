"""Predictions of whole models for many series, in batches of similar length."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipschitz_rnn.data.errors import SeriesError, SeriesWarning
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.odd_times import other_unit
from lipschitz_rnn.data.series import SeriesSet

_BUDGET = 1 << 18  # padded samples in a batch


def predict(model: SeriesModel, series: SeriesSet) -> npt.NDArray[np.float64]:
    """What `model` gives for every series, in order: (n, q), or (total, q) for a model with an output per sample.

    Logits for classes (see `probabilities`), numbers in the target's unit otherwise. The series must have the columns
    and categories of the model: `as_trained` brings them there.
    """
    per_sample = model.target.readout == "all"
    result = np.empty((series.total if per_sample else len(series), model.target.size))
    device = next(model.parameters()).device
    use_times = model.preprocessing.fitted.gap is not None
    model = model.eval()
    for indices in _batches(series):
        values, times, lengths = series.padded(indices)
        if model.target.classes is None:
            values = values.double()  # float32 would round targets such as 1,700,000,000 ± 1
        given = (values.to(device), times.to(device) if times is not None and use_times else None, lengths.to(device))
        with torch.no_grad():
            outputs: Tensor = model(*given).double().cpu()
        if per_sample:
            steps = torch.arange(values.shape[1]) < lengths.unsqueeze(-1)
            starts = np.repeat(series.offsets[:-1][indices], series.lengths[indices])
            own = np.concatenate([np.arange(length) for length in series.lengths[indices]])
            result[starts + own] = outputs[steps].numpy()
        else:
            result[indices] = outputs.numpy()
    return result


def as_trained(series: SeriesSet, model: SeriesModel) -> SeriesSet:
    """The series with the columns and categories of the model; `SeriesError` if some are missing or of another kind.

    Warns (`SeriesWarning`) if the times between samples are far from those of the training, e.g. in another unit.
    """
    fitted = model.preprocessing.fitted
    if fitted.gap is not None and not fitted.regular and fitted.time_use != "ignored" and series.times is None:
        raise SeriesError(
            f"{series.source} has no times, but the model was trained with them; pass times, or name their column "
            "with --time"
        )
    odd = other_unit(series, fitted)
    if odd is not None:
        warnings.warn(odd, SeriesWarning, stacklevel=2)
    return series.with_columns(fitted.columns).with_categories(fitted.categories)


def probabilities(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Softmax over the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    result: npt.NDArray[np.float64] = shifted / shifted.sum(-1, keepdims=True)
    return result


def _batches(series: SeriesSet) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of series of similar length; a batch has at most `_BUDGET` padded samples."""
    order = np.argsort(series.lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = min(len(order), start + max(1, _BUDGET // int(series.lengths[order[start]])))
        while stop - start > 1 and (stop - start) * int(series.lengths[order[stop - 1]]) > 2 * _BUDGET:
            stop = start + (stop - start) // 2
        yield order[start:stop]
        start = stop
