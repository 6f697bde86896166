"""A sweep whose runs take a fraction of a second, on a task that every process can make."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import torch

from lipschitz_rnn.experiments.engines import Ended, InProcess
from lipschitz_rnn.experiments.sweeps.reading import Sweep, make_sweep
from lipschitz_rnn.training import Interrupted
from lipschitz_rnn.training.checkpoint import read_checkpoint

SETTINGS: dict[str, Any] = {
    "task": "adding",
    "hidden_size": 3,
    "epochs": 2,
    "batch_size": 16,
    "eval_batch_size": 16,
    "schedule": "constant",
    "learning_rate": 0.01,
    "device": "cpu",
    "seeds": [0],
    "task_options": {"length": 4, "train_size": 32, "eval_size": 16},
}


def tiny_sweep(space: dict[str, Any], *, sweep: dict[str, Any] | None = None, **tables: Any) -> Sweep:
    """`tables`: settings that differ, and final."""
    final = {"final": tables.pop("final")} if "final" in tables else {}
    settings = {name: value for name, value in (SETTINGS | tables).items() if name not in space}
    return make_sweep({"sweep": sweep or {}, "settings": settings, "space": space, **final})


class Stopping(InProcess):
    """Interrupted after some runs, as by a signal."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after, self.names = after, list[str]()

    def wait(self, seconds: float) -> list[Ended]:
        if len(self.names) == self.after:
            raise Interrupted(signal.SIGINT)
        ended = super().wait(seconds)
        self.names += [each.name for each in ended]
        return ended


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without times."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def assert_same_runs(one: Path, other: Path) -> None:
    """All runs of two sweeps: the same weights and metrics, bit for bit."""
    names = sorted(path.name for path in (one / "runs").iterdir())
    assert names == sorted(path.name for path in (other / "runs").iterdir())
    for name in names:
        first, second = one / "runs" / name, other / "runs" / name
        assert metrics(first) == metrics(second), name
        tensors = [read_checkpoint(run / "checkpoints" / "best.safetensors")[0] for run in (first, second)]
        assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0]), name
        assert (first / "result.json").exists() == (second / "result.json").exists()
