"""Where the trials of a sweep come from: a grid, or Optuna's samplers and pruners with a journal on disk."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lipschitz_rnn.experiments.sweeps.journal import open_journal
from lipschitz_rnn.experiments.sweeps.packing import Job, Packer, Trial
from lipschitz_rnn.experiments.sweeps.reading import Sweep
from lipschitz_rnn.experiments.sweeps.space import Parameter, Point, grid_points
from lipschitz_rnn.training import RunError

JOURNAL = "optuna.journal"
_STUDY = "sweep"
_RUN = "run"  # the attribute of a trial that names its run


class Grid:
    """All points, packed at once. Needs no state: the same file gives the same runs."""

    def __init__(self, sweep: Sweep, place: dict[str, Any]) -> None:
        points = grid_points(sweep.space, sweep.fixed)
        trials = [Trial(number, point, sweep.resolve(point, **place)) for number, point in enumerate(points)]
        self.jobs = Packer(sweep.at_once).pack(trials)
        self.total, self._left = len(trials), list(self.jobs)

    def next(self, free: int) -> list[Job]:
        """Runs to start now."""
        taken, self._left = self._left[: max(free, 0)], self._left[max(free, 0) :]
        return taken

    @property
    def known(self) -> list[Job]:
        """Runs that an earlier call may have begun."""
        return self.jobs

    @property
    def is_over(self) -> bool:
        return not self._left

    def tell(self, trial: Trial, value: float | None, pruned: bool = False) -> None:
        """The score of a trial; None if it has none."""


class Search:
    """Random or Bayesian search, or a grid with pruning, by Optuna. Its journal survives a crash at any moment."""

    def __init__(self, sweep: Sweep, folder: Path, place: dict[str, Any]) -> None:
        self._sweep, self._folder, self._place = sweep, folder, place
        border = next(iter(grid_points(sweep.space, sweep.fixed))) if sweep.method == "grid" else corner(sweep, 0)
        settings = sweep.resolve(border, **place)
        self.study = open_study(sweep, folder, *sweep.metric_of(settings), settings.epochs)
        self._grid = grid_points(sweep.space, sweep.fixed) if sweep.method == "grid" else []
        self.total = len(self._grid) or int(sweep.trials or 0)
        self._packer = Packer(1 if sweep.pruning != "none" else sweep.at_once)
        self.jobs: list[Job] = []
        self._told: set[int] = set()
        self._resumed = self._known()

    def _known(self) -> list[Job]:
        """The runs of an earlier call, finished or not, with the trials that shared them."""
        runs: dict[str, list[Trial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.is_finished():
                self._told.add(trial.number)
            if _RUN in trial.user_attrs:  # otherwise a crash hit between its draw and its first step
                runs.setdefault(trial.user_attrs[_RUN], []).append(self._trial(trial.number, _decoded(trial.params)))
            elif not trial.state.is_finished() and trial.state.name != "WAITING":
                self.study.tell(trial.number, state=_states().FAIL)
        return [job for trials in runs.values() for job in self._packer.pack(trials)]

    def _trial(self, number: int, point: Point) -> Trial:
        return Trial(number, point, self._sweep.resolve(point, **self._place))

    @property
    def known(self) -> list[Job]:
        """Runs that an earlier call has begun."""
        return self._resumed

    @property
    def _drawn(self) -> int:
        return sum(len(job.trials) for job in (*self.jobs, *self._resumed))

    @property
    def is_over(self) -> bool:
        return not self._resumed and self._drawn >= self.total

    def next(self, free: int) -> list[Job]:
        """Runs to start now: those of an earlier call first, then new draws."""
        if self._resumed:
            jobs, self._resumed = self._resumed, []
        elif free > 0 and self._drawn < self.total:
            left = self.total - self._drawn
            at_once = left if self._sweep.method == "random" and self._sweep.pruning == "none" else free
            wanted = max(at_once, self._sweep.batch if self._sweep.pruning == "none" else 1)
            start = self._drawn
            jobs = self._packer.pack([self._draw(start + each) for each in range(min(left, wanted))])
            for job in jobs:
                for trial in job.trials:
                    self._set_run(trial.number, job.name)
        else:
            jobs = []
        self.jobs += jobs
        return jobs

    def _draw(self, index: int) -> Trial:
        """The trial `index` of the sweep. One that a crash left between its making and its draw comes first."""
        known = self.study.get_trials(deepcopy=False)
        waiting = [each for each in known if each.state.name == "WAITING"]
        if self._grid and not waiting:
            self.study.enqueue_trial(_encoded(self._grid[index], self._sweep.space))
        self.study.sampler = make_sampler(self._sweep, waiting[0].number if waiting else len(known))
        trial = self.study.ask()
        return self._trial(trial.number, suggest(trial, self._sweep))

    def _set_run(self, number: int, name: str) -> None:
        trial = self.study.get_trials(deepcopy=False)[number]
        self.study._storage.set_trial_user_attr(trial._trial_id, _RUN, name)

    def tell(self, trial: Trial, value: float | None, pruned: bool = False) -> None:
        """The score of a trial; None if it has none. Each is told once."""
        if trial.number in self._told:
            return
        self._told.add(trial.number)
        states = _states()
        if pruned:
            self.study.tell(trial.number, state=states.PRUNED)
        elif value is None:
            self.study.tell(trial.number, state=states.FAIL)
        else:
            self.study.tell(trial.number, value)


def corner(sweep: Sweep, end: Literal[0, -1]) -> Point:
    """The point of the space where every parameter is at its first or last end."""
    point: Point = {}
    for parameter in sweep.space:
        if parameter.is_active({**sweep.fixed, **point}):
            point[parameter.path] = parameter.ends()[end]
    return point


def suggest(trial: Any, sweep: Sweep) -> Point:
    """Let Optuna choose every parameter whose condition holds."""
    point: Point = {}
    for parameter in sweep.space:
        if parameter.is_active({**sweep.fixed, **point}):
            point[parameter.path] = _suggested(trial, parameter)
    return point


def _suggested(trial: Any, parameter: Parameter) -> Any:
    if parameter.values:  # as JSON: Optuna takes no lists as choices
        return json.loads(trial.suggest_categorical(parameter.path, [json.dumps(value) for value in parameter.values]))
    ends = (parameter.path, parameter.low, parameter.high)
    if parameter.is_integer:
        return trial.suggest_int(*ends, step=int(parameter.step or 1), log=parameter.log)
    return trial.suggest_float(*ends, step=parameter.step, log=parameter.log)


def _encoded(point: Point, space: Sequence[Parameter]) -> dict[str, Any]:
    choices = {parameter.path for parameter in space if parameter.values}
    return {path: json.dumps(value) if path in choices else value for path, value in point.items()}


def _decoded(params: dict[str, Any]) -> Point:
    return {path: json.loads(value) if isinstance(value, str) else value for path, value in params.items()}


def make_sampler(sweep: Sweep, number: int) -> Any:
    """A sampler for one trial, seeded by the sweep and the trial: a sweep that goes on draws no number twice."""
    optuna = import_optuna()
    seed = (sweep.seed * 1_000_003 + number) % 2**32
    if sweep.method == "bayes":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def open_study(sweep: Sweep, folder: Path, metric: str, higher_is_better: bool, epochs: int) -> Any:
    """The study in a sweep's folder, new or old; a worker opens it too, to report its epochs."""
    optuna = import_optuna()
    early = {"n_startup_trials": sweep.startup_trials, "n_warmup_steps": sweep.startup_epochs}
    pruners = {
        "none": optuna.pruners.NopPruner,
        "median": lambda: optuna.pruners.MedianPruner(**early),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, sweep.startup_epochs)),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(max(1, sweep.startup_epochs), max(2, epochs)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return optuna.create_study(
                storage=open_journal(folder / JOURNAL),
                study_name=_STUDY,
                direction="maximize" if higher_is_better else "minimize",
                pruner=pruners[sweep.pruning](),
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise RunError(
                f"{folder / JOURNAL} is damaged ({error}); restore it from a copy, or choose another folder"
            ) from error


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ValueError(
            "random and Bayesian search and pruning need Optuna, which is not installed; install it by: pip install "
            '"lipschitz-rnn[sweep]", or use method = "grid" without pruning'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _states() -> Any:
    return import_optuna().trial.TrialState


def needs_optuna(sweep: Sweep) -> bool:
    return sweep.method != "grid" or sweep.pruning != "none"
