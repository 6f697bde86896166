"""The registry of tasks, built-in and users', and the functions that build them by name."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from lipschitz_rnn.plugins import MissingCodeError, Registered, did_you_mean
from lipschitz_rnn.tasks.base import Task, TaskInfo
from lipschitz_rnn.tasks.cifar import NoisePaddedCifar10, OrderedCifar10
from lipschitz_rnn.tasks.files import NotRead, without_reading
from lipschitz_rnn.tasks.irregular import IrregularDigits, IrregularPendulum
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
    IrregularDigits,
    IrregularPendulum,
)
_TASKS = {task.info.name: task for task in _ALL}
_OWN = Registered("task", _TASKS)
# Tasks of packages above this one, which are imported when asked for. They need options, so `available` has them not.
_ABOVE = {"file": ("lipschitz_rnn.data.files", "FileTask")}
Kind = TypeVar("Kind", bound=type[Task])


def register(task: Kind) -> Kind:
    """Register a task under its `info.name`, for `load` and for every command. Use it as a decorator or a function.

    A package can register a task on installation with an entry point in the group "lipschitz_rnn.tasks".
    Raises ValueError if the name is taken.
    """
    _OWN.add(_require_task(task).info.name, task)
    return task


def available() -> tuple[str, ...]:
    """The names that `load` and `info` accept."""
    return (*_TASKS, *_OWN.names())


def is_registered(name: str, own: Mapping[str, Any] | None = None) -> bool:
    """Whether `load` knows the task recorded under this name; `own`: its source, if it is not the package's."""
    return name in _OWN.names() or (own is None and (name in _TASKS or name in _ABOVE))


def find(name: str) -> type[Task]:
    """The class of a task."""
    found = _TASKS.get(name) or _above(name) or _OWN.find(name)
    if found is None:
        raise ValueError(
            f"there is no task {name!r}{did_you_mean(name, available())}; the tasks are {', '.join(available())}. "
            "A task of your own is known once its module is imported: --import MODULE"
        )
    kind = _require_task(found)
    if kind.info.name != name:
        raise MissingCodeError(
            f"the entry point {name!r} gives the task {kind.info.name!r}; the names must be the same"
        )
    return kind


def _above(name: str) -> Any:
    if name not in _ABOVE:
        return None
    module, kind = _ABOVE[name]
    return getattr(importlib.import_module(module), kind)


def _require_task(kind: Any) -> type[Task]:
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise TypeError(f"the task is {kind!r}; give a subclass of lipschitz_rnn.tasks.Task")
    if not isinstance(getattr(kind, "info", None), TaskInfo):
        raise TypeError(f"the task {kind.__name__} has no TaskInfo in its class attribute `info`; add one")
    return kind


def info(name: str) -> TaskInfo:
    """The facts about a task, with its default options, without reading its data."""
    task = find(name)
    return replace(task.info, options=task.option_defaults())


def load(
    name: str | type[Task], root: str | os.PathLike[str] | None = None, *, offline: bool = False, **options: Any
) -> Task:
    """Build a task by its name, or from its class.

    Data files are searched for in `root`, then in the folder named by LIPSCHITZ_RNN_DATA, then in the user's cache.
    Missing public files are downloaded into the cache unless `offline`. Raises `DataError` if a file is missing,
    damaged or of the wrong kind, and ValueError or TypeError for an unknown name or a wrong option.
    """
    task = _checked(name, options)
    place: dict[str, Any] = {"root": None if root is None else os.fspath(root), "offline": offline}
    taken = inspect.signature(task).parameters  # a task without files need not take a folder
    return task(**{key: value for key, value in place.items() if key in taken}, **options)  # type: ignore[call-arg]


def check(
    name: str, root: str | os.PathLike[str] | None = None, *, offline: bool = False, **options: Any
) -> SimpleNamespace:
    """Raise what `load` would raise for these arguments, without reading data; returns the shapes of the task.

    Checks the options, and that files exist or may be downloaded, but not their contents.
    """
    task = _checked(name, options)
    try:
        with without_reading():
            built = load(name, root, offline=offline, **options)
    except NotRead:
        return SimpleNamespace(**task.shapes(options))
    return SimpleNamespace(**{fact: getattr(built, fact) for fact in task.shapes(options)})


def _checked(name: str | type[Task], options: Mapping[str, Any]) -> type[Task]:
    """The task, or ValueError for a name or an option that does not exist."""
    task = find(name) if isinstance(name, str) else _require_task(name)
    allowed = task.option_defaults()
    unknown = [key for key in options if key not in allowed]
    if unknown:
        offered = ", ".join(allowed) or "none"
        raise ValueError(f"task {task.info.name!r} has no option {unknown[0]!r}; its options are: {offered}")
    return task
