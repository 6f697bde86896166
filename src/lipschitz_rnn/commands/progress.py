"""Progress of long commands: a bar on a terminal; elsewhere, for runs, one line per epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from lipschitz_rnn.documents.numbers import show_score, show_scores
from lipschitz_rnn.tasks.base import METRICS
from lipschitz_rnn.training import Settings, Watcher

REDRAW_SECONDS = 0.1

Callback = Callable[[str, int, int | None], None]  # current stage, amount done, total amount


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callback]:
    """A progress bar on standard error; nothing if it is not a terminal, or with `--json`."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, *times, console=console, transient=True) as bar:
        item = bar.add_task("loading", total=None)

        def update(stage: str, done: int, total: int | None) -> None:
            stage = escape(stage)  # names such as "nn.RNN [float16]" are not markup
            if bar.tasks[0].description != stage:  # a rate belongs to one stage
                bar.reset(item, total=total, description=stage)
            bar.update(item, completed=done, total=total)

        yield update


def named(progress: Callback, prefix: str) -> Callback:
    """The same callback with the name of a network in front of the stage."""
    return lambda stage, done, total: progress(f"{prefix}: {stage}", done, total)


@contextmanager
def spinner(text: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show `text` and the elapsed time, for work of unknown length; yields a function that changes the text."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    columns = (SpinnerColumn(), TextColumn("[bold]{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        item = bar.add_task(escape(text), total=None)
        yield lambda text: bar.update(item, description=escape(text))


def choose_watcher(console: Console, name: str = "", quiet: bool = False) -> Watcher:
    if quiet:
        return Watcher()
    return BarWatcher(console, name) if console.is_terminal else LineWatcher(console, name)


def watch_runs(jobs: int, quiet: bool = False) -> Callable[[str], Watcher]:
    """A watcher for each run, by its name; plain lines if several processes write to one terminal."""
    if quiet:
        return failure_watcher
    return line_watcher if jobs > 1 else partial(choose_watcher, Console(stderr=True))


def failure_watcher(name: str) -> Watcher:
    """A module-level function, like the next one, so that it can be sent to a process."""
    return FailureWatcher(Console(stderr=True), name)


def line_watcher(name: str) -> Watcher:
    """One plain line per epoch, with the name of the run."""
    return LineWatcher(Console(stderr=True), name)


class FolderLine(Watcher):
    """Prints the run folder once training starts."""

    def __init__(self, console: Console, folder: Path) -> None:
        self.console, self.folder = console, folder

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        self.console.print(f"run folder: {self.folder}", highlight=False, markup=False, soft_wrap=True)


class LineWatcher(Watcher):
    """One plain line per epoch, for logs and pipes."""

    def __init__(self, console: Console, name: str = "") -> None:
        self.console, self.name = console, name
        self.settings: Settings | None = None
        self.losses: list[float | None] = []
        self.total = self.per_epoch = self.done = self.first = 0
        self.started = time.monotonic()

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        self.settings, self.per_epoch = settings, steps_per_epoch
        self.total, self.done, self.first = settings.epochs * steps_per_epoch, done, done
        self.started = time.monotonic()
        if done:
            self.note(f"resuming after step {done} of {self.total}")

    def step(self, done: int) -> None:
        self.done = done

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train":
            self.losses = record["loss"]
        if record["kind"] == "validation":
            self.epoch_line(record)

    def epoch_line(self, record: Mapping[str, Any]) -> None:
        assert self.settings is not None
        rate = (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)
        left = (self.total - self.done) / rate if rate else 0.0
        text = f"epoch {record['epoch'] + 1}/{self.settings.epochs}  {_describe(record, self.losses)}"
        self.write(f"{text}  {rate:.1f} steps/s  {clock(left)} left")

    def note(self, message: str) -> None:
        self.write(message)

    def write(self, text: str) -> None:
        prefix = f"{self.name}: " if self.name else ""
        self.console.print(prefix + text, highlight=False, markup=False, soft_wrap=True)


class FailureWatcher(LineWatcher):
    """Nothing but why a run failed: the result as JSON does not say it."""

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        pass

    def record(self, record: Mapping[str, Any]) -> None:
        pass

    def note(self, message: str) -> None:
        if message.startswith("failed: "):
            self.write(message)


class BarWatcher(LineWatcher):
    """A bar that is redrawn in place."""

    def start(self, settings: Settings, steps_per_epoch: int, done: int) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
            TextColumn("{task.fields[scores]}"),
            console=self.console,
        )
        self._bar.start()
        description = self.name or f"{settings.task} · {settings.unit}"
        total = settings.epochs * steps_per_epoch
        self._item: TaskID = self._bar.add_task(description, total=total, completed=done, rate="", scores="")
        self._drawn = 0.0
        super().start(settings, steps_per_epoch, done)

    def step(self, done: int) -> None:
        super().step(done)
        now = time.monotonic()
        if now - self._drawn > REDRAW_SECONDS or done == self.total:
            self._drawn = now
            rate = (done - self.first) / max(now - self.started, 1e-9)
            self._bar.update(self._item, completed=done, rate=f"{rate:.1f} steps/s")

    def epoch_line(self, record: Mapping[str, Any]) -> None:
        metric = _metric(record)
        score = show_score(_mean(record[metric]), percent=METRICS[metric].percent)
        self._bar.update(self._item, scores=f"epoch {record['epoch'] + 1}: {metric} {score}")

    def stop(self) -> None:
        self._bar.stop()


def _metric(record: Mapping[str, Any]) -> str:
    return next(name for name in record if name in METRICS)


def _mean(values: list[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if finite else None


def _describe(record: Mapping[str, Any], losses: list[float | None]) -> str:
    metric = _metric(record)
    loss = f"loss {show_score(_mean(losses), percent=False)}"
    return f"{loss}  validation {metric} {show_scores(record[metric], percent=METRICS[metric].percent)}"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
