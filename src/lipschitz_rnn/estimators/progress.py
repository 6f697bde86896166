"""What happens during `fit`: the history of every epoch, and a line of progress for whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from lipschitz_rnn.training import Settings, Watcher


class History(Watcher):
    """Collects one number per epoch and quantity, the mean over the networks; prints them if `verbose`.

    A terminal and a notebook rewrite one line; elsewhere, such as in a log file, about ten lines are printed.
    """

    def __init__(self, verbose: int = 0) -> None:
        self.values: dict[str, list[float]] = {}
        self._verbose = int(verbose)
        self._rewrites = sys.stdout.isatty() or "ipykernel" in sys.modules
        self._epochs, self._open = 0, False

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        self._epochs = settings.epochs

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train":
            self._add("loss", record["loss"])
        elif record["kind"] == "validation":
            for name, numbers in record.items():
                if isinstance(numbers, list):
                    self._add(f"validation_{name}", numbers)
            self._show(record["epoch"] + 1, record["seconds"])

    def note(self, message: str) -> None:
        if self._verbose:
            self._end_line()
            print(message, flush=True)

    def stop(self) -> None:
        self._end_line()

    def _add(self, name: str, numbers: list[float | None]) -> None:
        known = [number for number in numbers if number is not None]
        self.values.setdefault(name, []).append(sum(known) / len(known) if known else float("nan"))

    def _show(self, epoch: int, seconds: float) -> None:
        if not self._verbose:
            return
        rare = self._verbose == 1 and not self._rewrites
        if rare and epoch % max(1, self._epochs // 10) and epoch != self._epochs:
            return
        found = ", ".join(f"{name.replace('_', ' ')} {values[-1]:.4g}" for name, values in self.values.items())
        line = f"epoch {epoch}/{self._epochs}: {found} ({seconds:.1f} s)"
        if self._rewrites and self._verbose == 1:
            print(f"\r{line:<100}", end="", flush=True)
            self._open = True
        else:
            print(line, flush=True)

    def _end_line(self) -> None:
        if self._open:
            print(flush=True)
            self._open = False
