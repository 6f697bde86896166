"""What a network sees of the times between samples: steps of that length, one more input, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch

from lipschitz_rnn.tasks.base import Batch, Task, check_choice

Times = Literal["step", "input", "ignored"]
TIMES: tuple[Times, ...] = get_args(Times)


def with_times(batch: Batch, times: Times) -> Batch:
    """A batch with timespans as a network is to see them.

    Args:
        times: "step": they are the lengths of the unit's steps, for units that take timespans; "input": they are the
            last input channel, for any unit; "ignored": they are dropped.
    """
    check_choice("times", times, TIMES)
    if batch.timespans is None:
        raise ValueError(f"times is {times!r}, but the batch has no timespans; add them, shape (T, B)")
    if times == "step":
        return batch
    if times == "ignored":
        return replace(batch, timespans=None)
    if not batch.inputs.is_floating_point():
        raise ValueError(
            "times is 'input', but the inputs are tokens, which have no channel for a number; use 'step' or 'ignored'"
        )
    channel = batch.timespans.to(batch.inputs.dtype).unsqueeze(-1)
    return replace(batch, inputs=torch.cat((batch.inputs, channel), -1), timespans=None)


class TimedTask(Task):
    """A task whose samples have times, with the option `times` of `with_times`. `info` describes times="step".

    A subclass takes `times` as a keyword-only option, records it, calls `see_times` at the end of its constructor, and
    passes every batch through `with_times(batch, self.times)`.
    """

    times: Times = "step"

    def see_times(self, times: Times) -> None:
        check_choice("times", times, TIMES)
        self.times, self.timed = times, times == "step"
        self.input_size += times == "input"

    @classmethod
    def shapes(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        facts, times = super().shapes(options), options.get("times", "step")
        return facts | {"timed": times == "step", "input_size": facts["input_size"] + (times == "input")}
