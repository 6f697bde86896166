"""Runs on a file are compared, merged and continued only if the file held the same data for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.training import RunError, Settings
from lipschitz_rnn.training.folder import RunConflict
from lipschitz_rnn.training.history import Run
from lipschitz_rnn.training.reading import is_there, read_json, require_same_series

# What decides which part of a file is read; the other options say what is made of it.
_READING = ("path", "target", "series", "time", "features", "split", "categories", "sort", "kind")


def check_same_data(runs: Iterable[tuple[Settings, Path]]) -> None:
    """Raise `RunConflict` if the file of one of these runs has changed since it began; a file is read once.

    A finished run is never resumed, so that nothing else would notice.
    """
    found: dict[str, Any] = {}
    for settings, folder in runs:
        path = folder / "task.json"
        if settings.task != "file" or not is_there(path):
            continue
        try:
            before = read_json(path).get("series")
        except RunError:  # damaged: whoever opens the run is told
            continue
        key = f"{settings.data_dir} {_reading(settings)}"
        if key not in found:
            found[key] = load_task(settings).describe().get("series")
        require_same_series(before, found[key], folder)


def require_one_content(runs: Iterable[Run]) -> None:
    """Raise `RunConflict` if a file has changed between two of these runs: their scores are of different data."""
    first: dict[str, Run] = {}
    for run in (run for run in runs if run.fingerprint is not None):
        other = first.setdefault(_reading(run.settings), run)
        if other.fingerprint != run.fingerprint:
            name = Path(run.settings.task_options["path"]).name
            raise RunConflict(
                f"{other.path} and {run.path} were trained on different contents of {name}, so their scores cannot be "
                "put side by side; name only runs on the same content, or train one of them again in another folder"
            )


def _reading(settings: Settings) -> str:
    return json.dumps([settings.task_options.get(name) for name in _READING])
