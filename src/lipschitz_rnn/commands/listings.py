"""`lipschitz-rnn tasks` and `lipschitz-rnn units`: lists, and the details of one task or unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lipschitz_rnn import tasks as task_registry
from lipschitz_rnn import units as unit_registry
from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.options import AsJson

_CONTRACTING = "--unit lipschitz -u stability=contracting"
WIDE = 120  # terminal columns from which on there is room for sentences


@guarded
@with_imports
def tasks(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show everything about this task.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks with size, length and metric, or show the options and source of one."""
    infos = _facts(task_registry.available(), name, lambda each: asdict(task_registry.info(each)))
    if as_json:
        typer.echo(json.dumps(infos if name is None else infos[name], indent=2))
    elif name is None:
        _print_tasks(infos)
    else:
        _print_details(infos[name])


def _facts(names: Iterable[str], only: str | None, find: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The facts about one, or about all; in a list, those that fail are reported and left out."""
    if only is not None:
        return {only: find(only)}
    found = {}
    for name in names:
        try:
            found[name] = find(name)
        except Exception as error:  # user code can raise anything
            Console(stderr=True, soft_wrap=True).print(f"left out {name}: {error}", highlight=False, markup=False)
    return found


def _print_tasks(infos: dict[str, dict[str, Any]]) -> None:
    console = Console()
    described = console.width >= WIDE
    # Narrow padding, so that no number is cut at 80 columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = "lipschitz-rnn tasks NAME shows options and source", "left"
    table.add_column("task", no_wrap=True)
    if described:
        table.add_column("what")
    for column in ("train", "valid.", "test", "steps", "inputs", "metric"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, facts in infos.items():
        sizes = ("?" if size is None else f"{size:,}" for size in facts["sizes"].values())
        inputs = f"{facts['vocabulary']:,} tokens" if facts["vocabulary"] else f"{facts['input_size']:,}"
        what = [facts["summary"]] if described else []
        table.add_row(name, *what, *sizes, f"{facts['sequence_length']:,}", inputs, facts["metric"]["name"])
    console.print(table)


def _print_details(facts: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in facts.items():
        if value is None:  # e.g. no vocabulary
            continue
        if key == "metric":
            value = f"{value['name']}, {'higher' if value['higher_is_better'] else 'lower'} is better"
        if isinstance(value, bool):
            value = "yes" if value else "no"
        if isinstance(value, dict):
            value = ", ".join(f"{name}={item}" for name, item in value.items()) or "none"
        if isinstance(value, list):
            value = ", ".join(value)
        table.add_row(key.replace("_", " "), str(value))
    Console().print(table)


@guarded
@with_imports
def units(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show everything about this unit.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recurrent units with equation, constraint, paper and timespans, or show the options of one."""
    infos = _facts(unit_registry.available(), name, _unit_facts)
    if as_json:
        typer.echo(json.dumps(infos if name is None else infos[name], indent=2, ensure_ascii=False))
    elif name is not None:
        _print_details(infos[name])
    else:
        _print_units(infos)


def _print_units(infos: dict[str, dict[str, Any]]) -> None:
    """Names are never cut. A narrow terminal shows no equations; they are in the details of each unit."""
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, 1, 0, 0))
    table.caption = (
        "Parameters at N = 128 on pixel-by-pixel MNIST; lipschitz-rnn units NAME shows equation and options.\n"
        f"--unit contracting is short for {_CONTRACTING}"
    )
    table.caption_justify = "left"
    table.add_column("unit", no_wrap=True)
    if console.width >= WIDE:
        table.add_column("equation", overflow="fold")
    for column in ("constraint", "paper"):
        table.add_column(column)
    table.add_column("timespans", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    for name, facts in infos.items():
        equation = [facts["equation"]] if console.width >= WIDE else []
        paper = " ".join(str(part) for part in (facts["paper"], facts["year"]) if part)
        timespans = "yes" if facts["timespans"] else "no"
        table.add_row(name, *equation, facts["constraint"], paper, timespans, f"{facts['parameters']:,}")
    console.print(table)


def _unit_facts(name: str) -> dict[str, Any]:
    if name == "contracting":  # what `train` takes for a unit with an option
        return {"name": name, "short_for": f"{_CONTRACTING}, which always contracts"} | {
            key: value for key, value in _unit_facts("lipschitz").items() if key != "name"
        }
    info = unit_registry.info(name)
    keys = ("name", "paper", "year", "equation", "constraint", "ensembles", "timespans")
    facts = {key: getattr(info, key) for key in keys}
    return facts | {"parameters": info.parameters, "options": list(info.options())}
