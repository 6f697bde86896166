"""The frozen settings of a run folder, and checks whether a run can use a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipschitz_rnn.training.errors import RunConflict, RunError
from lipschitz_rnn.training.reading import is_there, read_json, read_sources
from lipschitz_rnn.training.schedules import why_not_longer
from lipschitz_rnn.training.settings import Settings

_NAMED = 10  # most run folders to list in a message
_HOLDS = {"config.json": "a run", "sweep.json": "a sweep", "seeds.json": "runs that divide their seeds"}


def check_folder(path: str | os.PathLike[str], settings: Settings, resume: bool) -> None:
    """Check that a run with these settings can start or continue in this folder; nothing is written.

    A run that continues may have more epochs than before, if its schedule allows it.

    Raises `RunConflict` if it holds another run, `RunError` if it cannot be used.
    """
    check_place(path)
    folder = Path(path)
    check_alone(folder, "config.json")
    if not (folder / "config.json").exists():
        if not resume and _has_remains(folder):
            raise RunConflict(
                f"{folder} holds a run whose config.json is missing, and an existing run is never overwritten; restore "
                "the file from a copy, go on with --resume and the settings of that run, or choose another folder"
            )
        return
    if not resume:
        raise RunConflict(f"{folder} already holds a run; resume it with --resume, or choose another folder")
    before = read_settings(folder)
    for name, (asked, frozen) in settings.differences(before).items():
        if name == "epochs" and asked > frozen:
            if reason := why_not_longer(before):
                raise RunConflict(f"{folder} cannot be given {asked} epochs instead of {frozen}: {reason}")
            continue
        raise RunConflict(
            f"{folder} holds a run with {name} = {frozen!r}, but this call has {asked!r}; "
            "resume without changed settings, or choose another folder"
        )


def _has_remains(folder: Path) -> bool:
    """Whether there is something that a run has trained."""
    metrics = folder / "metrics.jsonl"
    return any(folder.glob("checkpoints/*.safetensors")) or (metrics.is_file() and metrics.stat().st_size > 0)


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise `RunError` if this folder cannot be made or written to; nothing is written."""
    folder = Path(path)
    try:
        if "\0" in os.fspath(path):
            raise RunError(f"the run folder {os.fspath(path)!r} has a NUL in its name; choose another folder")
        place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
        if not place.is_dir():
            raise RunError(f"{place} is a file, not a folder; choose another folder for the run")
        if not os.access(place, os.W_OK | os.X_OK):
            raise RunError(
                f"cannot set up the run in {folder}: Permission denied, {place} is not writable; "
                "change its permissions, or choose another folder"
            )
        (folder / "config.json").exists()
    except OSError as error:  # a name that is too long, a loop of links
        raise RunError(f"cannot set up the run in {folder}: {error.strerror}; choose another folder") from error


def check_alone(folder: Path, own: str) -> None:
    """Raise `RunConflict` if a folder holds other things than the one that the file `own` describes.

    `report` and `compare` look for no runs inside a run: a new one would hide those below it.
    """
    if (folder / own).exists():
        return
    for what in (what for name, what in _HOLDS.items() if (folder / name).exists()):
        raise RunConflict(f"{folder} already holds {what}; choose another --out")
    if runs := [run for run in _runs_below(folder) if (run / "checkpoints").is_dir()]:
        held = f"run folders: {_named(runs)}" if runs[1:] else f"the run folder {runs[0]}"
        raise RunConflict(f"{folder} already holds {held}; choose another --out, e.g. a new folder in it")


def check_builder(folder: Path, sources: Mapping[str, Any]) -> None:
    """Raise if a run with the user's model would continue with the package's model, or the other way round."""
    if not (folder / "sources.json").exists():
        return
    before, now = read_sources(folder).get("build"), sources.get("build")
    if (before is None) != (now is None):
        own = f"{before.get('name')} of {before.get('module')}" if before else "the package's own builder"
        fix = "pass that function as build= in Python" if before else "leave build= out"
        raise RunConflict(f"{folder} holds a run whose networks were built by {own}; {fix}, or choose another folder")


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """The frozen settings of a run folder."""
    config = Path(path) / "config.json"
    if not is_there(config):
        raise RunError(_not_a_run(Path(path)))
    try:
        return Settings.from_dict(read_json(config))
    except (ValueError, TypeError) as error:
        raise RunError(f"{config} cannot be used: {error}; restore it from a copy, or train again") from error


def _not_a_run(folder: Path) -> str:
    """Why a path is not a run folder, and the run folders below it."""
    if not is_there(folder):
        return f"{folder} is not a run folder: it does not exist; give the folder that `lipschitz-rnn train` wrote"
    if not folder.is_dir():
        return f"{folder} is not a run folder but a file; give the folder that `lipschitz-rnn train` wrote"
    runs = _runs_below(folder)
    if not runs:
        return f"{folder} is not a run folder: it has no config.json; give the folder that `lipschitz-rnn train` wrote"
    return f"{folder} is not a run folder; the run folders in it are {_named(runs)}. Give one of them"


def _runs_below(folder: Path) -> list[Path]:
    return sorted(config.parent for pattern in ("*", "*/*") for config in folder.glob(f"{pattern}/config.json"))


def _named(runs: list[Path]) -> str:
    return ", ".join(map(str, runs[:_NAMED])) + (f" and {len(runs) - _NAMED} more" if runs[_NAMED:] else "")
