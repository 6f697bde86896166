"""`fit`: train every seed of one configuration, alone or with other processes, in memory or in a run folder."""

from __future__ import annotations

import os

from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training.environment import describe_environment
from lipschitz_rnn.training.folder import RunFolder, Saved
from lipschitz_rnn.training.loop import Trainer
from lipschitz_rnn.training.model import build_model
from lipschitz_rnn.training.parallel import World, choose_device, joined_world
from lipschitz_rnn.training.preparation import check_recorded_options, check_start, check_task
from lipschitz_rnn.training.probing import Probe
from lipschitz_rnn.training.results import Result
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.sources import Builder
from lipschitz_rnn.training.update import matmul_precision
from lipschitz_rnn.training.watchers import TensorBoard, Watcher, Watchers


def fit(
    settings: Settings,
    task: Task,
    folder: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    build: Builder = build_model,
    watcher: Watcher | None = None,
    probe: Probe | None = None,
) -> Result:
    """Train `settings` on `task`; test at the epoch selected on validation data and at the last one.

    Args:
        folder: where to keep the run; None keeps it in memory only.
        resume: continue from the newest valid checkpoint in `folder`; without one, start from the beginning.
        build: builds the network of one seed from (settings, task, seed); by default encoder ▶ unit ▶ head from the
            settings. Define it in a module, so that `load_run` can find it again.
        watcher: follows the progress.
        probe: called after every epoch with all networks, on the CPU, and, if it takes a second argument, with the
            `Moment` (epoch and step); returns numbers to record for each network, e.g. its largest eigenvalue.

    Raises:
        Diverged: every seed's loss became NaN or infinite.
        Interrupted: SIGINT or SIGTERM arrived; the state is saved.
        RunError: the folder cannot be used, or writing failed.
    """
    check_task(settings, task)
    if folder is not None and resume:
        check_recorded_options(folder, task)
    # A user's builder may have side effects, so its networks are built only once, below.
    device = check_start(settings, task) if build is build_model else choose_device(settings.device)
    watcher = watcher or Watcher()
    with joined_world(device) as world, matmul_precision(settings.precision):
        task = task.to(device)
        arguments = (settings, task, device, build, world)
        if folder is None:
            return Trainer(*arguments, None, watcher, probe).run()
        with RunFolder(folder, watcher.note) as run_folder:
            watchers = [watcher, TensorBoard(run_folder.path / "events")] if world.writes else []
            # Wrong settings raise here, before a folder is created.
            trainer = Trainer(*arguments, run_folder, Watchers(watchers), probe)
            if world.writes:
                run_folder.open(settings, describe_environment(device), task.describe(), resume, trainer.sources)
            return trainer.run(_saved(run_folder, settings, resume, world))


def _saved(folder: RunFolder, settings: Settings, resume: bool, world: World) -> Saved | None:
    """The state to continue from, the same for all processes; rank 0 then removes what was written after it."""
    world.wait()  # rank 0 may still be writing the last checkpoint of the previous run
    saved = folder.latest(settings) if resume else None
    world.wait()
    if world.writes:
        folder.rewind(None if saved is None else saved[1])
    world.wait()
    return saved
