"""The folder of a run that `train` starts or continues."""

from __future__ import annotations

from pathlib import Path

from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.reading import read_json


def free_folder(name: str, settings: Settings) -> Path:
    """runs/NAME-UNIT-nN, with a number if taken."""
    base = Path("runs") / f"{name}-{settings.unit}-n{settings.hidden_size}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def recorded_threads(folder: Path) -> int | None:
    """The number of threads of the first part of a run: the last bits of its weights depend on it."""
    path = folder / "environment.json"
    threads = read_json(path).get("threads") if path.exists() else None
    return threads if isinstance(threads, int) and threads > 0 else None
