"""Watchers follow the progress of a run: none, TensorBoard, or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn.training.settings import Settings


class Watcher:
    """Follows a run; the base class ignores everything. `step` is called often and must not access the device."""

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        """`done`: optimiser steps that a resumed run has already completed."""

    def step(self, done: int) -> None:
        """After optimiser step number `done`, counted from 1."""

    def record(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def note(self, message: str) -> None:
        """Something that the user should read."""

    def stop(self) -> None:
        """The run has ended, for whatever reason."""


class Watchers(Watcher):
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        for watcher in self._watchers:
            watcher.start(settings, steps_per_epoch, done)

    def step(self, done: int) -> None:
        for watcher in self._watchers:
            watcher.step(done)

    def record(self, record: Mapping[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.record(record)

    def note(self, message: str) -> None:
        for watcher in self._watchers:
            watcher.note(message)

    def stop(self) -> None:
        for watcher in self._watchers:
            watcher.stop()


class TensorBoard(Watcher):
    """Writes every number of the records as scalars, one curve per network, if tensorboard is installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._members: tuple[str, ...] = ()

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        self._members = tuple(member.name.replace(", ", "-").replace(" ", "-") for member in settings.members)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # optional: metrics.jsonl holds the same numbers
            return
        self._writer = SummaryWriter(str(self._folder), purge_step=done)

    def record(self, record: Mapping[str, Any]) -> None:
        if self._writer is None or "step" not in record:
            return
        for name, values in record.items():
            if isinstance(values, list) and len(values) == len(self._members):
                for member, value in zip(self._members, values, strict=True):
                    if isinstance(value, int | float):
                        self._writer.add_scalar(f"{record['kind']}/{name}/{member}", value, record["step"])

    def stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
