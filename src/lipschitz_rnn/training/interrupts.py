"""SIGINT and SIGTERM as a request: finish the step, save, and leave with the exit code the shell expects."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Self


class Interrupted(Exception):
    """The run was asked to stop and has saved its state. `exit_code` is 128 + signal: 130 or 143.

    saved: the checkpoint, or None if the run has no folder; go_on: how to resume, as a command or a call.
    """

    def __init__(self, number: int, saved: str | None = None, go_on: str | None = None) -> None:
        self.number, self.exit_code, self.saved, self.go_on = number, 128 + number, saved, go_on
        super().__init__(f"stopped by {signal.Signals(number).name}{describe_rest(saved, go_on)}")


def describe_rest(saved: str | None, go_on: str | None) -> str:
    """What was saved of a stopped run and how to resume it, as the end of a sentence."""
    if saved is None:
        return "; nothing is saved, because the run has no folder"
    return f"; saved as {saved}" + (f". Resume with: {go_on}" if go_on else "")


def resume_command(
    folder: str | os.PathLike[str],
    processes: int = 1,
    known_task: bool = True,
    sources: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> str:
    """How to resume the run in a folder: a command, or a call of `fit` for a user's model or an unregistered task."""
    own = {name: value for name, value in (sources or {}).items() if value is not None}
    if not known_task or "build" in own:
        build = ", build=build" if "build" in own else ""
        return f"fit(settings, task, {os.fspath(folder)!r}, resume=True{build})"
    start = "lipschitz-rnn" if processes == 1 else f"torchrun --nproc-per-node {processes} -m lipschitz_rnn"
    modules = dict.fromkeys(value["module"] for value in own.values() if value["importable"])
    imports = "".join(f" --import {module}" for module in modules)
    return f"{start} train --resume --out {shlex.quote(os.fspath(folder))}{imports}"


class Interrupts:
    """While active, the first signal is stored in `number`; a second one of the same kind acts as usual."""

    def __init__(self) -> None:
        self.number = 0
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(number, self._previous[number])

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
