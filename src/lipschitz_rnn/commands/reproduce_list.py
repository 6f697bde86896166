"""`lipschitz-rnn reproduce --list`: every study, which of its runs are committed, and how long they take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lipschitz_rnn import tasks
from lipschitz_rnn.documents.numbers import show_duration
from lipschitz_rnn.experiments.campaign import Plan
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.studies import STUDIES
from lipschitz_rnn.experiments.study import Study
from lipschitz_rnn.training import Settings

_WIDEST = 1000  # columns, more than any name needs


def print_list(results: Path, as_json: bool, names: Sequence[str]) -> None:
    """The studies of these names, whose records are in `results`."""
    entries = inventory([STUDIES[name] for name in names], results)
    if as_json:
        typer.echo(json.dumps([_facts(entry) for entry in entries], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("study and runs", no_wrap=True)
    for column, width in (("committed", 9), ("time", 12)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    seen = ""
    for lines in _lines(entries):
        done = sum(entry.record is not None for entry in lines)
        name = f"--{lines[0].group}" if lines[0].group else lines[0].plan.name
        count = f"{done} of {len(lines)}" if lines[0].group else "yes" if done else "missing"
        if lines[0].study != seen:  # on a line of its own: beside the longest names there is no room for it
            table.add_row(Text(lines[0].study, style="bold"))
        table.add_row(f"  {name}", count, _time(lines))
        seen = lines[0].study
    console = Console()
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    # On a narrow terminal lines are too long, but names stay whole: they are to be copied, e.g. to --only.
    Console(width=max(console.width, needed)).print(table)
    where = f"committed: in {results}; times come from its records, or are estimated from similar runs"
    if not results.is_dir():
        where = f"there is no folder {results} here, so nothing is committed; name another with --results"
    console.print(where, markup=False, highlight=False)


def _lines(entries: list[Entry]) -> list[list[Entry]]:
    """One line per run of the paper, and one per group of other runs."""
    lines: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        lines.setdefault((entry.study, entry.group, "" if entry.group else entry.plan.name), []).append(entry)
    order = list(STUDIES)
    return sorted(lines.values(), key=lambda same: (order.index(same[0].study), same[0].group != ""))


def _time(entries: list[Entry]) -> str:
    known = [entry.seconds for entry in entries if entry.seconds is not None]
    if not known:
        return "unknown"
    text = show_duration(sum(known))
    if len(known) < len(entries):
        return f"over {text}"
    return text if all(entry.record for entry in entries) else f"about {text}"


def _facts(entry: Entry) -> dict[str, Any]:
    return {
        "study": entry.study,
        "name": entry.plan.name,
        "group": entry.group or "paper",
        "committed": entry.record is not None,
        "seconds": entry.seconds,
        "estimated": entry.record is None,
        "command": entry.plan.command,
    }


@dataclass(frozen=True)
class Entry:
    """One row of a study: its record, if any, and its measured or estimated seconds."""

    study: str
    group: str
    plan: Plan
    record: Record | None
    seconds: float | None  # None if there is no similar record


def inventory(studies: Iterable[Study], results: Path) -> list[Entry]:
    """Every row of the studies, with its record from a results folder."""
    records = read_records(results) if results.is_dir() else []
    entries = []
    for study in studies:
        found = {record.name: record for record in records if record.study == study.name}
        for plan in study.plans(groups=tuple(study.groups)):
            record = found.get(plan.name)
            seconds = estimate(plan.settings, records) if record is None else record.seconds
            group = next(row.group for row in study.rows if row.name == plan.name)
            entries.append(Entry(study.name, group, plan, record, seconds))
    return entries


def estimate(settings: Settings, records: Sequence[Record]) -> float | None:
    """Estimated seconds of a run on the machine of the records: the time per scan step is the most similar network's.

    All seeds of an ensemble train at once, so their number does not matter. Networks whose sizes differ by more than a
    factor of two are not compared. Of several the quickest counts: others may have shared their machine.
    """
    known = []
    for record in (record for record in records if record.setup.task in tasks.available()):  # or of somebody's own
        other = record.setup
        ratio = max(other.hidden_size, settings.hidden_size) / min(other.hidden_size, settings.hidden_size)
        if _kind(other) == _kind(settings) and ratio <= 2 and (steps := scan_steps(other)):
            known.append(((other.task != settings.task, ratio, record.at_once), record.seconds / steps))
    nearest = [rate for distance, rate in known if distance == min(known)[0]]
    return min(nearest) * scan_steps(settings) or None if nearest else None


def _kind(settings: Settings) -> tuple[str, str, object]:
    """What must be equal to compare times; a large vocabulary takes more time than the recurrence."""
    integrator = str(settings.unit_options.get("integrator", "euler"))
    return settings.unit, integrator, tasks.info(settings.task).vocabulary


def scan_steps(settings: Settings) -> int:
    """Scan steps over the whole training; all networks and samples of a batch share a step."""
    facts = tasks.info(settings.task)
    sequences, length = facts.sizes["train"] or 0, facts.sequence_length
    if facts.stateful:  # windows of parallel streams: the longer, the fewer
        return int(settings.epochs * sequences * length)
    length = settings.task_options.get("length", settings.task_options.get("steps", length))
    return int(settings.epochs * max(1, sequences // settings.batch_size) * length)
