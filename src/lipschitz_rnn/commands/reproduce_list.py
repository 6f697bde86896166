"""`lipschitz-rnn reproduce --list`: every study, what of it is committed, and how long its runs take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.documents.numbers import show_duration
from lipschitz_rnn.experiments.reproduce import Entry, inventory
from lipschitz_rnn.experiments.studies import STUDIES


def print_list(results: Path, as_json: bool) -> None:
    entries = inventory(STUDIES.values(), results)
    if as_json:
        typer.echo(json.dumps([_facts(entry) for entry in entries], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.caption = f"committed: below {results}; times are those of its records, or an estimate from similar ones"
    table.caption_justify = "left"
    for column in ("study", "runs"):
        table.add_column(column, no_wrap=True)
    for column in ("committed", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    seen = ""
    for lines in _lines(entries):
        done = sum(entry.record is not None for entry in lines)
        name = f"--{lines[0].group}" if lines[0].group else lines[0].plan.name
        count = f"{done} of {len(lines)}" if lines[0].group else "yes" if done else "missing"
        table.add_row("" if lines[0].study == seen else lines[0].study, name, count, _time(lines))
        seen = lines[0].study
    Console().print(table)


def _lines(entries: list[Entry]) -> list[list[Entry]]:
    """A line for each of the paper's runs, and one for each group of others."""
    lines: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        lines.setdefault((entry.study, entry.group, "" if entry.group else entry.plan.name), []).append(entry)
    return list(lines.values())


def _time(entries: list[Entry]) -> str:
    known = [entry.seconds for entry in entries if entry.seconds is not None]
    if not known:
        return "unknown"
    text = show_duration(sum(known)) if all(entry.record for entry in entries) else f"about {show_duration(sum(known))}"
    return text + (" or more" if len(known) < len(entries) else "")


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
