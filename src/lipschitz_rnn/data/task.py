"""`SeriesTask`: series with a target as a task that `training.fit` trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.data.batching import bucketed_order, transform
from lipschitz_rnn.data.errors import SeriesError
from lipschitz_rnn.data.fitting import Missing, Scaling, TimeUse
from lipschitz_rnn.data.objectives import class_weights as weigh_classes
from lipschitz_rnn.data.objectives import correct, loss, squared_errors, weight_of
from lipschitz_rnn.data.odd_times import dates_as_numbers
from lipschitz_rnn.data.preprocessing import Preprocessing
from lipschitz_rnn.data.series import SeriesSet, padded_positions
from lipschitz_rnn.data.splits import (
    DEFAULT,
    WARMUP,
    Integers,
    Windows,
    check_fractions,
    long_windows,
    split_series,
    split_times,
    whole_series,
)
from lipschitz_rnn.data.target import (
    Kind,
    Target,
    few_whole_numbers,
    guess_kind,
    number_scale,
    prepare_target,
)
from lipschitz_rnn.tasks.base import ACCURACY, MSE, SPLITS, Batch, Generators, Split, Task, TaskInfo, check_split

SplitBy = Literal["auto", "series", "time"]


class SeriesTask(Task):
    """Classify, regress, label every sample of, or forecast series.

    Everything is preprocessed once, when the task is built, with what the training series teach; a batch is then a
    gather from flat tensors, padded to its longest series. Targets that do not count (padding, warm-up, missing next
    values) are -1 or NaN.

    Attributes:
        preprocessing_module, target: what `SeriesModel.from_network` needs besides a trained network.
        series: the series with their targets as the task uses them.
        windows: the parts of series in each split.
    """

    info = TaskInfo(
        name="series",
        summary="series of your own: lipschitz_rnn.data.SeriesTask(series, …)",
        input_size=1,
        output_size=1,
        sequence_length=1,
        readout="last",
        metric=ACCURACY,
        sizes={"train": None, "validation": None, "test": None},
        source="your own data",
        licence="yours",
    )

    def __init__(
        self,
        series: SeriesSet,
        kind: Kind | None = None,
        *,
        fractions: Sequence[float] = DEFAULT,
        split_seed: int = 0,
        split_by: SplitBy = "auto",
        splits: Mapping[Split, Sequence[int]] | None = None,
        forecast: Sequence[str] | None = None,
        scaling: Scaling = "standard",
        missing: Missing = "auto",
        times: TimeUse = "auto",
        step_size: float | None = None,
        longest_gap: float = 10.0,
        class_weights: Literal["none", "balanced"] | Sequence[float] = "none",
        window: int = 100,
        warmup: int = WARMUP,
        windows: Mapping[Split, Windows] | None = None,
        like: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            kind: "classify", "regress", "sequence" or "forecast"; None chooses by the target.
            fractions, split_seed: shares of training, validation and test, and the seed that draws them.
            split_by: "series", or "time": every series is cut into past, middle and future. "auto" is "time" for
                forecasts and where there are fewer than 3 series.
            splits: the indices of the series in each split, instead of drawing them.
            forecast: the columns to forecast; by default all that are numbers.
            scaling, missing, times, step_size, longest_gap: as in `Preprocessing.fit`.
            class_weights: "balanced" weighs the loss so that every class counts the same; or one weight per class.
            window, warmup: sequence and forecast: the samples of a training window, and the samples before a scored
                part that only set the state.
            windows: sequence and forecast: the parts of series in each split, instead of cutting them.
            like: the `record` of a trained task, whose preprocessing and scales are kept: to train its network on.
        """
        if isinstance(class_weights, str) and class_weights not in ("none", "balanced"):
            raise ValueError(f'class_weights is {class_weights!r}; it must be "none", "balanced" or one per class')
        check_fractions(fractions)
        self.kind = guess_kind(series) if kind is None else kind
        self.series = prepare_target(series, self.kind)
        by_time = windows is not None or self._splits_by_time(split_by, splits)
        if windows is not None:
            self.windows = dict(windows)
        elif by_time:
            self.windows = split_times(self.series, fractions, window=window, warmup=warmup)
        else:
            found = split_series(self.series, fractions, seed=split_seed) if splits is None else _given(splits, series)
            self.windows = self._windows(found, window)
        trained = self._trained_part()
        self._known = None if like is None else Target.from_dict(like["target"])
        self.preprocessing_module = (
            Preprocessing.from_dict(like["preprocessing"])
            if like is not None
            else Preprocessing.fit(
                trained,
                scaling=scaling,
                missing=missing,
                times=times,
                step_size=step_size,
                longest_gap=longest_gap,
                ahead=self.kind == "forecast",
            )
        )
        goals = self._goals(trained, forecast, by_time)
        module = self.preprocessing_module
        self.by_time = by_time
        super().__init__(
            {},
            input_size=module.output_size,
            output_size=self.target.size,
            sequence_length=int(max(int(part.length.max()) for part in self.windows.values())),
        )
        self.readout = self.target.readout
        self._require_goals(goals)
        self.metric = ACCURACY if self.target.classes is not None else MSE
        inputs, spans = transform(module, self.series)
        self.timed = spans is not None and not module.fitted.regular
        self._data["inputs"], self._data["goals"] = inputs, goals
        if spans is not None and self.timed:
            self._data["spans"] = spans
        if self.target.classes is None and class_weights != "none":
            raise ValueError(
                f"class_weights is {class_weights!r}, but the target {', '.join(map(repr, self.target.names))} holds "
                "numbers, not classes; leave it out"
            )
        if self.target.classes is not None and not isinstance(class_weights, str):
            self._data["weights"] = _one_per_class(class_weights, self.target.size)
        elif self.target.classes is not None and class_weights == "balanced":
            self._data["weights"] = weigh_classes(goals, self._scored_goals("train"), self.target.size)
        for split, part in self.windows.items():
            if split != "train":  # evaluation takes them in order: batches of similar length
                part = part.select(np.argsort(part.length, kind="stable"))
                self.windows[split] = part
            for name in ("series", "start", "length", "skip"):
                self._data[f"{split}.{name}"] = torch.from_numpy(np.ascontiguousarray(getattr(part, name)))
        self._train_lengths = torch.from_numpy(self.windows["train"].length)

    def _splits_by_time(self, split_by: SplitBy, splits: object) -> bool:
        if split_by not in get_args(SplitBy):
            raise ValueError(f"split_by is {split_by!r}; it must be one of {', '.join(get_args(SplitBy))}")
        steps = self.kind in ("sequence", "forecast")
        if split_by == "time" and not steps:
            raise SeriesError(f"{self.kind} has one target per series and cannot split by time; use --split-by series")
        if splits is not None or self.series.splits is not None or split_by == "series" or not steps:
            return False
        return split_by == "time" or self.kind == "forecast" or len(self.series) < 3

    def _windows(self, found: Mapping[Split, Integers], window: int) -> dict[Split, Windows]:
        parts = {split: whole_series(self.series, indices) for split, indices in found.items()}
        if self.kind in ("sequence", "forecast"):
            parts["train"] = long_windows(self.series, found["train"], window)
        return parts

    def _trained_part(self) -> SeriesSet:
        train = self.windows["train"]
        if (train.length == self.series.lengths[train.series]).all():
            return self.series.select(train.series)
        parts = train.joined()  # windows overlap, and what lies in two of them would count twice
        return self.series.segments(parts.series, parts.start, parts.start + parts.length)

    def _goals(self, trained: SeriesSet, forecast: Sequence[str] | None, by_time: bool) -> Tensor:
        """Sets `target`; returns the goals of the network: classes, or scaled numbers, per series or per sample."""
        series = self.series
        if self.kind == "forecast":
            return self._changes(forecast, by_time)
        assert series.targets is not None
        if series.classes is not None:
            self.target = Target(self.kind, series.target_names, series.classes)
            return torch.from_numpy(series.targets)
        assert trained.targets is not None
        center, scale = self._scales(trained.targets)
        self.target = Target(self.kind, series.target_names, None, center, scale)
        return torch.from_numpy(((series.targets - center) / scale).astype(np.float32))

    def _scales(self, values: np.ndarray[Any, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return number_scale(values) if self._known is None else (self._known.center, self._known.scale)

    def _changes(self, forecast: Sequence[str] | None, by_time: bool) -> Tensor:
        """The change from the last value seen to the next sample, scaled; NaN where there is no next value."""
        series = self.series
        numbers = [name for name in series.columns if name not in series.categories]
        names = tuple(numbers if forecast is None else forecast)
        for name in names:
            if name not in numbers:
                raise SeriesError(
                    f"{name!r} cannot be forecast; the number columns are {', '.join(map(repr, numbers))}"
                )
        columns = [series.columns.index(name) for name in names]
        carried = _last_seen(self.preprocessing_module, series)[:, columns]
        change = np.full((series.total, len(columns)), np.nan)
        change[:-1] = series.values[1:, columns] - carried[:-1]
        change[series.offsets[1:] - 1] = np.nan
        for part in self.windows.values() if by_time else ():
            ends = np.zeros(len(series), dtype=np.int64)
            np.maximum.at(ends, part.series, part.start + part.length)
            change[ends - 1] = np.nan  # the next value belongs to another split
        kept = self.windows["train"].joined().samples()
        if not np.isfinite(change[kept]).any(0).all():
            raise SeriesError(f"a column of {series.source} has no two values in a row to learn from; leave it out")
        center, scale = self._scales(change[kept])
        self.target = Target("forecast", names, None, center, scale, tuple(columns))
        return torch.from_numpy(((change - center) / scale).astype(np.float32))

    def _scored_goals(self, split: Split) -> Tensor:
        """Positions of the goals that count in a split."""
        part = self.windows[split]
        if self.readout == "last":
            return torch.from_numpy(part.series)
        spans = zip(part.start + part.skip, part.start + part.length, strict=True)
        return torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in spans]))

    def _require_goals(self, goals: Tensor) -> None:
        """Raise if a split has nothing to predict: forecasts may find no value there, only holes."""
        for split in SPLITS if self.kind == "forecast" else ():
            if not bool(goals[self._scored_goals(split)].isfinite().any()):
                names = ", ".join(map(repr, self.target.names))
                raise SeriesError(
                    f"the {split} part of {self.series.source} has no value of {names} to forecast; choose other "
                    "shares (--fractions, or validation_fraction of an estimator), or forecast other columns"
                )

    def size(self, split: Split) -> int:
        return len(self.windows[check_split(split)])

    def order(self, generator: torch.Generator, batch_size: int) -> Tensor:
        """Batches of series of similar length; see `bucketed_order`."""
        return bucketed_order(self._train_lengths, batch_size, generator)

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        data = self._data
        indices = indices.to(self.device)
        starts, lengths = data[f"{check_split(split)}.start"][indices], data[f"{split}.length"][indices]
        place, inside = padded_positions(starts, lengths)  # (…, B, T)
        inputs = data["inputs"][place].transpose(-3, -2)
        spans = data["spans"][place].transpose(-2, -1) if self.timed else None
        if self.readout == "last":
            return Batch(inputs, data["goals"][data[f"{split}.series"][indices]], lengths, spans)
        steps = torch.arange(place.shape[-1], device=self.device)
        counts = inside & (steps >= data[f"{split}.skip"][indices].unsqueeze(-1))
        goals = data["goals"][place]
        if self.target.classes is not None:
            return Batch(inputs, torch.where(counts, goals, -1).transpose(-2, -1), lengths, spans)
        goals = torch.where(counts.unsqueeze(-1), goals, torch.nan)
        return Batch(inputs, goals.transpose(-3, -2), lengths, spans)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return loss(outputs, batch.targets, self.target, self._data.get("weights"))

    def loss_weight(self, outputs: Tensor, batch: Batch) -> Tensor:
        if (weights := self._data.get("weights")) is None:
            return super().loss_weight(outputs, batch)
        return weight_of(batch.targets, self.target, weights)

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        measured = correct if self.target.classes is not None else squared_errors
        return measured(outputs, batch.targets, self.readout)

    def describe(self) -> dict[str, Any]:
        facts = super().describe()
        facts |= {"readout": self.readout, "series": self.record()}
        facts["metric"] = {"name": self.metric.name, "percent": self.metric.percent} | {
            "higher_is_better": self.metric.higher_is_better
        }
        return facts

    def record(self) -> dict[str, Any]:
        """What a model needs besides its network, as plain values: `SeriesModel.from_record` reads it."""
        return {"preprocessing": self.preprocessing_module.to_dict(), "target": self.target.to_dict()}

    def notes(self) -> tuple[str, ...]:
        """What was found in the data and done with it, in words."""
        sizes = ", ".join(f"{self.size(split):,} for {split}" for split in SPLITS)
        what = "parts of series in time" if self.by_time else "series"
        longest, shortest = int(self.series.lengths.max()), int(self.series.lengths.min())
        first = f"{len(self.series):,} series of {shortest:,} to {longest:,} samples ({what}: {sizes})"
        goal = f"{self.kind}: {', '.join(self.target.names)}"
        goal += f" ({', '.join(self.target.classes[:10])})" if self.target.classes is not None else ""
        odd = dates_as_numbers(self.series)
        said = self._untrained() + self._whole_numbers() + ([] if odd is None else [odd])
        return (first, goal, *said, *self.preprocessing_module.fitted.notes)

    def _whole_numbers(self) -> list[str]:
        """Whole numbers on every row may be meant as classes, which nothing in them tells."""
        goal = self.series.targets
        if self.kind != "sequence" or goal is None or self.target.classes is not None:
            return []
        few = [name for index, name in enumerate(self.target.names) if few_whole_numbers(goal[:, index])]
        return [
            f"{name!r} holds a few whole numbers, which are taken for quantities and regressed; if they are classes, "
            f"name the column: --categories {name} (categories= in Python)"
            for name in few
        ]

    def _untrained(self) -> list[str]:
        """Classes that a given split leaves out of training."""
        classes = self.target.classes
        if classes is None:
            return []
        seen = set(self._data["goals"].cpu()[self._scored_goals("train")].unique().tolist())
        absent = [name for index, name in enumerate(classes) if index not in seen]
        return (
            [f"no training series has the class {', '.join(map(repr, absent))}: it cannot be learned"] if absent else []
        )


