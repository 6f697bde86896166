"""Ten thousand series of a hundred samples: batches cost less than training on them, and memory stays flat."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lipschitz_rnn import data
from lipschitz_rnn.training import Settings, Watcher, fit

CASES, STEPS, EPOCHS = 10_000, 100, 8
MEMORY = Path("/proc/self/statm")


class Epochs(Watcher):
    """CPU seconds and memory (MiB) at every record of a validation."""

    def __init__(self) -> None:
        self.memory: list[float] = []

    def record(self, record: Mapping[str, Any]) -> None:
        self.memory.append(int(MEMORY.read_text().split()[1]) * 4096 / 2**20)


@pytest.mark.full
@pytest.mark.skipif(not MEMORY.exists(), reason="needs /proc, to read the memory of this process")
def test_batches_are_cheap_and_memory_stays_flat() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(CASES) % 3
    times = np.cumsum(generator.exponential(1.0, (CASES, STEPS)) + 0.02, axis=1)
    values = np.sin(np.array([0.2, 0.45, 0.9])[labels, np.newaxis] * times)[:, np.newaxis]
    values[generator.random(values.shape) < 0.1] = np.nan
    task = data.SeriesTask(data.from_arrays(values, labels, times=times), step_size=0.1)

    order = task.order(torch.Generator().manual_seed(0), 128)
    before = time.process_time()
    for start in range(0, len(order), 128):
        task.batch("train", order[start : start + 128])
    batching = time.process_time() - before

    watcher = Epochs()
    options: dict[str, Any] = {"step_size": 0.1, "max_step": 0.2}
    settings = Settings(task="series", hidden_size=16, batch_size=128, epochs=EPOCHS, unit_options=options)
    before = time.process_time()
    fit(settings, task, watcher=watcher)
    training = (time.process_time() - before) / EPOCHS
    assert batching < 0.5 * training  # a twentieth and less was seen
    late = watcher.memory[len(watcher.memory) // 2 :]
    assert max(late) - min(late) < 32.0, watcher.memory  # a copy of the inputs alone has 11 MiB an epoch
