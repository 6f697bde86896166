"""What a sweep costs beyond its training, and what packing saves: `python benchmarks/sweep_overhead.py --runs 1000`.

The overhead is the time of the whole sweep less that of its runs, for each run: planning, handing over, reading back
and choosing. With several slots the time of the runs is divided by them. Packing is measured on 24 configurations of
which three at a time can share a run, beside the same ones apart.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lipschitz_rnn.experiments.engines import Ended, Engine, InProcess, make_engine
from lipschitz_rnn.experiments.engines.base import Call
from lipschitz_rnn.experiments.sweeps import run_sweep
from lipschitz_rnn.experiments.sweeps.reading import Sweep, make_sweep

torch.set_num_threads(1)
SETTINGS: dict[str, Any] = {
    "task": "adding", "hidden_size": 3, "epochs": 1, "batch_size": 16, "eval_batch_size": 16, "schedule": "constant",
    "device": "cpu", "unit": "rnn", "task_options": {"length": 4, "train_size": 32, "eval_size": 16},
}  # fmt: skip


class Timed(Engine):
    """Another engine, with the time that its functions take."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.slots, self.log = inner, inner.slots, Path(tempfile.mkstemp()[1])

    def submit(self, name: str, call: Call) -> None:
        self.inner.submit(name, partial(timed, call, self.log))

    def wait(self, seconds: float) -> list[Ended]:
        return self.inner.wait(seconds)

    def close(self) -> None:
        self.inner.close()

    def training(self) -> float:
        found = sum(float(line) for line in self.log.read_text().splitlines())
        self.log.unlink()
        return found


def timed(call: Call, log: Path) -> None:
    begin = time.perf_counter()
    call()
    with log.open("a") as file:
        file.write(f"{time.perf_counter() - begin}\n")


def many(runs: int) -> Sweep:
    return make_sweep({"settings": SETTINGS, "space": {"learning_rate": [0.001 + 1e-6 * n for n in range(runs)]}})


def measure(sweep: Sweep, engine: Engine) -> tuple[float, float, int]:
    """Seconds in all, seconds of training by slot, and the growth of the driver's memory in kB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder, Timed(engine) as watched:
        begin = time.perf_counter()
        outcome = run_sweep(sweep, folder, engine=watched, threads=1)
        total = time.perf_counter() - begin
        assert all(each.state == "complete" for each in outcome.trials)
        training = watched.training() / max(1, min(engine.slots, 2))
    return total, training, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--engines", nargs="*", default=["one process", "local", "ray"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_sweep(many(2), folder)  # imports
    print(
        "| engine | runs | seconds | beyond training, ms a run | growth of the driver, MB |\n|---|---:|---:|---:|---:|"
    )
    for name in given.engines:
        engine = InProcess() if name == "one process" else make_engine(name, 2)
        total, training, growth = measure(many(given.runs), engine)
        extra = 1000 * (total - training) / given.runs
        print(f"| {name} | {given.runs} | {total:.1f} | {extra:.1f} | {growth / 1024:.0f} |", flush=True)
    space = {"learning_rate": [0.001 * n for n in range(1, 9)], "unit_options": {"beta": [0.6, 0.7, 0.8]}}
    settings = SETTINGS | {"unit": "lipschitz", "epochs": 20, "seeds": [0, 1]}
    seconds = {}
    for at_once in (32, 1):
        sweep = make_sweep({"settings": settings, "space": space, "sweep": {"at_once": at_once}})
        seconds[at_once] = measure(sweep, InProcess())[0]
    print(f"\n24 configurations: {seconds[32]:.1f} s in 8 packed runs, {seconds[1]:.1f} s one after another")


if __name__ == "__main__":
    main()