def _given(splits: Mapping[Split, Sequence[int]], series: SeriesSet) -> dict[Split, Integers]:
    found = {split: np.asarray(splits.get(split, ()), dtype=np.int64) for split in SPLITS}
    for split, indices in found.items():
        if len(indices) == 0 or int(indices.min()) < 0 or int(indices.max()) >= len(series):
            raise ValueError(f"splits[{split!r}] must hold indices of the {len(series)} series, at least one")
    return found


def _one_per_class(weights: Sequence[float], classes: int) -> Tensor:
    found = torch.tensor([float(weight) for weight in weights])
    if found.shape != (classes,) or not bool((found.isfinite() & (found >= 0)).all()) or float(found.sum()) == 0.0:
        raise ValueError(f"class_weights are {list(weights)}; give {classes} numbers, at least 0 and not all 0")
    return found


def _last_seen(module: Preprocessing, series: SeriesSet) -> np.ndarray[Any, Any]:
    """(total, p) raw values with holes filled by the last value, in batches of series."""
    result = np.empty(series.values.shape)
    for start in range(0, len(series), 512):
        part = series[start : start + 512]
        values, _, lengths = part.padded()
        filled = module.last_seen(values, lengths)
        inside = torch.arange(values.shape[1]) < lengths.unsqueeze(-1)
        result[series.offsets[start] : series.offsets[start] + part.total] = filled[inside].numpy()
    return result
