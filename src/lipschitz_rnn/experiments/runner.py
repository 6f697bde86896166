"""From settings to a run: load the task, train, note eigenvalues. `training.runs` leads back from the folder."""

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
    """What `train` would raise before its first step, except for what is wrong inside of data files: for a dry run."""
    shapes = tasks.check(settings.task, settings.data_dir, offline=settings.offline, **settings.task_options)
    check_start(settings, shapes, folder, resume)


def train(
    settings: Settings,
    folder: str | os.PathLike[str] | None,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """One run: all seeds of `settings` on its task. What `check_train` can find is found before data are read."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # of several processes, the first may have begun the folder
        check_train(settings, folder, resume=resume)
    return fit(settings, load_task(settings), folder, resume=resume, watcher=watcher, probe=spectral_probe)
