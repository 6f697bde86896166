"""A tiny task and helpers that the training tests share: everything in memory, a step takes a millisecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import ACCURACY, BITS, MSE, Batch, Generators, Split, Task, TaskInfo, check_split
from lipschitz_rnn.tasks.objectives import Classification, Regression, TokenPrediction
from lipschitz_rnn.tasks.times import Times, with_times
from lipschitz_rnn.training import Settings

_SIZES = {"train": 48, "validation": 16, "test": 16}


def one_sample(task: Task) -> float:
    """What a score may differ by after a rounding: one sample at the border, where samples are counted."""
    return 1.01 / task.size("test") if task.info.metric is ACCURACY else 0.0


def _info(**facts: Any) -> TaskInfo:
    return TaskInfo(source="made up", licence="none", **facts)


class SignTask(Classification):
    """Is the sum of a noisy sequence positive? `noise` feeds each member's own generator, as augmentation would."""

    info = _info(
        name="sign", summary="", input_size=2, output_size=2, sequence_length=6, readout="last", metric=ACCURACY,
        sizes=_SIZES,
    )  # fmt: skip

    def __init__(self, *, noise: float = 0.0, poison: int | None = None) -> None:
        super().__init__({"noise": noise})
        self.noise, self.poison = noise, poison
        generator = torch.Generator().manual_seed(5)
        for split, count in _SIZES.items():
            self._data[f"{split}.x"] = torch.randn(count, 6, 2, generator=generator)

    def size(self, split: Split) -> int:
        return len(self._data[f"{check_split(split)}.x"])

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = indices.to(self.device)
        x = self._data[f"{split}.x"][indices]
        targets = (x.sum((-1, -2)) > 0).long()
        if generator is not None and self.noise:
            generators = generator if isinstance(generator, Sequence) else [generator]
            shape = x.shape[-3:]
            drawn = torch.stack([torch.randn(shape, generator=g, device=self.device) for g in generators]).view(x.shape)
            x = x + self.noise * drawn
        if self.poison is not None and split == "train":
            x = torch.where((indices == self.poison)[..., None, None], torch.inf, x)
        return Batch(x.transpose(-3, -2), targets)


class NextValue(Regression):
    """The next value of a sine at every step, in sequences of unequal length."""

    info = _info(
        name="next-value", summary="", input_size=1, output_size=1, sequence_length=7, readout="all", metric=MSE,
        sizes=_SIZES,
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__({})

    def size(self, split: Split) -> int:
        return _SIZES[check_split(split)]

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = indices.to(self.device)
        phase = indices[..., None].double() * 0.37
        wave = torch.sin(phase + torch.arange(8, device=self.device) * 0.5).float().unsqueeze(-1).transpose(-3, -2)
        return Batch(wave[..., :-1, :, :], wave[..., 1:, :, :], 3 + indices % 5)


class Letters(TokenPrediction):
    """Text in three streams and windows of five letters: stateful, the state is carried from window to window."""

    info = _info(
        name="letters", summary="", input_size=4, output_size=5, sequence_length=5, readout="all", metric=BITS,
        sizes=_SIZES, vocabulary=5, stateful=True,
    )  # fmt: skip

    def __init__(self, streams: int = 4) -> None:
        super().__init__({})
        steps = torch.arange(41)[:, None] * torch.arange(1, streams + 1)[None]
        self._data["text"] = (steps // 2 + steps**2) % 5

    def size(self, split: Split) -> int:
        return 8

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        start = 5 * int(indices.item())
        text = self._data["text"][start : start + 6]
        return Batch(text[:-1], text[1:])


class Uneven(Classification):
    """Is the integral of a signal positive? Sampled at uneven times, in series of unequal length.

    The padding holds NaN and times below zero, which nothing may read. `times` as in `tasks.with_times`.
    """

    info = _info(
        name="uneven", summary="", input_size=1, output_size=2, sequence_length=7, readout="last", metric=ACCURACY,
        sizes=_SIZES,
    )  # fmt: skip

    def __init__(self, *, times: Times = "step") -> None:
        super().__init__({"times": times}, input_size=2 if times == "input" else 1)
        self.times = times
        generator = torch.Generator().manual_seed(6)
        for split, count in _SIZES.items():
            self._data[f"{split}.x"] = torch.randn(count, 7, 1, generator=generator)
            self._data[f"{split}.spans"] = 0.5 * torch.rand(count, 7, generator=generator)

    def size(self, split: Split) -> int:
        return len(self._data[f"{check_split(split)}.x"])

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = indices.to(self.device)
        x, spans = self._data[f"{split}.x"][indices], self._data[f"{split}.spans"][indices]
        lengths = 3 + indices % 5
        padding = torch.arange(7, device=self.device) >= lengths[..., None]
        targets = ((x[..., 0] * spans).masked_fill(padding, 0.0).sum(-1) > 0).long()
        x, spans = x.masked_fill(padding[..., None], torch.nan), spans.masked_fill(padding, -1.0)
        return with_times(Batch(x.transpose(-3, -2), targets, lengths, spans.transpose(-2, -1)), self.times)


# Trainings that must agree up to rounding run in float64: Adam turns the rounding of a gradient near zero into a step
# of any size, so that in float32 it depends on the processor how far their weights come apart.
FLOAT64: dict[str, Any] = {"precision": "float64"}
CLOSE = {"rtol": 1e-7, "atol": 1e-9}


def tiny_settings(**changes: Any) -> Settings:
    """Small, quick and complete."""
    values: dict[str, Any] = {
        "task": "sign",
        "unit": "rnn",
        "hidden_size": 5,
        "epochs": 3,
        "batch_size": 12,
        "eval_batch_size": 10,
        "learning_rate": 0.02,
        "log_steps": 2,
        "device": "cpu",
    }
    return Settings(**(values | changes))
