"""What a sweep costs beyond its training, and what packing saves: `python benchmarks/sweep_overhead.py --runs 1000`.

The overhead is the time of the whole sweep less that of its runs, for each run: planning, handing over, reading back
and choosing. With several slots the time of the runs is divided by them. The driver's own CPU time is beside it, which
other work on the machine does not change, and so is its memory after a tenth of the runs and at the end. Packing is
measured on 24 configurations of which three at a time can share a run, beside the same ones apart.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass
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
        self.memory: list[float] = []  # of the driver after every run, in MB

    def submit(self, name: str, call: Call) -> None:
        self.inner.submit(name, partial(timed, call, self.log))

    def wait(self, seconds: float) -> list[Ended]:
        ended = self.inner.wait(seconds)
        self.memory += [resident()] * len(ended)
        return ended

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


def resident() -> float:
    """Memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Cost:
    """Seconds in all, of training by slot, and of the driver's CPU; its memory in MB early and at the end."""

    total: float
    training: float
    driver: float
    early: float
    late: float
    scores: tuple[float, ...]


def measure(sweep: Sweep, engine: Engine) -> Cost:
    with tempfile.TemporaryDirectory() as folder, Timed(engine) as watched:
        begin, used = time.perf_counter(), cpu_seconds()
        outcome = run_sweep(sweep, folder, engine=watched, threads=1)
        total, driver = time.perf_counter() - begin, cpu_seconds() - used
        scores = tuple(each.score for each in outcome.trials if each.score is not None)
        assert len(scores) == len(outcome.trials)
        training = watched.training() / max(1, min(engine.slots, 2))
        memory = watched.memory
    return Cost(total, training, driver, memory[len(memory) // 10], memory[-1], scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--engines", nargs="*", default=["one process", "local", "ray"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_sweep(many(2), Path(folder) / "alone")  # imports
        few = {"settings": SETTINGS | {"unit": "lipschitz"}, "space": {"unit_options": {"beta": [0.6, 0.8]}}}
        run_sweep(make_sweep(few), Path(folder) / "packed")
    print("| engine | runs | seconds | beyond training, ms a run | driver's CPU, ms a run | memory after a tenth, MB | "
          "at the end |\n|---|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for name in given.engines:
        engine = InProcess() if name == "one process" else make_engine(name, 2)
        cost = measure(many(given.runs), engine)
        extra, driver = 1000 * (cost.total - cost.training) / given.runs, 1000 * cost.driver / given.runs
        own = f"{driver:.1f}" if name != "one process" else "–"  # which trains, too
        print(f"| {name} | {given.runs} | {cost.total:.1f} | {extra:.1f} | {own} | {cost.early:.0f} | "
              f"{cost.late:.0f} |", flush=True)  # fmt: skip
    space = {"learning_rate": [0.001 * n for n in range(1, 9)], "unit_options": {"beta": [0.6, 0.7, 0.8]}}
    usual = {"eval_batch_size": 1000, "task_options": {"length": 20, "train_size": 1024}}
    sizes = {"hidden_size": 16, "epochs": 3, "batch_size": 32, **usual}
    for seeds in ([0], [0, 1]):
        settings = SETTINGS | {"unit": "lipschitz", "seeds": seeds} | sizes
        packed, apart = (
            measure(make_sweep({"settings": settings, "space": space, "sweep": {"at_once": at_once}}), InProcess())
            for at_once in (32, 1)
        )
        error = max(abs(one / other - 1) for one, other in zip(packed.scores, apart.scores, strict=True))
        print(
            f"\n24 configurations, {len(seeds)} seeds each: {packed.total:.1f} s in 8 packed runs, {apart.total:.1f} s "
            f"one after another; CPU time {packed.driver:.1f} and {apart.driver:.1f} s, "
            f"{packed.driver / apart.driver:.2f} times; scores equal to {error:.1e}"
        )


if __name__ == "__main__":
    main()
