"""Checks before a run starts. A dry run and a real run call the same function, so they agree."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training.errors import RunConflict, RunError
from lipschitz_rnn.training.graph import graph_obstacle
from lipschitz_rnn.training.model import Shapes, build_model, draws_random_numbers
from lipschitz_rnn.training.parallel import World, choose_device
from lipschitz_rnn.training.reading import is_there, read_json
from lipschitz_rnn.training.run_settings import check_builder, check_folder
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.special_parameters import special_parameters
from lipschitz_rnn.training.times import require_timed
from lipschitz_rnn.training.variation import check_variants
from lipschitz_rnn.units.lipschitz.parallel import require_trainable

_LARGE = 1024  # from this hidden size on, building takes noticeable time or memory
_COPIES = 4  # per parameter, at least: its value, gradient, copy for the selected epoch, and optimiser state


def check_start(
    settings: Settings,
    shapes: Shapes,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> torch.device:
    """Raise what a run with these settings would raise before its first step; returns the device it would use.

    Checks the unit and its options, variants, optimiser, device, memory, CUDA graph and, if given, the run folder. No
    data is read and nothing is written. Large networks are built without memory if their code allows it.

    Raises:
        ValueError, TypeError: a setting is invalid.
        RunConflict: the folder holds another run.
        RunError: the folder cannot be used, or the networks do not fit into memory.
    """
    device = choose_device(settings.device)
    plain = _built(settings.of_variant({}), shapes)
    if getattr(shapes, "timed", False):  # not recorded by earlier versions
        require_timed(plain, settings.task)
    check_variants(plain, settings.unit, settings.variants)
    for model in (plain, *(_built(settings.of_variant(variant), shapes) for variant in settings.variants)):
        require_trainable(model)
    special_parameters(settings, {name: p[None] for name, p in plain.named_parameters() if p.requires_grad})
    if folder is not None:  # after the settings: a wrong one is no reason to continue the run that is there
        check_folder(folder, settings, resume)
        check_builder(Path(folder), {})
    _check_memory(plain, len(settings.members), device)
    graph_obstacle(settings, device, draws_random_numbers(plain), World())
    return device


def check_task(settings: Settings, task: Task) -> None:
    """Raise if the task does not match the settings: its name, and every option that both have, must be equal.

    For a task of your own, use `Settings(task=task.name)`.
    """
    if settings.task != task.name:
        raise ValueError(
            f"the settings are for the task {settings.task!r}, but the task given is {task.name!r}; "
            f"set task={task.name!r}, or load the task {settings.task!r}"
        )
    known: Mapping[str, Any] = task.option_defaults() | task.options
    for option, asked in settings.task_options.items():
        if option in known and asked != (found := _as_list(known[option])):
            raise ValueError(
                f"the settings have the task option {option} = {asked!r}, but the task given has {found!r}; "
                "load the task with the options of the settings"
            )


def check_recorded_options(folder: str | os.PathLike[str], task: Task) -> None:
    """Raise if a run would continue on a task with other options than it began with; settings need not list them all.

    An option that a record does not have, e.g. of an earlier version, had its default.
    """
    path = Path(folder) / "task.json"
    if not is_there(path):
        return
    recorded = read_json(path).get("options")
    if not isinstance(recorded, Mapping):
        return
    before = {**task.option_defaults(), **recorded}
    for option, now in {**task.option_defaults(), **task.options}.items():
        if option in before and not _equal_in_json(before[option], now):
            raise RunConflict(
                f"{folder} holds a run on {task.name} with {option} = {before[option]!r}, but the task given has "
                f"{now!r}; load the task with the options of the run, or choose another folder"
            )


def _equal_in_json(first: Any, second: Any) -> bool:
    """Tuples are lists there, and NaN equals NaN."""
    texts = [json.dumps(value, default=repr, sort_keys=True) for value in (first, second)]
    return texts[0] == texts[1] or json.loads(texts[0]) == json.loads(texts[1])


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _built(settings: Settings, shapes: Shapes) -> nn.Module:
    """The network of the first seed; a large one on the meta device, without memory, if its code allows it."""
    if settings.hidden_size < _LARGE:  # milliseconds; the meta device would import PyTorch's compiler first
        return build_model(settings, shapes, settings.seeds[0])
    try:
        with torch.device("meta"):
            return build_model(settings, shapes, settings.seeds[0])
    except (ValueError, TypeError):
        raise
    except (RuntimeError, NotImplementedError) as error:
        if "overflow" in str(error):  # more bytes than a 64-bit number counts
            raise RunError(_too_large(settings.hidden_size)) from error
    return build_model(settings, shapes, settings.seeds[0])


def _check_memory(model: nn.Module, members: int, device: torch.device) -> None:
    needed = _COPIES * members * sum(value.numel() * value.element_size() for value in model.parameters())
    there = _memory(device)
    if there is not None and needed > there:
        raise RunError(_too_large(None, f" (at least {needed / 2**30:,.0f} GiB of {there / 2**30:,.0f} GiB)"))


def _too_large(hidden_size: int | None, detail: str = "") -> str:
    size = "" if hidden_size is None else f" with hidden_size {hidden_size:,}"
    return f"the networks{size} do not fit into memory{detail}; choose a smaller hidden_size, or fewer seeds"


def _memory(device: torch.device) -> int | None:
    """Memory of the device in bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
