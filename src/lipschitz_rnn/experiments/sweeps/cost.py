"""What a sweep will cost: its runs, networks and steps, and a time from a few measured steps of each kind of run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.sweeps.packing import Job, Packer, Trial
from lipschitz_rnn.experiments.sweeps.reading import Sweep
from lipschitz_rnn.experiments.sweeps.search import corner
from lipschitz_rnn.experiments.sweeps.space import grid_points, show_point
from lipschitz_rnn.tasks import DataError, Task
from lipschitz_rnn.training import RunError, Settings, Watcher, fit

_STEPS = 4  # measured, after the first
_BUDGET = 30.0  # seconds for all measurements
_VALIDATION = 1 / 3  # time of a sample without a backward pass, compared with one of training


@dataclass(frozen=True)
class Estimate:
    """`seconds`: of training on one slot, or None; `measured`: of how many `kinds` of runs a few steps were timed."""

    trials: int
    runs: int
    networks: int
    epochs: int
    steps: int
    seconds: float | None
    kinds: int
    measured: int


class _Stop(Exception):
    pass


class _Stopwatch(Watcher):
    def __init__(self) -> None:
        self.steps, self.seconds, self._begin = 1, 0.0, 0.0

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        self.steps = steps_per_epoch

    def step(self, done: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if done == 1:
            self._begin = time.perf_counter()
        elif done > _STEPS or done == self.steps:
            self.seconds = (time.perf_counter() - self._begin) / (done - 1)
            raise _Stop


def estimate(sweep: Sweep, **place: Any) -> tuple[Estimate, list[Job]]:
    """The cost of a sweep, and its runs; those of a search, whose draws are not known, are at two corners in turn."""
    packer = Packer(1 if sweep.pruning != "none" else sweep.at_once)
    if sweep.method == "grid":
        points = grid_points(sweep.space, sweep.fixed)
        trials = [Trial(number, point, sweep.resolve(point, **place)) for number, point in enumerate(points)]
        jobs = packer.pack(trials)
    else:
        corners = [(point, sweep.resolve(point, **place)) for point in (corner(sweep, 0), corner(sweep, -1))]
        drawn = [(n, *corners[n % 2]) for n in range(int(sweep.trials or 0))]
        jobs = [Job(f"{n:05d}", (Trial(n, point, settings),), settings) for n, point, settings in drawn]
    kinds: dict[str, list[Settings]] = {}
    for job in jobs:
        kinds.setdefault(_kind(job.settings), []).append(job.settings)
    loaded: dict[str, Task] = {}
    begin, costs = time.perf_counter(), []
    for group in kinds.values():
        late = time.perf_counter() - begin > _BUDGET
        costs.append((group, None if late else _measure(group[0], loaded)))
    known = [(group, cost) for group, cost in costs if cost is not None]
    seconds = steps = 0.0
    for group, cost in costs:
        for settings in group:
            networks = len(settings.members)
            if cost is not None:
                steps += settings.epochs * cost[0]
                seconds += settings.epochs * cost[1]
            elif known:  # as long as the mean of the others, by network
                steps += settings.epochs * sum(each[0] for _, each in known) / len(known)
                share = sum(each[1] / len(own[0].members) for own, each in known) / len(known)
                seconds += settings.epochs * networks * share
    found = Estimate(
        sum(len(job.trials) for job in jobs),
        len(jobs),
        sum(len(job.settings.members) for job in jobs),
        sum(job.settings.epochs for job in jobs),
        round(steps),
        seconds if known else None,
        len(kinds),
        len(known),
    )
    return found, jobs


def _kind(settings: Settings) -> str:
    """Equal for runs that take the same time."""
    names = ("task", "task_options", "unit", "hidden_size", "num_layers", "batch_size", "precision", "ensemble")
    values: Mapping[str, Any] = settings.to_dict()
    words = {name: value for name, value in settings.unit_options.items() if isinstance(value, str | bool)}
    return json.dumps([*(values[name] for name in names), words, len(settings.members)], sort_keys=True)


def _measure(settings: Settings, loaded: dict[str, Task]) -> tuple[int, float] | None:
    """Steps of an epoch, and its seconds; None if it cannot be run here, e.g. because its data are not here."""
    key = json.dumps([settings.task, settings.task_options], sort_keys=True)
    watch = _Stopwatch()
    try:
        if key not in loaded:
            loaded.clear()  # one at a time in memory
            loaded[key] = load_task(settings)
        fit(settings, loaded[key], None, watcher=watch)
    except _Stop:
        pass
    except (RunError, DataError, OSError):
        return None
    task = loaded[key]
    extra = _VALIDATION * task.size("validation") / max(task.size("train"), 1)
    return watch.steps, watch.steps * watch.seconds * (1 + extra)


def show_runs(sweep: Sweep, jobs: Sequence[Job], most: int = 20) -> list[str]:
    """One line for each of the first runs; for a search, where its cost was measured."""
    if sweep.method != "grid":
        corners = " and ".join(dict.fromkeys(f"({show_point(job.trials[0].point)})" for job in jobs[:2]))
        return [f"configurations are drawn as runs start; the cost below is that of runs at {corners}"]
    lines = []
    for job in jobs[:most]:
        shared = f"{len(job.trials)} configurations, " if len(job.trials) > 1 else ""
        first = show_point(job.trials[0].point)
        rest = f" … {show_point(job.trials[-1].point)}" if len(job.trials) > 1 else ""
        lines.append(f"{job.name}  {shared}{len(job.settings.members)} networks: {first}{rest}")
    return [*lines, *([f"… and {len(jobs) - most} more runs"] if len(jobs) > most else [])]
