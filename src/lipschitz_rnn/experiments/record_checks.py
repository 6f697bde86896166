"""What a committed record may hold: names that are plain file names, and values of the right kind.

A record may come from anywhere. Its study becomes the name of a page, its name that of a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=,/-]{0,199}")
_KINDS: dict[str, Any] = {
    "kind": str, "settings": Mapping, "seeds": Sequence, "curves": Mapping, "metric": str, "percent": bool,
    "higher_is_better": bool, "parameters": int, "steps": int, "seconds": int | float, "ensemble": str,
    "environment": Mapping, "command": str, "why": str, "measures": Mapping,
}  # fmt: skip
_SCORES = ("validation", "test", "test_last")


def check_study(study: object) -> None:
    if not isinstance(study, str) or not _STUDY.fullmatch(study):
        raise ValueError(f"the study is {study!r:.200}; it must be a plain name of letters, digits, - and _")


def check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or any(part in ("", "..") for part in name.split("/")):
        raise ValueError(f"the name is {name!r:.200}; it must be plain names of letters and digits, joined by /")


def check_values(values: Mapping[str, Any]) -> None:
    """ValueError for the first value that is not of its kind."""
    for name, kind in _KINDS.items():
        if not isinstance(values[name], kind) or (kind is Sequence and isinstance(values[name], str)):
            raise ValueError(f"{name} is {values[name]!r:.200}; it must be {_words(kind)}")
    for seed in values["seeds"]:
        if not isinstance(seed, Mapping) or not all(_is_number(seed.get(name, "")) for name in _SCORES):
            raise ValueError(f"an entry of seeds is {seed!r:.200}; it must hold the scores {', '.join(_SCORES)}")
    for name, curves in values["curves"].items():
        rows = isinstance(curves, Sequence) and all(isinstance(row, Sequence) for row in curves)
        if not rows or not all(_is_number(value) for row in curves for value in row):
            raise ValueError(f"the curve {name} is {curves!r:.200}; it must be a list of numbers for every network")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _words(kind: Any) -> str:
    words = {str: "text", bool: "true or false", int: "an integer", Mapping: "an object", Sequence: "a list"}
    return words.get(kind, "a number")


def file_inside(folder: Path, name: str) -> Path:
    """folder/name, where that lies in the folder, links followed; ValueError otherwise."""
    path = folder / name
    try:
        inside = (
            "\0" not in name and path.parent.resolve().is_relative_to(folder.resolve()) and path.name not in ("", "..")
        )
    except OSError:
        inside = False
    if not inside:
        raise ValueError(f"{name!r:.200} does not lie in {folder}; nothing is written outside of it")
    return path
