"""Names of the tasks, and the one way to build them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from lipschitz_rnn.tasks.base import Task
from lipschitz_rnn.tasks.cifar import NoisePaddedCifar10, OrderedCifar10
from lipschitz_rnn.tasks.files import NotRead, without_reading
from lipschitz_rnn.tasks.mnist import OrderedMnist, PermutedMnist, RowsMnist
from lipschitz_rnn.tasks.pixels import Digits
from lipschitz_rnn.tasks.speech import SpokenDigits, Timit, TimitSample
from lipschitz_rnn.tasks.synthetic import Adding, Copying, Pendulum
from lipschitz_rnn.tasks.text import PtbCharacters, PtbWords

_ALL: tuple[type[Task], ...] = (
    Digits,
    OrderedMnist,
    PermutedMnist,
    RowsMnist,
    OrderedCifar10,
    NoisePaddedCifar10,
    Timit,
    TimitSample,
    SpokenDigits,
    PtbCharacters,
    PtbWords,
    Pendulum,
    Adding,
    Copying,
)
_TASKS = {task.info.name: task for task in _ALL}


def available() -> tuple[str, ...]:
    """The names that `load` and `info` take."""
    return tuple(_TASKS)


def _find(name: str) -> type[Task]:
    if name not in _TASKS:
        raise ValueError(f"there is no task {name!r}; the tasks are {', '.join(_TASKS)}")
    return _TASKS[name]


def info(name: str) -> dict[str, Any]:
    """What is known about a task without reading its data: the keys of `Task.describe`, at the default options."""
    task = _find(name)
    return asdict(task.info) | {"options": task.option_defaults()}


def load(name: str, root: str | os.PathLike[str] | None = None, *, offline: bool = False, **options: Any) -> Task:
    """Build the task `name`.

    Data files are looked for in `root`, then in the folder named by LIPSCHITZ_RNN_DATA, then in the user's cache;
    public ones that are nowhere are downloaded into the cache unless `offline`. Raises `DataError` when a file is
    missing, damaged or of the wrong kind, and ValueError or TypeError for an unknown name or a wrong option.
    """
    return _checked(name, options)(None if root is None else os.fspath(root), offline=offline, **options)  # type: ignore[call-arg, arg-type]


def check(
    name: str, root: str | os.PathLike[str] | None = None, *, offline: bool = False, **options: Any
) -> SimpleNamespace:
    """What `load` would raise for these arguments, found without reading data; the shapes that the task would have.

    Options are checked, and that files are there or may be downloaded; what is in them is not.
    """
    task = _checked(name, options)
    try:
        with without_reading():
            built = load(name, root, offline=offline, **options)
    except NotRead:
        return SimpleNamespace(**task.shapes(options))
    return SimpleNamespace(**{fact: getattr(built, fact) for fact in task.shapes(options)})


def _checked(name: str, options: Mapping[str, Any]) -> type[Task]:
    """The task, or ValueError for a name or an option that does not exist."""
    task = _find(name)
    allowed = task.option_defaults()
    unknown = [key for key in options if key not in allowed]
    if unknown:
        offered = ", ".join(allowed) or "none"
        raise ValueError(f"task {name!r} has no option {unknown[0]!r}; its options are: {offered}")
    return task
