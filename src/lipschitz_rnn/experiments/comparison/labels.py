"""Names for the rows and columns of a comparison: the unit and the task, and whatever else tells runs apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn import tasks
from lipschitz_rnn.training.settings import PLACE_SETTINGS, Settings

# What tells two runs of one unit apart, the most telling first; other settings follow in their own order.
_TELLING = ("integrator", "hidden_size", "stability", "schedule", "optimiser", "learning_rate", "epochs")
_NOT_OF_A_ROW = PLACE_SETTINGS | {"task", "task_options", "unit", "unit_options", "variants", "seeds", "log_steps"}
_SYMBOLS = {"hidden_size": "N", "learning_rate": "lr"}
_BARE = ("integrator", "stability", "schedule", "optimiser")  # their values say what they are


def flat_settings(settings: Settings) -> dict[str, Any]:
    """The settings that may tell two rows apart, unit options by their own names."""
    values = {name: value for name, value in settings.to_dict().items() if name not in _NOT_OF_A_ROW}
    return {**values, **settings.unit_options}


def column_names(all_settings: Sequence[Settings]) -> list[str]:
    """The task of each run, with the options of the task in which runs on it differ."""
    files = {_path(settings) for settings in all_settings if settings.task == "file"}
    bases = [_task(settings, files) for settings in all_settings]
    options = [{k: v for k, v in s.task_options.items() if k not in ("path", "step_size")} for s in all_settings]
    names = []
    for base, own in zip(bases, options, strict=True):
        others = [other for name, other in zip(bases, options, strict=True) if name == base]
        keys = dict.fromkeys(key for each in others for key in each)
        differing = [key for key in keys if any(_plain(each.get(key)) != _plain(own.get(key)) for each in others)]
        shown = [f"{key}={own[key]}" for key in differing if key in own]
        names.append(", ".join([base, *shown]))
    return names


def _path(settings: Settings) -> Path:
    return Path(settings.task_options["path"])


def _task(settings: Settings, files: set[Path]) -> str:
    """The task, or the name of the file, with as much of its path as tells it from other files and from tasks."""
    if settings.task != "file":
        return settings.task
    path = _path(settings)
    if path.stem not in tasks.available() and all(path.stem != other.stem for other in files - {path}):
        return path.stem
    tails = ("/".join(path.parts[-count:]) for count in range(1, len(path.parts)))
    return next((tail for tail in tails if not any(_ends(other, tail) for other in files - {path})), str(path))


def _ends(path: Path, tail: str) -> bool:
    return path.parts[-tail.count("/") - 1 :] == tuple(tail.split("/"))


def row_names(all_settings: Sequence[Settings], columns: Sequence[str], by: Sequence[str] = ()) -> list[str]:
    """The unit of each run, with as few other settings as tell the runs of one task apart.

    Args:
        by: the settings and unit options to name rows by, instead of those that are found.
    """
    flat = [{"unit": settings.unit, **flat_settings(settings)} for settings in all_settings]
    known = dict.fromkeys(name for values in flat for name in values)
    for name in (name for name in by if name not in known):
        raise ValueError(f"rows cannot be named by {name!r}; the settings of these runs are {', '.join(known)}")
    names = list(dict.fromkeys(by)) or ["unit", *_telling(flat, columns)]
    labels = []
    for values in flat:
        same = [each for each in flat if all(_plain(each.get(n)) == _plain(values.get(n)) for n in names[:1])]
        telling = [
            name
            for name in names[1:]
            if name in values and (by or any(_plain(each.get(name)) != _plain(values.get(name)) for each in same))
        ]
        first = str(values[names[0]]) if names[0] in values else f"no {names[0]}"
        labels.append(", ".join([first, *(_shown(name, values[name]) for name in telling)]))
    return labels


def _telling(flat: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Settings by which runs of the same unit on the same task can be told apart, as few as a greedy search finds."""
    chosen: list[str] = []
    while True:
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for values, column in zip(flat, columns, strict=True):
            key = _plain([column, values["unit"], *(values.get(name) for name in chosen)])
            groups.setdefault(key, []).append(values)
        differing = dict.fromkeys(
            name
            for group in groups.values()
            for name in dict.fromkeys(key for values in group for key in values)
            if len({_plain(values.get(name)) for values in group}) > 1
        )
        if not differing:
            return chosen
        chosen.append(next((name for name in _TELLING if name in differing), next(iter(differing))))


def _shown(name: str, value: Any) -> str:
    return str(value) if name in _BARE and value is not None else f"{_SYMBOLS.get(name, name)} = {value}"


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
