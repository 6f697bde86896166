"""Milliseconds of whole training steps on a GPU, as `lipschitz-rnn train` takes them.

Medians over 50 steps at a time, from the second 50 on: the first ones compile kernels and capture a CUDA graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.training import Settings, Watcher, fit

AT_ONCE = 50
_CONTRACTING = {"stability": "contracting", "rate": 0.001, "metric_spread": 1000.0, "init_scale": 0.3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Penn Treebank characters, N = 750, T = 150, bfloat16, 2 seeds": ("ptb-char", {"seeds": (0, 1)}),
    "ordered CIFAR-10, N = 256, bfloat16, 3 seeds": ("ordered-cifar10", {"seeds": (0, 1, 2), "hidden_size": 256}),
    "ordered MNIST, N = 128, high, 6 seeds, contracting layer": (
        "ordered-mnist",
        {"seeds": tuple(range(6)), "hidden_size": 128, "precision": "high", "unit_options": _CONTRACTING},
    ),
}


class Enough(Exception):
    """Raised once enough steps are timed."""


class Timer(Watcher):
    """The time of every `AT_ONCE` steps, after the device has finished them."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.times, self._started = wanted, list[float](), 0.0

    def step(self, done: int) -> None:
        if done % AT_ONCE:
            return
        torch.cuda.synchronize()
        now = time.perf_counter()
        if done > AT_ONCE:
            self.times.append(1e3 * (now - self._started) / AT_ONCE)
        self._started = now
        if len(self.times) >= self.wanted:
            raise Enough


def milliseconds(settings: Settings, wanted: int) -> float:
    timer = Timer(wanted)
    try:
        fit(settings, load_task(settings), watcher=timer)
    except Enough:
        return statistics.median(timer.times)
    raise RuntimeError(f"the run ended after {len(timer.times)} of {wanted} times {AT_ONCE} steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=5, help=f"how many times {AT_ONCE} steps are timed")
    parser.add_argument("--data-dir", default=None)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here; the times are those of steps from a CUDA graph")
    for name, (task, changes) in CASES.items():
        values = {"precision": "bfloat16", "device": "cuda", "data_dir": given.data_dir, **changes}
        settings = preset_settings(task, changes=values)
        print(f"{name}: {milliseconds(settings, given.times):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
