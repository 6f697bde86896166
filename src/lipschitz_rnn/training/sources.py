"""Where the code of a run is defined, recorded in its folder so that `load_run` can find it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lipschitz_rnn import plugins, units
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training.model import build_model
from lipschitz_rnn.training.settings import Settings

Builder = Callable[[Settings, Task, int], nn.Module]


def describe_sources(settings: Settings, task: Task, build: Builder) -> dict[str, Any]:
    """The task, the unit and the builder as `plugins.reference` names them; None for those of the package."""
    unit = units.info(settings.unit).load() if settings.unit in units.available() else None
    own: dict[str, Any] = {name: kind for name, kind in (("task", type(task)), ("unit", unit)) if not _is_ours(kind)}
    own |= {} if build is build_model else {"build": build}
    return {name: plugins.reference(own[name]) if name in own else None for name in ("task", "unit", "build")}


def _is_ours(kind: type | None) -> bool:
    return kind is None or kind.__module__.startswith("lipschitz_rnn.")
