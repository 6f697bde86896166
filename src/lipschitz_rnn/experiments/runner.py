"""Turns settings into a run: loads the task, trains, records eigenvalues. `training.runs` opens the folder again."""

from __future__ import annotations

import os

from lipschitz_rnn import tasks
from lipschitz_rnn.stability.studies.tracking import spectral_probe
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training import Result, Settings, Watcher, fit
from lipschitz_rnn.training.preparation import check_start


def load_task(settings: Settings) -> Task:
    return tasks.load(settings.task, settings.data_dir, offline=settings.offline, **settings.task_options)


def check_train(settings: Settings, folder: str | os.PathLike[str] | None = None, *, resume: bool = False) -> None:
    """Raise what `train` would raise before its first step, except for errors inside data files: for a dry run."""
    shapes = tasks.check(settings.task, settings.data_dir, offline=settings.offline, **settings.task_options)
    check_start(settings, shapes, folder, resume)


def train(
    settings: Settings,
    folder: str | os.PathLike[str] | None,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Train all seeds of `settings` on its task, after the checks of `check_train`."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # with several processes, the first may have created the folder
        check_train(settings, folder, resume=resume)
    return fit(settings, load_task(settings), folder, resume=resume, watcher=watcher, probe=spectral_probe)
