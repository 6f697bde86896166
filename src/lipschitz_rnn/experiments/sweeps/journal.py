"""Optuna's journal on disk, which survives a full disk and a crash at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def open_journal(path: Path) -> Any:
    """The storage of a study in one file that several processes append to."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class Lock(JournalFileSymlinkLock):
        """Held while lines are added. Optuna would add them to half a line, and could never read the file again."""

        def acquire(self) -> bool:
            held = super().acquire()
            drop_half_line(path)
            return held

    return JournalStorage(JournalFileBackend(str(path), Lock(str(path))))


def drop_half_line(path: Path) -> None:
    """Remove what follows the last line break: its writer was stopped, so nobody relies on it."""
    with path.open("rb+") as file:
        if file.seek(0, 2) == 0:
            return
        file.seek(-1, 2)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
