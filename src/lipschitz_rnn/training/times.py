"""Whether a model can take the times between samples, and the error if it cannot."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from lipschitz_rnn.tasks import Split, Task
from lipschitz_rnn.units.arguments import unit_name
from lipschitz_rnn.units.catalogue import ROWS


def has_times(task: Task, split: Split = "validation") -> bool:
    """Whether the batches of a task have timespans, as seen in one of them."""
    return task.timed or task.batch(split, torch.zeros(1, dtype=torch.int64)).timespans is not None


def takes_times(model: nn.Module) -> bool:
    """What the model says itself (`takes_timespans`), or whether its forward has an argument `timespans`."""
    stated = getattr(model, "takes_timespans", None)
    if stated is not None:
        return bool(stated)
    parameters = inspect.signature(model.forward).parameters
    return "timespans" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def require_timed(model: nn.Module, task: str = "") -> None:
    """Raise if a model is to take the times between samples, of the named task, but cannot."""
    if takes_times(model):
        return
    given = f"the task {task!r} gives the times between samples (timespans)" if task else "timespans was given"
    alternative = (
        "load the task with times='input' (--task-option times=input), which makes them one more input, or with "
        "times='ignored', which drops them; in a task of your own, pass each batch through tasks.with_times"
    )
    unit = getattr(model, "unit", None)
    if getattr(model, "takes_timespans", None) is None or unit is None:
        raise ValueError(
            f"{given}, but the forward of the model {type(model).__name__} does not take them; add an argument "
            f"timespans=None, (T, B), and pass it to the recurrent layer. Or {alternative}"
        )
    takers = ", ".join(row.name for row in ROWS if row.timespans)
    raise ValueError(
        f"{given}, but the unit {unit_name(unit)!r} does not take them; "
        f"use one that does: {takers}, or your own with takes_timespans = True. Or {alternative}"
    )
