"""`SeriesModel`: preprocessing, recurrent unit and head in one module, from raw values to predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.data.free_runs import check_future, require_forecast, run_on, start_at_ends
from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.data.steps import possible_spans
from lipschitz_rnn.data.target import Target
from lipschitz_rnn.units.arguments import require_time_major, unit_name
from lipschitz_rnn.units.readout import NetworkInputs, StatedClassifier, require_plain_linear
from lipschitz_rnn.units.recurrence import (
    Recurrence,
    Statement,
    UnstatedRecurrenceError,
    require_no_hooks,
    require_own_statement,
)

if TYPE_CHECKING:
    from lipschitz_rnn.data.streaming import SeriesStream


class SeriesModel(nn.Module):
    """What a user deploys: raw values (with NaN where missing) and times in, predictions out.

    Training runs on preprocessed batches with the same unit and head; `from_network` joins them afterwards. The module
    has no data-dependent Python branch, so `torch.export` and ONNX take it as it is.
    """

    def __init__(self, preprocessing: Preprocessing, unit: nn.Module, head: nn.Module, target: Target) -> None:
        super().__init__()
        require_time_major(unit, self)
        self.preprocessing, self.unit, self.head, self.target = preprocessing, unit, head, target
        self.register_buffer("target_center", torch.tensor(target.center, dtype=torch.float64))
        self.register_buffer("target_scale", torch.tensor(target.scale, dtype=torch.float64))
        self.takes_timespans = bool(getattr(unit, "takes_timespans", False))

    target_center: Tensor
    target_scale: Tensor

    @classmethod
    def from_network(cls, network: nn.Module, preprocessing: Preprocessing, target: Target) -> SeriesModel:
        """From a trained network with `unit` (called like nn.RNN, time-major) and `head`, e.g. `Result.models[0]` or
        `load_run(…).networks[0]`; the modules are shared, not copied."""
        parts: dict[str, Any] = {name: getattr(network, name, None) for name in ("unit", "head")}
        for name, part in parts.items():
            if not isinstance(part, nn.Module):
                raise TypeError(f"the network {type(network).__name__} has no module {name!r}; give a SequenceModel")
        return cls(preprocessing, parts["unit"], parts["head"], target)

    @classmethod
    def from_record(cls, network: nn.Module, record: Mapping[str, Any]) -> SeriesModel:
        """From a trained network and what its task recorded (`SeriesTask.record`, or "series" in a run's task.json)."""
        preprocessing = Preprocessing.from_dict(record["preprocessing"])
        return cls.from_network(network, preprocessing, Target.from_dict(record["target"]))

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> Path:
        """Write everything to one .safetensors file; see `data.save_model`, which also takes several seeds."""
        from lipschitz_rnn.data.saving import save_model

        return save_model(path, [self], extra)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SeriesModel:
        """The model of a file with one network; see `data.load_model`, which also takes several seeds."""
        from lipschitz_rnn.data.saving import load_single

        return load_single(path)

    def save_pretrained(self, folder: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> Path:
        """As `save`, into `model.safetensors` in a folder, which is created."""
        from lipschitz_rnn.data.saving import save_folder

        return save_folder(folder, [self], extra)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> SeriesModel:
        """The model of a folder written by `save_pretrained`. For a model on the Hugging Face hub: `data.hub`."""
        return cls.load(folder)

    def forward(
        self,
        values: Tensor,
        times: Tensor | None = None,
        lengths: Tensor | None = None,
        next_times: Tensor | None = None,
    ) -> Tensor:
        """Raw outputs: logits, or numbers in the target's own unit.

        Args:
            values: (B, T, p) raw values in the order of `preprocessing.columns`, NaN where missing, float32 or float64.
            times: (B, T) float64, in the unit of the training times, increasing; None if training had none.
            lengths: (B,) int64 if the series are padded to T; what lies beyond has no effect.
            next_times: (B,) float64, for a forecast that was trained on irregular times: when the sample after the end
                of each series is to be predicted. None: one typical gap after the end.

        Returns:
            classify: (B, classes) logits. regress: (B, q). sequence: (B, T, classes) logits or (B, T, q).
            forecast: (B, T, q), at every step the predicted values of the next sample, at its time.
        """
        inputs, spans = self.preprocessing(values, times, lengths, next_times)
        hidden, _ = self.run(inputs, spans, None)
        if self.target.readout == "last":
            if lengths is None:
                hidden = hidden[-1]
            else:
                last = (lengths - 1).to(hidden.device).view(1, -1, 1).expand(1, -1, hidden.shape[-1])
                hidden = hidden.gather(0, last).squeeze(0)
            return self.finish(self.head(hidden), None, values.dtype)
        base = None
        if self.target.kind == "forecast":
            columns = torch.tensor(self.target.columns, dtype=torch.int64, device=values.device)
            base = self.preprocessing.last_seen(values, lengths).index_select(-1, columns)
        return self.finish(self.head(hidden).transpose(0, 1), base, values.dtype)

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`: the maps of the unit, over all times between samples that this model can meet."""
        require_own_statement(self)
        if not callable(getattr(type(self.unit), "stated_recurrences", None)):
            raise UnstatedRecurrenceError(
                f"the unit of this model ({unit_name(self.unit)}) does not state its recurrence, so nothing can be "
                "certified about it; train one with unit 'lipschitz'"
            )
        require_no_hooks(self.unit)
        stated: list[Statement] = list(self.unit.stated_recurrences())  # type: ignore[operator]
        spans = possible_spans(self.preprocessing.to_dict()) if self.takes_timespans else None
        if spans is None:
            return stated
        steps = [item for item in stated if isinstance(item, Recurrence)]
        if len(steps) < len(stated):
            raise UnstatedRecurrenceError(
                f"this model passes the times between samples to its unit {unit_name(self.unit)}, whose map is stated "
                "for steps of one length only; train one with unit 'lipschitz' for irregular times"
            )
        return [replace(item, step_range=spans) for item in steps]

    def stated_classifier(self) -> StatedClassifier:
        """For `stability.certified_radius`: from raw values, in their own units, to the scores of the classes."""
        require_own_statement(self, "stated_classifier")
        if self.target.classes is None or self.target.readout != "last":
            raise UnstatedRecurrenceError(
                f"this model's task is {self.target.kind!r}; a radius is certified for classifiers of whole series"
            )
        head = require_plain_linear(self.head)
        for module in (self.preprocessing, head):
            require_no_hooks(module)

        def prepare(values: Tensor, times: Tensor | None, lengths: Tensor | None) -> NetworkInputs:
            from lipschitz_rnn.data.exact_inputs import exact_inputs

            found = exact_inputs(self.preprocessing, values, times, lengths, self.head_dtype)
            spans = found.timespans if self.takes_timespans else None
            return replace(found, timespans=None if spans is None else spans.to(self.head_dtype))

        return StatedClassifier(self.unit, head, batch_first=True, prepare=prepare)

    def stream(self, batch_size: int | None = None) -> SeriesStream:
        """This model on live data: `stream(values, time)` takes one raw sample, or one of each of `batch_size` series,
        and gives what the model gives for the series up to there."""
        from lipschitz_rnn.data.streaming import SeriesStream

        return SeriesStream([self], itemgetter(0), batch_size)

    @property
    def head_dtype(self) -> torch.dtype:
        return next(self.head.parameters()).dtype

    def run_step(self, inputs: Tensor, spans: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """One step of the unit: inputs (B, ·) and timespans (B,) to the output (B, N) and the state."""
        hidden, last = self.run(inputs.unsqueeze(1), None if spans is None else spans.unsqueeze(1), state)
        return hidden[0], last

    def read_step(self, hidden: Tensor, filled: Tensor) -> Tensor:
        """The outputs (B, q) after one step; `filled`: its raw values (B, p) without holes."""
        base = None
        if self.target.kind == "forecast":
            columns = torch.tensor(self.target.columns, dtype=torch.int64, device=filled.device)
            base = filled.index_select(-1, columns)
        return self.finish(self.head(hidden), base, filled.dtype)

    def run(self, inputs: Tensor, spans: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """(B, T, inputs) through the time-major unit: (T, B, N) and the last state."""
        dtype = self.head_dtype
        arguments: dict[str, Any] = {}
        if spans is not None and self.takes_timespans:
            arguments["timespans"] = spans.to(dtype).transpose(0, 1)
        x = inputs.to(dtype).transpose(0, 1)
        hidden, last = self.unit(x, **arguments) if state is None else self.unit(x, state, **arguments)
        return hidden, last

    def finish(self, outputs: Tensor, base: Tensor | None, precision: torch.dtype) -> Tensor:
        """Outputs of the head in the unit of the target, in the `precision` of the raw values or a higher one; `base`:
        the values to which a forecast adds its change."""
        if self.target.classes is not None:
            return outputs
        # A large offset, of a forecast or of the target itself, needs the digits of the values.
        dtype = torch.promote_types(outputs.dtype, precision)
        numbers = outputs.to(dtype) * self.target_scale.to(dtype) + self.target_center.to(dtype)
        return numbers if base is None else base + numbers

    @torch.no_grad()
    def free_run(
        self,
        values: Tensor,
        times: Tensor | None = None,
        lengths: Tensor | None = None,
        horizon: int = 1,
        future: Tensor | None = None,
    ) -> Tensor:
        """Forecast `horizon` samples after the end of each series, (B, horizon, q), feeding predictions back.

        Columns that are not predicted keep their last value. `future`, (B, horizon), are the times of the forecasts;
        without it they are one typical gap apart.
        """
        require_forecast(self)
        if future is not None:
            check_future(future, times, lengths, len(values), horizon)
        first = None if future is None else future[:, 0]
        return run_on(self, start_at_ends(self, values, times, lengths, first), horizon, future)
