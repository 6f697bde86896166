"""A run killed at random moments and resumed each time; started by the test in a process of its own.

`python killed_run.py FOLDER KILLS TASK` imports once and forks the training: a kill costs milliseconds, not an import.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)

from tiny_tasks import Letters, SignTask, tiny_settings  # noqa: E402 (after the threads, before any fork)

from lipschitz_rnn.training import Settings, fit  # noqa: E402


def make(task: str) -> tuple[Settings, SignTask | Letters]:
    if task == "letters":
        return tiny_settings(task=task, unit="lstm", seeds=(0, 1), epochs=12, checkpoint_minutes=1e-5), Letters()
    settings = tiny_settings(
        unit="gru", seeds=(0, 1), epochs=25, dropout=0.2, averaging=0.01, clip=1.0, checkpoint_minutes=1e-5,
        schedule="one-cycle",
    )  # fmt: skip
    return settings, SignTask(noise=0.2)


def train(folder: str, task: str) -> None:
    settings, data = make(task)
    fit(settings, data, folder, resume=True)


def forked(folder: str, task: str, seconds: float | None) -> bool:
    """Train in a child, and kill it after `seconds`. Whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(folder, task)
            code = 0
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"training failed in {folder}")
    return os.WIFEXITED(status)


def main(folder: str, kills: int, task: str) -> None:
    started = time.monotonic()
    forked(f"{folder}/whole", task, None)
    whole = time.monotonic() - started
    moments = random.Random(7)
    killed = 0
    while killed < kills:
        if forked(f"{folder}/killed", task, moments.uniform(0.0, 0.15 * whole)):
            break
        killed += 1
        saved = list(Path(folder, "killed", "checkpoints").glob("step-*.safetensors"))
        assert len(saved) <= 3, saved  # two, and a third between a rename and the removal of the oldest
    forked(f"{folder}/killed", task, None)
    print(killed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
