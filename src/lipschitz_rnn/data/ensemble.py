"""Several seeds as one model: the mean of their predictions, and how far they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.prediction import as_trained, probabilities
from lipschitz_rnn.data.prediction import predict as raw_outputs
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.target import Target


@dataclass(frozen=True)
class Predictions:
    """What an ensemble predicts: for every series, or for every sample of a model with an output per sample."""

    members: npt.NDArray[np.float64]
    """(seeds, rows, q): probabilities of the classes, or numbers in the target's unit, of each seed."""
    target: Target

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """(rows, q): probabilities, or numbers, as the mean over the seeds."""
        result: npt.NDArray[np.float64] = self.members.mean(0)
        return result

    @property
    def spread(self) -> npt.NDArray[np.float64]:
        """(rows, q): the standard deviation over the seeds; 0 for a single one."""
        if len(self.members) < 2:
            return np.zeros(self.members.shape[1:])
        result: npt.NDArray[np.float64] = self.members.std(0, ddof=1)
        return result

    @property
    def labels(self) -> npt.NDArray[Any]:
        """(rows,): the class with the largest mean probability."""
        if self.target.classes is None:
            raise ValueError(f"the model predicts numbers ({', '.join(self.target.names)}), not classes; use mean")
        return np.asarray(self.target.classes, dtype=object)[self.mean.argmax(-1)]


class SeriesEnsemble(nn.Module):
    """Models that differ in their weights only. Called like a `SeriesModel`; it returns probabilities or numbers.

    Classes: the mean of the seeds' probabilities, not their logits. Numbers: the mean of the seeds' numbers. It is
    exported as one graph.
    """

    def __init__(self, models: Sequence[SeriesModel]) -> None:
        super().__init__()
        require_alike(models)
        self.models = nn.ModuleList(models)

    @property
    def target(self) -> Target:
        return self._first.target

    @property
    def looks_ahead(self) -> bool:
        """Whether the time to the next sample is an input; see `Fitted.ahead`."""
        return self._first.preprocessing.fitted.ahead

    @property
    def _first(self) -> SeriesModel:
        first = self.models[0]
        assert isinstance(first, SeriesModel)
        return first

    def forward(
        self,
        values: Tensor,
        times: Tensor | None = None,
        lengths: Tensor | None = None,
        next_times: Tensor | None = None,
    ) -> Tensor:
        return self.combine([model(values, times, lengths, next_times) for model in self.models])

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """The ensemble's prediction from the outputs of its members."""
        if self.target.classes is not None:
            outputs = [torch.softmax(output, -1) for output in outputs]
        return outputs[0] if len(outputs) == 1 else torch.stack(list(outputs)).mean(0)

    def predict(self, series: SeriesSet) -> Predictions:
        """Predictions for series with the columns of the models, in any order; `SeriesError` for others."""
        fitting = as_trained(series, self._first)
        outputs = [raw_outputs(model, fitting) for model in self.models if isinstance(model, SeriesModel)]
        if self.target.classes is not None:
            outputs = [probabilities(logits) for logits in outputs]
        return Predictions(np.stack(outputs), self.target)


def require_alike(models: Sequence[SeriesModel]) -> None:
    """Raise unless the models differ in their weights only."""
    if not models:
        raise ValueError("there is no model; give at least one SeriesModel")
    for model in models:
        if not isinstance(model, SeriesModel):
            raise TypeError(f"a model is a {type(model).__name__}; give lipschitz_rnn.data.SeriesModel")
        if model.target != models[0].target:
            raise ValueError("the models differ in their target; models of one file differ in their weights only")
        if model.preprocessing.fitted != models[0].preprocessing.fitted:
            raise ValueError(
                "the models differ in their preprocessing; models of one file differ in their weights only"
            )
