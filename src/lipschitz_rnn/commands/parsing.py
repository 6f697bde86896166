"""Parses and checks arguments: seeds, options of units and tasks, and output files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from lipschitz_rnn.training.errors import RunError
from lipschitz_rnn.training.reading import is_there

PICTURES = (".png", ".pdf", ".svg")
_EXAMPLES = {"--task-option": "length=300"}
_PYTHON_WORDS = {"True": True, "False": False, "None": None}  # JSON writes them differently
MOST_SEEDS = 10_000  # far more than any machine can train, few enough to list in memory


def parse_seeds(text: str, flag: str = "--seeds") -> tuple[int, ...]:
    """ "0-11", "3", "0,2,5-7": seeds in the order given."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if found is None:
            raise ValueError(f"{flag} is {text!r}; write seeds e.g. as 0-11, 3 or 0,2,5-7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{flag} is {text!r}; {part.strip()} runs backwards, write {last}-{first}")
        if last >= 2**63:
            raise ValueError(f"{flag} is {text!r}; a seed must be below 2**63")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise ValueError(f"{flag} is {text!r}; at most {MOST_SEEDS:,} seeds can be given")
        seeds += range(first, last + 1)
    return tuple(seeds)


def parse_options(items: list[str], flag: str) -> dict[str, Any]:
    """["beta=0.8", "gamma=[0.8, 0.001]", "integrator=midpoint"] as a dictionary; values are JSON, Python's True, False
    and None, or else text.
    """
    options: dict[str, Any] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"{flag} is {item!r}; write name=value, e.g. {flag} {_EXAMPLES.get(flag, 'beta=0.8')}")
        try:
            options[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            options[name.strip()] = _PYTHON_WORDS.get(value.strip(), value.strip())
    return options


def parse_epochs(text: str) -> tuple[int, ...]:
    """ "30,60,90" as numbers; empty text as none."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"--decay-epochs is {text!r}; write epochs e.g. as 90 or 30,60,90") from None


def parse_folder(text: str) -> Path:
    """The folder; BadParameter for an empty shell variable, which as a path would be the current folder."""
    if not text:
        raise typer.BadParameter("the name is empty; give a folder, or . for the current one")
    return Path(text)


def given_options(**given: Any) -> dict[str, Any]:
    """Only the options that were given; the others keep the values of the preset or the study."""
    return {name: value for name, value in given.items() if value is not None}


def was_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise for the first of these options that stands on the command line."""
    for option in context.command.params:
        if option.name in names and was_given(context, option.name):
            raise ValueError(f"{option.opts[0]} {why}")


def require_number(flag: str, value: float | None, fits: Callable[[float], bool], fix: str) -> None:
    """Raise for a number that an option does not take: the library would name its own argument, not the option."""
    if value is not None and not fits(value):
        raise ValueError(f"{flag} is {value:g}; {fix}")


def require_writable(*paths: Path | None) -> None:
    """Raise now if a file cannot be written, not after minutes of work."""
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if path.is_dir():
            raise ValueError(f"{path} cannot be written: it is a folder; name a file")
        if not folder.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {folder}; create it first")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise ValueError(f"{path} cannot be written: permission denied; choose another file")


def require_folder(path: Path) -> None:
    """Raise now if a folder cannot be made, not after the work."""
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; name a folder")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the error of a folder that cannot be made or written to into a message with a remedy."""
    try:
        yield
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(folder):
            raise
        raise RunError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error


def require_picture(path: Path | None) -> None:
    """Raise now if a picture cannot be drawn or written."""
    if path is None:
        return
    require_writable(path)
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path} cannot be drawn; its name must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    from lipschitz_rnn.drawing import new_figure

    new_figure(1)  # fails without matplotlib


def require_small_file(path: Path, what: str) -> None:
    """Raise for devices such as /dev/full, which can be read forever, and for files too large to be settings."""
    if not path.is_file():
        if not is_there(path):
            raise RunError(f"there is no {path}; name {what}")
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise ValueError(f"{path} is {kind}; name {what}")
    if path.stat().st_size > 2**20:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, more than {what} can have; name another file")
