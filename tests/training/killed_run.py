"""A run killed at random moments and resumed each time; started by the test in a process of its own.

`python killed_run.py FOLDER KILLS TASK` imports once and forks the training: a kill costs milliseconds, not an import.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)

from tiny_tasks import Letters, SignTask, tiny_settings  # noqa: E402 (after the threads, before any fork)

from lipschitz_rnn.training import Settings, Watcher, fit  # noqa: E402


def make(task: str) -> tuple[Settings, SignTask | Letters]:
    if task == "letters":
        return tiny_settings(task=task, unit="lstm", seeds=(0, 1), epochs=12, checkpoint_minutes=1e-5), Letters()
    settings = tiny_settings(
        unit="gru", seeds=(0, 1), epochs=25, dropout=0.2, averaging=0.01, clip=1.0, checkpoint_minutes=1e-5,
        schedule="one-cycle",
    )  # fmt: skip
    return settings, SignTask(noise=0.2)


class Pulse(Watcher):
    """Tells the parent through a pipe when training starts and after every step."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def start(self, *facts: Any) -> None:
        os.write(self.pipe, b"!")

    def step(self, done: int) -> None:
        os.write(self.pipe, b".")


def forked(folder: str, task: str, moment: Callable[[int], None] | None) -> bool:
    """Train in a child, and kill it when `moment` returns. Whether it came to its end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            settings, data = make(task)
            fit(settings, data, folder, resume=True, watcher=Pulse(writer))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    if moment is not None:
        moment(reader)
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"training failed in {folder}")
    return os.WIFEXITED(status)


def main(folder: str, kills: int, task: str) -> None:
    fit(tiny_settings(epochs=1, seeds=(0, 1)), SignTask(), f"{folder}/warm-up")  # late imports, before any clock runs
    forked(f"{folder}/whole", task, None)
    draw = random.Random()
    pulses = [7 * kill // (kills - 1) for kill in range(kills)]  # evenly, so that some kills let the run get on
    draw.shuffle(pulses)

    def moment(reader: int) -> None:
        """Any time: while the run still starts, or some steps later, and then up to 20 ms more."""
        for _ in range(pulses.pop()):
            os.read(reader, 1)
        time.sleep(draw.uniform(0.0, 0.02))

    killed, steps = 0, set()
    while killed < kills and not forked(f"{folder}/killed", task, moment):
        killed += 1
        saved = list(Path(folder, "killed", "checkpoints").glob("step-*.safetensors"))
        assert len(saved) <= 3, saved  # two, and a third between a rename and the removal of the oldest
        steps.add(max((int(path.stem[5:]) for path in saved), default=0))
    forked(f"{folder}/killed", task, None)
    print(json.dumps({"kills": killed, "steps": sorted(steps)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
