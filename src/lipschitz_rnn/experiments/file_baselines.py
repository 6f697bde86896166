"""What a run on a file must beat: the most frequent class, the mean, or persistence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.metrics import number_metrics
from lipschitz_rnn.data.task import SeriesTask


def baseline(task: SeriesTask, goals: npt.NDArray[Any]) -> dict[str, Any]:
    """A name, and its scores on the test split."""
    if task.target.classes is not None:
        assert task.series.targets is not None
        counts = np.bincount(_trained(task), minlength=task.target.size)
        label = int(counts.argmax())
        name = f"always {task.target.classes[label]!r}"
        return {"name": name, "scores": {"accuracy": float((goals == label).mean())}}
    if task.kind == "forecast":
        return {"name": "persistence (the last value)", "scores": _persistence(task)}
    mean = np.broadcast_to(np.array(task.target.center), goals.shape)
    return {"name": "the training mean", "scores": number_metrics(goals, mean)}


def _trained(task: SeriesTask) -> npt.NDArray[Any]:
    assert task.series.targets is not None
    windows = task.windows["train"]
    if task.readout == "last":
        return task.series.targets[windows.series]
    return task.series.targets[windows.joined().samples()]


def _persistence(task: SeriesTask) -> dict[str, float | None]:
    """From the scaled changes of the test split: a prediction of no change."""
    windows = task.windows["test"]
    spans = zip(windows.start + windows.skip, windows.start + windows.length, strict=True)
    rows = np.concatenate([np.arange(a, b) for a, b in spans])
    changes = task._data["goals"].numpy()[rows].astype(np.float64)
    changes = changes * np.array(task.target.scale) + np.array(task.target.center)
    known = np.isfinite(changes)
    error = changes[known]
    return {"MAE": float(np.abs(error).mean()), "RMSE": float(np.sqrt((error**2).mean()))}
