"""A folder of several runs, held by one call at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lipschitz_rnn.training import Interrupted, RunError


@contextmanager
def hold_folder(lock: Path, kind: str, go_on: str) -> Iterator[None]:
    """Make and lock the folder of `lock`; an interruption or a full disk inside becomes a message on how to go on.

    The system releases the lock however the process ends.

    Args:
        kind: what the folder belongs to, as in "in use by another sweep".
        go_on: what goes on later, as in "the same command".
    """
    folder = lock.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    try:
        held = FileLock(lock, timeout=0, thread_local=False)
        try:
            held.acquire()
        except Timeout:
            raise RunError(f"{folder} is in use by another {kind}; wait for it, or choose another --out") from None
        try:
            yield
        finally:
            held.release()
    except Interrupted as interrupted:
        raise Interrupted(interrupted.number, str(folder), go_on) from None
    except OSError as error:
        raise RunError(
            f"the {kind} stopped: {error.filename or folder}: {error.strerror or error}; its runs are kept: with space "
            f"and permission to write, {go_on} goes on"
        ) from error
