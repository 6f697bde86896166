"""Runs a sweep: checks everything first, trains what is missing, chooses on validation data, and trains the winners.

```
OUT/sweep.json         the frozen sweep             OUT/runs/00000     ordinary run folders
OUT/optuna.journal     draws of a search            OUT/final/…        the winners with fresh seeds
OUT/trials.csv         all trials                   OUT/summary.json   winners and their test scores
```

All state is in the run folders and the journal: after an interruption the same call goes on.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.engines import Engine, InProcess
from lipschitz_rnn.experiments.runner import check_train
from lipschitz_rnn.experiments.same_data import check_same_data
from lipschitz_rnn.experiments.shared_folder import hold_folder
from lipschitz_rnn.experiments.sweeps.packing import Job, Trial
from lipschitz_rnn.experiments.sweeps.reading import Sweep
from lipschitz_rnn.experiments.sweeps.scoring import Leaders, Scored, Winner, score_job, test_scores
from lipschitz_rnn.experiments.sweeps.search import Grid, Search, import_optuna, needs_optuna
from lipschitz_rnn.experiments.sweeps.space import border_points, grid_points, show_point
from lipschitz_rnn.experiments.sweeps.work import Reporting, Work, is_over
from lipschitz_rnn.training import RunError, Settings
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.folder import RunConflict, read_settings
from lipschitz_rnn.training.reading import read_json
from lipschitz_rnn.training.run_settings import check_alone, check_place

POLL_SECONDS = 0.5
_FINAL = "final"


class Board:
    """Follows a sweep; this one ignores everything."""

    def start(self, total: int, jobs: int) -> None:
        """`total`: trials; `jobs`: runs, as far as they are known."""

    def submitted(self, job: Job, folder: Path) -> None:
        """A run has been given to the engine."""

    def ended(self, scored: Sequence[Scored], winners: Sequence[Winner]) -> None:
        """The trials of a run that has ended, or had ended before, and the best so far."""

    def stop(self) -> None:
        """The sweep has ended, for whatever reason."""


@dataclass(frozen=True)
class Outcome:
    """What a sweep found. `tests`: the test scores of each winner's networks, in the order of `winners`."""

    trials: tuple[Scored, ...]
    winners: tuple[Winner, ...]
    tests: tuple[tuple[float | None, ...], ...]
    written: tuple[Path, ...]

    @property
    def failed(self) -> list[Scored]:
        return [each for each in self.trials if each.state == "failed"]


def check_sweep(sweep: Sweep, out: Path, **place: Any) -> list[Trial]:
    """Raise what would go wrong later, before anything runs; returns the trials of a grid, or some of a search."""
    if needs_optuna(sweep):
        import_optuna()
    _check_folder(sweep, out)
    points = (
        grid_points(sweep.space, sweep.fixed) if sweep.method == "grid" else border_points(sweep.space, sweep.fixed)
    )
    trials = [Trial(number, point, sweep.resolve(point, **place)) for number, point in enumerate(points)]
    seen = set()
    for trial in trials:
        sweep.metric_of(trial.settings)
        key = json.dumps(trial.settings.to_dict(), sort_keys=True)
        if key not in seen:
            _check_trial(trial)
        seen.add(key)
    if sweep.final is not None:
        for trial in {(trial.settings.task, trial.settings.unit): trial for trial in trials}.values():
            check_train(_final_settings(sweep, trial))
    return trials


def _check_trial(trial: Trial) -> None:
    try:
        check_train(trial.settings)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{error} (at {show_point(trial.point)})") from error


def _final_settings(sweep: Sweep, trial: Trial) -> Settings:
    try:
        return sweep.final_settings(trial.settings)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{error} (in [final])") from error


def _check_folder(sweep: Sweep, out: Path) -> None:
    check_place(out)
    check_alone(out, "sweep.json")
    path = out / "sweep.json"
    if not path.exists():
        return
    before, now = read_json(path), json.loads(json.dumps(sweep.frozen()))
    if before != now:
        table = next(name for name in {**before, **now} if before.get(name) != now.get(name))
        old, new = ({} if not isinstance(each.get(table), Mapping) else each[table] for each in (before, now))
        key = next((name for name in {**old, **new} if old.get(name) != new.get(name)), "")
        raise RunConflict(
            f"{out} holds a sweep with [{table}] {key} = {old.get(key)!r}, but the file has {new.get(key)!r}; go on "
            "with the old file, or choose another --out"
        )


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    engine: Engine | None = None,
    board: Board | None = None,
    threads: int | None = None,
    **place: Any,
) -> Outcome:
    """Train a sweep, or the rest of it.

    Args:
        out: the folder of the sweep, on a path that all machines of the engine share.
        engine: what runs the runs; by default this process. The caller closes it.
        threads: CPU threads of each run.
        place: settings of place for all runs: device, data_dir, offline.
    """
    folder, board = Path(out).absolute(), board or Board()
    check_sweep(sweep, folder, **place)
    with hold_folder(folder / "sweep.lock", "sweep", "the same command"):
        if not (folder / "sweep.json").exists():
            atomic_write(folder / "sweep.json", (json.dumps(sweep.frozen(), indent=2) + "\n").encode())
        try:
            return _Driver(sweep, folder, engine or InProcess(), board, threads, place).run()
        finally:
            board.stop()


