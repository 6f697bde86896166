"""Follows a sweep: a table that is redrawn in place on a terminal, elsewhere one line per finished run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn.commands.progress import clock
from lipschitz_rnn.documents.numbers import show_score
from lipschitz_rnn.experiments.sweeps.packing import Job
from lipschitz_rnn.experiments.sweeps.running import Board
from lipschitz_rnn.experiments.sweeps.scoring import Scored, Winner
from lipschitz_rnn.experiments.sweeps.space import show_point
from lipschitz_rnn.tasks.base import METRICS

_SHOWN = 8  # runs in progress
_TAIL = 65536  # bytes of metrics to look at


def choose_board(quiet: bool) -> Board:
    console = Console(stderr=True)
    if quiet:
        return Board()
    return LiveBoard(console) if console.is_terminal else LineBoard(console)


class LineBoard(Board):
    """One line per run that has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.total = self.done = self.earlier = 0
        self.began = time.monotonic()
        self.running: dict[str, tuple[Job, Path]] = {}
        self.states: dict[str, int] = {}
        self.winners: Sequence[Winner] = ()

    def start(self, total: int, jobs: int) -> None:
        self.total, self.began = total, time.monotonic()

    def submitted(self, job: Job, folder: Path) -> None:
        self.running[job.name] = (job, folder)

    def ended(self, scored: Sequence[Scored], winners: Sequence[Winner]) -> None:
        name = scored[0].folder.name
        if name not in self.running:
            self.earlier += len(scored)  # of an earlier call: it tells nothing about the time that is left
        self.running.pop(name, None)
        self.done += len(scored)
        self.winners = winners
        for each in scored:
            self.states[each.state] = self.states.get(each.state, 0) + 1
        self.tell(scored)

    def tell(self, scored: Sequence[Scored]) -> None:
        first = scored[0]
        what = show_point(first.trial.point) if len(scored) == 1 else f"{len(scored)} configurations"
        found = [each.score for each in scored if each.score is not None]
        percent = self.winners[0].percent if self.winners else False
        higher = self.winners[0].higher_is_better if self.winners else True
        score = f"  {show_score((max if higher else min)(found), percent)}" if found else f"  {first.state}"
        error = f": {first.error}" if first.error else ""
        text = f"{self.done}/{self.total}  {what}{score}{error}  best {self.best()}  {clock(self.left())} left"
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def best(self) -> str:
        if not self.winners:
            return "none yet"
        shown = [f"{show_score(w.best.score, w.percent)} ({show_point(w.best.trial.point)})" for w in self.winners]
        return "; ".join(shown[:3]) + (" …" if len(shown) > 3 else "")

    def left(self) -> float:
        """Seconds, if the others take as long as those that this call has trained."""
        trained = self.done - self.earlier
        return (time.monotonic() - self.began) / trained * (self.total - self.done) if trained else 0.0


class LiveBoard(LineBoard):
    """A table of the runs in progress, with the best so far and the time left, redrawn every second."""

    def start(self, total: int, jobs: int) -> None:
        super().start(total, jobs)
        self._live = Live(console=self.console, refresh_per_second=1, get_renderable=self.render, transient=True)
        self._live.start()

    def tell(self, scored: Sequence[Scored]) -> None:
        for each in (each for each in scored if each.state == "failed"):
            self._live.console.print(f"{show_point(each.trial.point)} failed: {each.error}", markup=False)

    def render(self) -> Table:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        left = clock(self.left()) if self.done > self.earlier else "unknown"
        title = f"{self.done} of {self.total} trials ({states or 'none yet'}), {left} left"
        table = Table(title=title, title_justify="left", caption=f"best: {escape(self.best())}", caption_justify="left")
        table.add_column("run")
        table.add_column("configuration", overflow="fold")
        table.add_column("epoch", justify="right", no_wrap=True)
        table.add_column("validation", justify="right", no_wrap=True)
        for job, folder in list(self.running.values())[:_SHOWN]:
            record = last_validation(folder)
            if record is None and not folder.exists():
                continue  # it waits for its turn
            first = show_point(job.trials[0].point)
            what = first if len(job.trials) == 1 else f"{len(job.trials)} configurations: {first} …"
            shown = (
                ("0/" + str(job.settings.epochs), "–") if record is None else show_epoch(record, job.settings.epochs)
            )
            table.add_row(job.name, escape(what), *shown)
        return table

    def stop(self) -> None:
        if hasattr(self, "_live"):
            self._live.stop()


def show_epoch(record: Mapping[str, Any], epochs: int) -> tuple[str, str]:
    """The epoch of a line about validation, and the mean score of its networks."""
    name = next((name for name, value in record.items() if isinstance(value, list) and name != "loss"), "loss")
    values = [value for value in record[name] if value is not None]
    mean = sum(values) / len(values) if values else None
    return (
        f"{record['epoch'] + 1}/{epochs}",
        f"{name} {show_score(mean, name in METRICS and METRICS[name].percent)}",
    )


def last_validation(folder: Path) -> dict[str, Any] | None:
    """The newest line about an epoch in the metrics of a run, wherever it runs."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # the first line may be cut, and the last one half written
            continue
        if isinstance(record, dict) and record.get("kind") == "validation":
            return record
    return None
