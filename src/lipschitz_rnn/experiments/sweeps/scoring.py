"""Scores of trials on validation data, and the choice of winners. Test scores are read for winners only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lipschitz_rnn.experiments.sweeps.packing import Job, Trial, variant_of
from lipschitz_rnn.experiments.sweeps.reading import Sweep
from lipschitz_rnn.experiments.sweeps.work import PRUNED, is_over
from lipschitz_rnn.tasks.base import METRICS
from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.history import Run, read_run

State = Literal["complete", "diverged", "pruned", "failed", "waiting", "running"]


@dataclass(frozen=True)
class Scored:
    """A trial with what is known of it. `score` is the mean over its seeds on validation data."""

    trial: Trial
    folder: Path
    state: State
    score: float | None = None
    epochs: int = 0
    seconds: float = 0.0
    error: str | None = None


def score_job(job: Job, folder: Path, sweep: Sweep, metric: str, error: str | None = None) -> list[Scored]:
    """All trials of a run that has ended."""
    if not (folder / "config.json").exists():
        return [Scored(trial, folder, "failed" if error else "waiting", error=error) for trial in job.trials]
    try:
        parts = read_run(folder).by_variant()
    except RunError as damaged:
        return [Scored(trial, folder, "failed", error=error or str(damaged)) for trial in job.trials]
    found = []
    for trial in job.trials:
        run = parts[variant_of(job, trial)]
        state: State = "pruned" if (folder / PRUNED).exists() else "complete"
        score = None
        if run.result is not None:
            score = _score(run, metric)
            state = "complete" if score is not None else "diverged"
        elif state != "pruned":
            state = "diverged" if is_over(folder) else "failed" if error else "running"
        epochs = len(run.of_kind("validation"))
        found.append(Scored(trial, folder, state, score, epochs, run.seconds / len(parts), error))
    return found


def _score(run: Run, metric: str) -> float | None:
    """The mean over seeds at each one's best epoch; None if one of them diverged."""
    assert run.result is not None
    if any(seed.get("diverged_step") is not None for seed in run.result["seeds"]):
        return None
    if metric == run.result["metric"]:
        values = [seed["validation"] for seed in run.result["seeds"]]
    else:
        values = [
            min((v for v in curve if v is not None), default=None) for curve in run.curve("validation", metric)[1]
        ]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    return sum(values) / len(values)


@dataclass(frozen=True)
class Winner:
    """The best trial of a task and of the values of `best_per`."""

    group: Mapping[str, Any]
    best: Scored
    metric: str
    higher_is_better: bool
    percent: bool


def group_of(sweep: Sweep, trial: Trial) -> dict[str, Any]:
    """What a trial competes in: its task, and its values of `best_per`, given or by the preset."""
    values = {**sweep.fixed, **trial.point}
    own = trial.settings.to_dict()
    for table in ("unit_options", "task_options"):
        own |= {f"{table}.{name}": value for name, value in own[table].items()}
    return {name: values.get(name, own.get(name)) for name in ("task", *sweep.best_per)}


class Leaders:
    """The best complete trial of every task, and of every value of `best_per`; the earliest of equals."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._best: dict[str, Winner] = {}

    def consider(self, scored: Scored) -> None:
        if scored.score is None:
            return
        group = group_of(self._sweep, scored.trial)
        metric, higher = self._sweep.metric_of(scored.trial.settings)
        key, sign = json.dumps(group, sort_keys=True), 1.0 if higher else -1.0
        before = self._best.get(key)
        if before is not None:
            mine, theirs = sign * scored.score, sign * (before.best.score or 0.0)
            if (mine, -scored.trial.number) <= (theirs, -before.best.trial.number):
                return
        percent = metric in METRICS and METRICS[metric].percent
        self._best[key] = Winner(group, scored, metric, higher, percent)

    def winners(self) -> list[Winner]:
        return sorted(self._best.values(), key=lambda winner: json.dumps(winner.group, sort_keys=True))


def test_scores(winner: Winner, job: Job) -> list[float | None]:
    """The test scores of a winner's networks, at the epochs selected on validation data."""
    run = read_run(winner.best.folder).by_variant()[variant_of(job, winner.best.trial)]
    return [seed["test"] for seed in (run.result or {"seeds": []})["seeds"]]
