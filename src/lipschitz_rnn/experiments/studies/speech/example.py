"""One utterance of the test split with its prediction, as numbers small enough for a record."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.tasks import Batch, Task
from lipschitz_rnn.training.runs import LoadedRun

FRAMES, EVERY = 96, 2  # at most so many frames, and every second frequency: the picture is no sharper


def predicted_example(run: LoadedRun, task: Task) -> dict[str, Any]:
    """The first long utterance of the test split: the frames that were to be predicted, and what the first seed's
    network predicts. Values are hundredths of a standard deviation, as integers; one row per frame."""
    batch = task.batch("test", torch.arange(min(task.size("test"), 50)))
    assert batch.lengths is not None
    index = int((batch.lengths >= min(40, int(batch.lengths.max()))).int().argmax())
    length = min(int(batch.lengths[index]), FRAMES)
    one = Batch(batch.inputs[:length, index : index + 1], batch.targets[:length, index : index + 1])
    network = run.networks[0]
    with torch.no_grad():
        outputs, _ = network(one.inputs, None, None, None)
    return {"true": _hundredths(one.targets[:, 0]), "predicted": _hundredths(outputs[:, 0])}


def repeating_error(task: Task) -> float:
    """The test error of a prediction that repeats the last frame: what a network must beat."""
    batch = task.batch("test", torch.arange(task.size("test")))
    total, weight = task.measure(batch.inputs, batch)
    return float(total / weight)


def _hundredths(frames: Tensor) -> list[list[int]]:
    return [[round(100 * value) for value in frame[::EVERY].tolist()] for frame in frames.float().cpu()]
