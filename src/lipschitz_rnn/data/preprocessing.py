"""`Preprocessing`: raw values with holes, and times, to the inputs of a network. Fitted on training data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from lipschitz_rnn.data.fitting import Fitted, Missing, Scaling, TimeUse, fit
from lipschitz_rnn.data.series import SeriesSet

LIMIT = 1000.0  # scaled values beyond ±this are clipped, so that one wrong sensor value stays finite


class Preprocessing(nn.Module):
    """Scales numbers, fills holes, turns categories into one input each, and times into timespans.

    It has no parameters: what it learned are buffers and constants, so it is exported with the model. The inputs of the
    network are, in this order: the number columns that vary in training; one input (0 or 1) per text of every category
    column; for `mask` and `since`, one input per column that has holes in training; the time, if it is a feature.

    Missing values (`missing`):
        mask: the value is 0, which is the mean after scaling; the column's second input is 1 where it is missing.
        forward: the last value seen in the series; 0 before the first.
        since: as forward; the second input is log(1 + time since the last value, in typical gaps).

    A category that is missing or unknown sets none of its inputs.

    Timespans: the time since the previous sample, scaled so that the median gap of the training series is `step_size`,
    at most `longest_gap` such gaps. The first sample of a series has no previous one: it counts as one typical gap.
    Forecasts of irregular series (`ahead`) take the time to the next sample instead, since that is what they predict:
    the state goes on from each sample to the time of the next one, and that time is an input as well.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        self.fitted = fitted
        # float64, and used in the precision of the values: a large mean does not cost digits of float64 inputs.
        self.register_buffer("center", torch.tensor(fitted.center, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(fitted.scale, dtype=torch.float64))
        self._categories = [(fitted.columns.index(name), len(table)) for name, table in fitted.categories.items()]
        self._flags = list(fitted.holes) if fitted.missing in ("mask", "since") else []

    @classmethod
    def fit(
        cls,
        series: SeriesSet,
        *,
        scaling: Scaling = "standard",
        missing: Missing = "auto",
        times: TimeUse = "auto",
        step_size: float | None = None,
        longest_gap: float = 10.0,
        ahead: bool = False,
    ) -> Self:
        """Learn from training series.

        Args:
            scaling: "standard" (mean and standard deviation), "robust" (median and quartiles), "minmax" ([-1, 1]) or
                "none".
            missing: "mask", "forward" or "since"; "auto" is "mask".
            times: "step": timespans for a unit with continuous time; "input": an input log(1 + gap); "ignored". "auto"
                is "step" if there is a `step_size`, else "input" if the times are irregular.
            step_size: the unit's step size, if it has continuous time.
            longest_gap: in typical gaps; longer ones count as this.
            ahead: for forecasts: irregular times enter as the time to the next sample.
        """
        return cls(fit(series, scaling, missing, times, step_size, longest_gap, ahead))

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns, in the order of the last axis of `values`."""
        return self.fitted.columns

    @property
    def output_size(self) -> int:
        """How many inputs the network has."""
        categories = sum(size for _, size in self._categories)
        return len(self.fitted.numbers) + categories + len(self._flags) + self._takes_time

    @property
    def output_names(self) -> tuple[str, ...]:
        """A name for every input of the network."""
        columns = self.columns
        names = [columns[index] for index in self.fitted.numbers]
        names += [f"{name} = {text}" for name, table in self.fitted.categories.items() for text in table]
        word = "missing" if self.fitted.missing == "mask" else "since"
        names += [f"{columns[index]} {word}" for index in self._flags]
        time = "time to next sample" if self.fitted.ahead else "time since last sample"
        return tuple(names + ([time] if self._takes_time else []))

    @property
    def _takes_time(self) -> bool:
        """Whether the time between samples is an input; a forecast also reads how far ahead it is."""
        return self.fitted.time_use == "input" or self.fitted.ahead

    def forward(
        self,
        values: Tensor,
        times: Tensor | None = None,
        lengths: Tensor | None = None,
        next_times: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Inputs of the network (B, T, output_size) in the precision of `values`, and timespans (B, T) in that of
        `times`, or None.

        Args:
            values: (B, T, p) raw values in the order of `columns`, NaN where missing; categories by their position.
            times: (B, T) float64, in the unit of the training times; needed if training used irregular times.
            lengths: (B,), the number of samples of each series; what lies beyond has no effect.
            next_times: (B,), when the sample after the end of each series is to be predicted, if the model looks
                ahead; None: one typical gap after the end.
        """
        fitted = self.fitted
        self._require(values, times)
        steps = torch.arange(values.shape[1], device=values.device)
        inside = None if lengths is None else (steps < lengths.unsqueeze(-1))
        seen = values.isfinite() if inside is None else values.isfinite() & inside.unsqueeze(-1)
        scaled = self.scaled(values, seen)
        gaps = self._gaps(values, times, inside)
        last = seen.cumsum(1) if fitted.missing in ("forward", "since") else None
        if last is not None:
            known = last > 0
            scaled = _carry(scaled, seen, last)
        else:
            known = seen
        flags = None
        if self._flags:
            chosen = torch.tensor(self._flags, dtype=torch.int64, device=values.device)
            flags = self._flag(seen.index_select(-1, chosen), gaps, steps, scaled)
        entering = self._gaps_ahead(times, lengths, next_times) if fitted.ahead and times is not None else gaps
        inputs, spans = self.assemble(scaled, known, flags, entering)
        if inside is not None:
            inputs = torch.where(inside.unsqueeze(-1), inputs, 0.0)
            spans = None if spans is None else torch.where(inside, spans, 0.0)
        return inputs, spans

    def scaled(self, values: Tensor, known: Tensor) -> Tensor:
        """(…, p) scaled and clipped; 0 where the value is not known."""
        scaled = ((values - self.center.to(values.dtype)) / self.scale.to(values.dtype)).clamp(-LIMIT, LIMIT)
        return torch.where(known, scaled, 0.0)

    def assemble(
        self, scaled: Tensor, known: Tensor, flags: Tensor | None, gaps: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The inputs (…, output_size) and the timespans (…) from their parts; a stream uses it for one step.

        Args:
            scaled, known: (…, p), and whether a value is there, or was carried forward.
            flags: (…, flagged columns): the masks, or the times since the last value.
            gaps: (…), the time since the previous sample, or to the next one, in typical gaps.
        """
        fitted = self.fitted
        parts = [scaled.index_select(-1, torch.tensor(fitted.numbers, dtype=torch.int64, device=scaled.device))]
        for index, size in self._categories:
            texts = torch.arange(size, device=scaled.device)
            chosen = (scaled[..., index : index + 1].round() == texts) & known[..., index : index + 1]
            parts.append(chosen.to(scaled.dtype))
        if flags is not None:
            parts.append(flags)
        if self._takes_time and gaps is not None:
            parts.append(torch.log1p(gaps).unsqueeze(-1).to(scaled.dtype))
        spans = gaps * fitted.step_size if fitted.time_use == "step" and gaps is not None else None
        return torch.cat(parts, -1), spans

    def last_seen(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Raw values (B, T, p) with holes filled by the last value of the series; before the first, by the mean."""
        seen = values.isfinite()
        if lengths is not None:
            seen = seen & (torch.arange(values.shape[1], device=values.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
        count = seen.cumsum(1)
        carried = _carry(torch.where(seen, values, 0.0), seen, count)
        return torch.where(count > 0, carried, self.center.to(values.dtype))

    def _flag(self, seen: Tensor, gaps: Tensor | None, steps: Tensor, like: Tensor) -> Tensor:
        if self.fitted.missing == "mask":
            return (~seen).to(like.dtype)
        elapsed = steps.to(torch.float64).expand(seen.shape[:2]) if gaps is None else gaps.double().cumsum(1)
        elapsed = (elapsed - elapsed[:, :1]).unsqueeze(-1).expand(seen.shape)
        before = _carry(torch.where(seen, elapsed, 0.0), seen, seen.cumsum(1))
        return torch.log1p((elapsed - before).clamp(min=0.0)).to(like.dtype)

    def _gaps(self, values: Tensor, times: Tensor | None, inside: Tensor | None) -> Tensor | None:
        """(B, T): time since the previous sample in typical gaps; 1 for the first sample; None if it is not needed."""
        fitted = self.fitted
        if fitted.time_use == "ignored" and (fitted.missing != "since" or times is None):
            return None
        if times is None:  # regular
            return torch.ones_like(values[..., 0]) if fitted.time_use == "input" else None
        steps = torch.arange(times.shape[1], device=times.device)
        before = times.index_select(1, (steps - 1).clamp(min=0))  # not times[:, :-1]: export would exclude T = 2
        gaps = torch.where(steps == 0, 1.0, (times - before) / (fitted.gap or 1.0))
        gaps = gaps if inside is None else torch.where(inside, gaps, 0.0)
        return gaps.clamp(max=fitted.longest_gap)

    def _gaps_ahead(self, times: Tensor, lengths: Tensor | None, next_times: Tensor | None) -> Tensor:
        """(B, T): time to the next sample in typical gaps; after the last one, to `next_times`."""
        fitted = self.fitted
        steps = torch.arange(times.shape[1], device=times.device)
        after = times.index_select(1, (steps + 1).clamp(max=times.shape[1] - 1))
        last = steps == ((times.shape[1] if lengths is None else lengths.unsqueeze(-1)) - 1)
        end = times + (fitted.gap or 1.0) if next_times is None else next_times.unsqueeze(-1).expand_as(times)
        return ((torch.where(last, end, after) - times) / (fitted.gap or 1.0)).clamp(0.0, fitted.longest_gap)

    def _require(self, values: Tensor, times: Tensor | None) -> None:
        if values.dim() != 3 or values.shape[-1] != len(self.columns):
            raise ValueError(
                f"values have shape {tuple(values.shape)}; they must be (B, T, {len(self.columns)}): "
                f"{', '.join(map(repr, self.columns))}"
            )
        if not values.is_floating_point():
            raise TypeError(f"values are {values.dtype}; they must be floating, with NaN where they are missing")
        if times is None and self.fitted.time_use != "ignored" and not self.fitted.regular:
            raise ValueError("times are None, but the model was trained with irregular times; pass times (B, T)")
        if times is not None and self.fitted.gap is None:
            raise ValueError("times were passed, but the model was trained without times; leave them out")
        if times is not None and times.shape != values.shape[:2]:
            raise ValueError(
                f"times have shape {tuple(times.shape)}; they must be {tuple(values.shape[:2])}, as values"
            )

    def to_dict(self) -> dict[str, Any]:
        """Everything that was learned, as plain values for JSON; `from_dict` gives an equal module."""
        return self.fitted.to_dict()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        return cls(Fitted.from_dict(dict(record)))

    def extra_repr(self) -> str:
        fitted = self.fitted
        how = f"scaling={fitted.scaling!r}, missing={fitted.missing!r}, times={fitted.time_use!r}"
        return f"{len(self.columns)} columns, {self.output_size} inputs, {how}"


def _carry(values: Tensor, seen: Tensor, count: Tensor) -> Tensor:
    """(B, T, p): at each step the last value that was seen, 0 before the first.

    `count` is the number of values seen so far. They are written one after another behind a zero, and read back at
    their number: this needs no loop and no cumulative maximum, which ONNX does not have.
    """
    slots = torch.cat((torch.zeros_like(values[:, :1]), torch.zeros_like(values)), 1)
    kept = torch.where(seen, values, 0.0)
    slots = slots.scatter(1, torch.where(seen, count, 0), kept)
    return slots.gather(1, count)