@dataclass
class _Driver:
    sweep: Sweep
    folder: Path
    engine: Engine
    board: Board
    threads: int | None
    place: Mapping[str, Any]
    scored: dict[int, Scored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leaders = Leaders(self.sweep)

    def run(self) -> Outcome:
        if needs_optuna(self.sweep):
            source: Grid | Search = Search(self.sweep, self.folder, dict(self.place))
        else:
            source = Grid(self.sweep, dict(self.place))
        check_same_data((job.settings, self._place_of(job)) for job in source.known)
        self.board.start(source.total, len(source.jobs))
        running: dict[str, Job] = {}
        while running or not source.is_over:
            for job in source.next(self._free(len(running))):
                over, error = self._is_over(job)
                if over or error:
                    self._collect(source, job, error)
                    continue
                running[job.name] = job
                self.engine.submit(job.name, self._work(job))
                self.board.submitted(job, self._place_of(job))
            for ended in self.engine.wait(POLL_SECONDS) if running else ():
                self._collect(source, running.pop(ended.name), ended.error)
        winners = self.leaders.winners()
        if self.sweep.final is not None:
            winners = self._final(winners)
            tests = tuple(
                tuple(test_scores(each, Job("", (each.best.trial,), each.best.trial.settings))) for each in winners
            )
        else:
            jobs = {trial.number: job for job in source.jobs for trial in job.trials}
            tests = tuple(tuple(test_scores(each, jobs[each.best.trial.number])) for each in winners)
        return self._write(winners, tests)

    def _free(self, running: int) -> int:
        """One more than can run, so that no slot waits for this loop."""
        return self.engine.slots + (1 if self.sweep.method == "grid" else 0) - running

    def _is_over(self, job: Job) -> tuple[bool, str | None]:
        """Whether a run has ended before; or what is wrong with its folder, which stops no other run."""
        try:
            return is_over(self._place_of(job)), None
        except RunError as error:
            return False, str(error)

    def _place_of(self, job: Job) -> Path:
        return self.folder / "runs" / job.name

    def _work(self, job: Job) -> Work:
        reporting = None
        if self.sweep.pruning != "none":
            facts = (*self.sweep.metric_of(job.settings), job.settings.epochs)
            reporting = Reporting(self.sweep, self.folder, job.trials[0].number, *facts)
        return Work(job.settings, self._place_of(job), reporting, self.threads)

    def _collect(self, source: Grid | Search, job: Job, error: str | None) -> None:
        found = score_job(job, self._place_of(job), self.sweep, self.sweep.metric_of(job.settings)[0], error)
        for each in found:
            self.scored[each.trial.number] = each
            source.tell(each.trial, each.score, pruned=each.state == "pruned")
            self.leaders.consider(each)
        self.board.ended(found, self.leaders.winners())

    def _final(self, winners: Sequence[Winner]) -> list[Winner]:
        """The winners again, with the seeds and other settings of [final]."""
        jobs = {}
        for winner in winners:
            trial = winner.best.trial
            settings = self.sweep.final_settings(trial.settings)
            name = "-".join([f"{trial.number:05d}", *(str(value) for value in winner.group.values())])
            safe = self._free_name("".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:60], settings)
            jobs[f"{_FINAL}/{safe}"] = (winner, Job(safe, (dataclasses.replace(trial, settings=settings),), settings))
        for name, (_, job) in jobs.items():
            self.engine.submit(name, Work(job.settings, self.folder / name, None, self.threads))
            self.board.submitted(job, self.folder / name)
        errors: dict[str, str | None] = {}
        while len(errors) < len(jobs):
            errors |= {ended.name: ended.error for ended in self.engine.wait(POLL_SECONDS)}
        found = []
        for name, (winner, job) in jobs.items():
            (scored,) = score_job(job, self.folder / name, self.sweep, winner.metric, errors[name])
            if scored.state == "failed":
                raise RunError(f"the final run {self.folder / name} failed: {errors[name]}; run the same command again")
            found.append(dataclasses.replace(winner, best=scored))
        return found

    def _free_name(self, name: str, settings: Settings) -> str:
        """`name`, with a number if that folder holds a final run with other settings: [final] may have changed."""
        for number in count(2):
            folder = self.folder / _FINAL / name
            if not (folder / "config.json").exists() or not settings.differences(read_settings(folder)):
                return folder.name
            name = f"{name.partition('~')[0]}~{number}"
        raise AssertionError

    def _write(self, winners: Sequence[Winner], tests: Sequence[Sequence[float | None]]) -> Outcome:
        trials = [self.scored[number] for number in sorted(self.scored)]
        paths = sorted({path for each in trials for path in each.trial.point})
        file = io.StringIO()
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["trial", "run", "state", *paths, "validation", "epochs", "seconds"])
        for each in trials:
            values = [each.trial.point.get(path, "") for path in paths]
            score = "" if each.score is None else each.score
            run = each.folder.relative_to(self.folder)
            lines.writerow([each.trial.number, run, each.state, *values, score, each.epochs, round(each.seconds, 3)])
        summary = {"trials": len(trials), "written": time.strftime("%Y-%m-%dT%H:%M:%S"), "winners": [
            {"group": dict(winner.group), "trial": winner.best.trial.number, "point": winner.best.trial.point,
             "run": str(winner.best.folder.relative_to(self.folder)), "metric": winner.metric,
             "validation": winner.best.score, "test": list(test), "settings": winner.best.trial.settings.to_dict()}
            for winner, test in zip(winners, tests, strict=True)
        ]}  # fmt: skip
        atomic_write(self.folder / "trials.csv", file.getvalue().encode())
        atomic_write(self.folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        written = (self.folder / "trials.csv", self.folder / "summary.json")
        return Outcome(tuple(trials), tuple(winners), tuple(map(tuple, tests)), written)
