"""From settings to a run: load the task, train, note eigenvalues. And back: from a run folder to its networks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from lipschitz_rnn import tasks
from lipschitz_rnn.stability.tracking import spectral_probe
from lipschitz_rnn.tasks import Metric, Split, Task
from lipschitz_rnn.training import Result, Settings, Watcher, build_model, fit
from lipschitz_rnn.training.checkpoint import copy_tensors, read_checkpoint
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.evaluation import Scores, evaluate_members
from lipschitz_rnn.training.fitting import matmul_precision
from lipschitz_rnn.training.folder import RunError, RunFolder, check_origin, read_settings
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.preparation import check_start
from lipschitz_rnn.training.reading import read_shapes


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


def load_models(
    folder: str | os.PathLike[str], which: str = "best", variant: int | None = None
) -> tuple[Settings, dict[int, nn.Module]]:
    """The settings of a run and its networks by seed, on the CPU. Needs the run folder only, not the task's data.

    `which`: "best", the weights that validation selected, or "last", those of the newest checkpoint. Of a run with
    variants, `variant` says which one, counted from 0; the settings returned are that variant's own.
    """
    settings, models = load_members(folder, which)
    variants = settings.variants
    if not variants and variant is None:
        return settings, dict(zip(settings.seeds, models, strict=True))
    if variant is None or not 0 <= variant < len(variants):
        known = "; ".join(f"{index}: {options}" for index, options in enumerate(variants)) or "none"
        raise ValueError(f"variant is {variant}; the variants of {folder} are {known}; name one of them by its number")
    chosen = models[variant * len(settings.seeds) : (variant + 1) * len(settings.seeds)]
    return settings.of_variant(variants[variant]), dict(zip(settings.seeds, chosen, strict=True))


def load_members(folder: str | os.PathLike[str], which: str = "best") -> tuple[Settings, list[nn.Module]]:
    """The settings of a run and all its networks, in the order of `settings.members`."""
    if which not in ("best", "last"):
        raise ValueError(f'which is {which!r}; it must be "best" or "last"')
    settings = read_settings(folder)
    prefix = "parameters/"
    path = Path(folder) / "checkpoints" / "best.safetensors"
    if which == "best":
        if not path.exists():
            raise RunError(f"{folder} has no selected weights yet: its first epoch is not complete")
        tensors, state = read_checkpoint(path)
        check_origin(path, state, settings)
    else:
        saved = RunFolder(folder).latest(settings)
        if saved is None:
            raise RunError(f"{folder} has no checkpoint yet")
        tensors, path = saved[0], path.parent
        if settings.averaging is not None:
            tensors |= {
                name.replace("average/", prefix): v for name, v in tensors.items() if name.startswith("average/")
            }
    models: list[nn.Module] = []
    shapes = read_shapes(folder)
    stacked = {name: value.unbind(0) for name, value in tensors.items() if name.startswith(prefix) and value.dim()}
    for index, member in enumerate(settings.members):
        model = build_model(settings.of_variant(member.variant), shapes, member.seed)
        own = {name: parts[index] for name, parts in stacked.items() if index < len(parts)}
        copy_tensors(own, dict(model.named_parameters()) | dict(model.named_buffers()), prefix, path)
        models.append(model.eval())
    return settings, models


def evaluate_run(
    folder: str | os.PathLike[str],
    split: Split = "test",
    which: str = "best",
    *,
    device: str | None = None,
    data_dir: str | None = None,
    offline: bool = False,
    started: Callable[[Settings], None] = lambda settings: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Settings, Metric, Scores]:
    """Settings of a run, its metric, and the scores of all its networks on a split.

    `started` is called once with the settings, before anything is loaded; `progress` before each batch.
    """
    settings = read_settings(folder)
    settings = replace(
        settings, device=device or settings.device, data_dir=data_dir or settings.data_dir, offline=offline
    )
    started(settings)
    place = choose_device(settings.device)
    # The task that was trained may have had options that the settings do not name: those of its record count.
    options = {**settings.task_options, **read_shapes(folder).options}
    task = load_task(replace(settings, task_options=options))
    _, models = load_members(folder, which)
    ensemble = Ensemble(models, place, settings.ensemble)
    with matmul_precision(settings.precision):
        pause = count_batches(progress, task, split, settings)
        scores = evaluate_members(ensemble, ensemble.values, task.to(place), split, settings, pause=pause)
    return settings, task.metric, scores


def count_batches(
    progress: Callable[[int, int], None], task: Task, split: Split, settings: Settings
) -> Callable[[], None]:
    """For `evaluate_members`: calls `progress` with the number of batches before this one, and of all."""
    total = -(-task.size(split) // (1 if task.stateful else settings.eval_batch_size))
    numbers = itertools.count()
    return lambda: progress(next(numbers), total)
