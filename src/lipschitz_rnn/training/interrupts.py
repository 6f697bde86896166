"""SIGINT and SIGTERM as a request: finish the step, save, and leave with the exit code the shell expects."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupted(Exception):
    """The run was asked to stop and has saved its state. `exit_code` is 128 + signal: 130 or 143."""

    def __init__(self, number: int, saved: str | None = None) -> None:
        self.number, self.exit_code, self.saved = number, 128 + number, saved
        where = f"; saved as {saved}" if saved else ""
        super().__init__(f"stopped by {signal.Signals(number).name}{where}")


class Interrupts:
    """While active, the first signal is noted in `number`; a second one of the same kind acts as it did before."""

    def __init__(self) -> None:
        self.number = 0
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(number, self._previous[number])

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
