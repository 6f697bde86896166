"""What the shell gives as text: seeds, and options of units and tasks."""

from __future__ import annotations

import json
import re
from typing import Any


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "0-11", "3", "0,2,5-7": seeds in the order given."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if found is None:
            raise ValueError(f"seeds are {text!r}; write them as 0-11, 3 or 0,2,5-7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"seeds are {text!r}; {part.strip()} runs backwards")
        seeds += range(first, last + 1)
    return tuple(seeds)


def parse_options(items: list[str], flag: str) -> dict[str, Any]:
    """["beta=0.8", "gamma=[0.8, 0.001]", "integrator=midpoint"] as a dictionary; values are JSON, or else text."""
    options: dict[str, Any] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"{flag} is {item!r}; write it as name=value, for example {flag} beta=0.8")
        try:
            options[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            options[name.strip()] = value.strip()
    return options


def parse_epochs(text: str) -> tuple[int, ...]:
    """ "30,60,90" as numbers; nothing for none."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"decay epochs are {text!r}; write them as 90 or 30,60,90") from None


def asked_for(**given: Any) -> dict[str, Any]:
    """Options that were given; the others stay the preset's or the study's."""
    return {name: value for name, value in given.items() if value is not None}
