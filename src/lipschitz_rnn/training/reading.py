"""Reads and checks the JSON files of a run: a disk, a copy or an editor may have damaged any of them.

Every problem becomes a `RunError` that names the file and the fix.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lipschitz_rnn.training.errors import RunConflict, RunError

LARGEST_JSON = 64 << 20  # bytes; a configuration has kilobytes
LARGEST_METRICS = 1 << 30  # bytes; a line of metrics has hundreds
_FIX = "restore it from a copy, or train again in another folder"
_SCORES = ("validation", "test", "test_last")


def is_there(path: Path) -> bool:
    """Whether a path exists; False for paths that no file system allows."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, limit: int, error: type[RunError] = RunError, fix: str = _FIX) -> bytes:
    """The content of a file of at most `limit` bytes."""
    try:
        if (size := path.stat().st_size) > limit:
            raise error(f"{path} has {size:,} bytes, but at most {limit:,} are allowed; {fix}")
        with path.open("rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise error(f"{path} cannot be read: {reason}; {fix}") from problem


def parse_object(text: bytes, path: Path, error: type[RunError] = RunError, fix: str = _FIX) -> dict[str, Any]:
    """Parse a JSON object in UTF-8."""
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is not JSON ({problem or 'nested too deeply'}); {fix}") from problem
    if not isinstance(value, dict):
        raise error(f"{path} holds a JSON {type(value).__name__} where an object is expected; {fix}")
    return value


def read_json(path: Path, error: type[RunError] = RunError, fix: str = _FIX) -> dict[str, Any]:
    """The JSON object of a file."""
    return parse_object(read_bytes(path, LARGEST_JSON, error, fix), path, error, fix)


def read_shapes(folder: str | os.PathLike[str]) -> SimpleNamespace:
    """What a network must know about the task of a run (see `model.Shapes`), from task.json."""
    path = Path(folder) / "task.json"
    facts = read_json(path)
    for name in ("input_size", "output_size", "vocabulary"):
        value = facts.get(name)
        optional = name == "vocabulary" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RunError(f"{path} has {name} = {value!r}, which is not a size; {_FIX}")
    if facts.get("readout") not in ("last", "all"):
        raise RunError(f"{path} has readout = {facts.get('readout')!r}, which is neither last nor all; {_FIX}")
    if not isinstance(facts.setdefault("options", {}), dict):
        raise RunError(f"{path} has options = {facts['options']!r}, which is not an object; {_FIX}")
    if not isinstance(facts.setdefault("preprocessing", {}), dict):
        raise RunError(f"{path} has preprocessing = {facts['preprocessing']!r}, which is not an object; {_FIX}")
    return SimpleNamespace(**facts)


def require_same_series(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None, run: object) -> None:
    """Raise if the file of a run has changed since: scales and splits would be others than those of its weights."""
    marks = [None if record is None else record.get("fingerprint") for record in (before, now)]
    if None not in marks and marks[0] != marks[1]:
        raise RunConflict(
            f"the data file of {run} is not the one it was trained on: its content has changed; put the old file back, "
            "train again in another folder, or use `lipschitz-rnn predict` for new series"
        )


def read_sources(folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Where the task, the unit and the builder of a run were defined, for those from outside the package."""
    path = Path(folder) / "sources.json"
    if not is_there(path):  # runs of earlier versions
        return {}
    return check_sources(read_json(path), path)


def check_sources(sources: object, where: object) -> dict[str, dict[str, Any]]:
    """The entries of a record of sources that are not None; RunError if the record is invalid."""
    record: dict[str, Any] = sources if isinstance(sources, dict) else {"sources": sources}
    found = {name: value for name, value in record.items() if value is not None}
    for name, value in found.items():
        if not isinstance(value, dict):
            raise RunError(f"{where} has {name} = {value!r}, which is not an object; {_FIX}")
    return found


def read_result(folder: str | os.PathLike[str], networks: int) -> dict[str, Any]:
    """The result.json of a finished run with this number of networks."""
    path = Path(folder) / "result.json"
    result = read_json(path)
    kinds: dict[str, Any] = {
        "metric": str, "percent": bool, "higher_is_better": bool, "parameters": int, "steps": int,
        "seconds": int | float, "ensemble": str, "seeds": list,
    }  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(result.get(name), kind):
            raise RunError(f"{path} has {name} = {result.get(name)!r}; {_FIX}")
    seeds = result["seeds"]
    if len(seeds) != networks or not all(isinstance(seed, dict) and _is_score(seed) for seed in seeds):
        raise RunError(f"{path} does not hold the scores of {networks} networks; {_FIX}")
    return result


def _is_score(seed: Mapping[str, Any]) -> bool:
    numbers = [seed.get(name, "") for name in (*_SCORES, "selected_epoch")]
    return isinstance(seed.get("seed"), int) and all(value is None or _is_number(value) for value in numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_metrics(folder: str | os.PathLike[str], networks: int) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of a run with this number of networks, without an incomplete last line."""
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = read_bytes(path, LARGEST_METRICS).split(b"\n")[:-1]
    return [
        _read_line(line, Path(f"line {number} of {path}"), networks)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def damaged_lines(lines: Sequence[bytes], networks: int) -> list[int]:
    """The places of the lines that `read_metrics` refuses."""
    damaged = []
    for place, line in enumerate(lines):
        try:
            if line.strip():
                _read_line(line, Path("line"), networks)
        except RunError:
            damaged.append(place)
    return damaged


def _read_line(line: bytes, where: Path, networks: int) -> dict[str, Any]:
    fix = "resume the run, which moves such lines to metrics.damaged"
    record = parse_object(line, where, fix=fix)
    if problem := _problem(record, networks):
        raise RunError(f"{where} {problem}; {fix}")
    return record


def _problem(record: Mapping[str, Any], networks: int) -> str:
    """What is wrong with a line of metrics, or ""."""
    kind = record.get("kind")
    if not isinstance(kind, str):
        return "has no kind"
    for name in ("epoch", "step"):
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            return f"has {name} = {value!r}"
    seconds = record.get("seconds", 0.0)
    if not _is_number(seconds) or not math.isfinite(seconds):
        return f"has seconds = {seconds!r}"
    for name, values in record.items():
        if isinstance(values, list):
            if len(values) != networks:
                return f"has {len(values)} values of {name} for {networks} networks"
            if not all(value is None or _is_number(value) for value in values):
                return f"has values of {name} that are not numbers"
    if kind in ("train", "validation") and not isinstance(record.get("loss"), list):
        return "has no loss"
    return ""
