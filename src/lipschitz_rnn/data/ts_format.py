"""`.ts` files of the time-series archive: header lines that begin with @, then one case per line.

The dimensions of a case are separated by colons and its values by commas; the class label or target comes last. With
`@timestamps true` a value is a pair (time,value), and dimensions of one case may have different times. `?` is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data.arrays import from_arrays
from lipschitz_rnn.data.clock import Clock, Reading, read_clock
from lipschitz_rnn.data.errors import SeriesError, shown
from lipschitz_rnn.data.series import SeriesSet

_PAIR = re.compile(r"\(([^()]*),([^(),]*)\)")


@dataclass(frozen=True)
class _Header:
    timestamps: bool = False
    dimensions: int | None = None
    classes: tuple[str, ...] | None = None  # () if the header has labels but does not list them
    number: bool = False  # a target number instead of a class


def read_ts(path: Path, **unused: Any) -> SeriesSet:
    """Series from a .ts file; the target is the last entry of a line, if the header says that there is one."""
    given = [name for name, value in unused.items() if value not in (None, (), False) and name != "rows_per_chunk"]
    if given:
        raise SeriesError(f"{given[0]} is given, but {path.name} is a .ts file, which names no columns; leave it out")
    try:
        with open(path, encoding="utf-8-sig") as file:
            header, first = _header(file, path)
            return _cases(file, header, first, path)
    except UnicodeDecodeError as error:
        raise SeriesError(f"{path.name} is not text in UTF-8: {error}; save it in UTF-8") from error


def _header(file: IO[str], path: Path) -> tuple[_Header, int]:
    """The header and the number of lines up to @data."""
    header = _Header()
    for number, line in enumerate(file, 1):
        words = line.split()
        if not words or words[0].startswith(("#", "%")):
            continue
        tag, rest = words[0].lower(), words[1:]
        if tag == "@data":
            return header, number
        if not tag.startswith("@"):
            break
        if tag == "@timestamps":
            header = replace(header, timestamps=_truth(rest, number, path))
        elif tag in ("@dimensions", "@dimension"):
            if len(rest) != 1 or not rest[0].isdecimal() or int(rest[0]) < 1:
                raise SeriesError(f"line {number} of {path.name} has {shown(line.strip())}; write @dimensions NUMBER")
            header = replace(header, dimensions=int(rest[0]))
        elif tag == "@classlabel" and _truth(rest[:1], number, path):
            header = replace(header, classes=tuple(rest[1:]))
        elif tag == "@targetlabel" and _truth(rest[:1], number, path):
            header = replace(header, number=True)
    raise SeriesError(f"{path.name} has no line @data after its header; it is not a .ts file of the archive")


def _truth(words: list[str], number: int, path: Path) -> bool:
    if len(words) == 1 and words[0].lower() in ("true", "false"):
        return words[0].lower() == "true"
    raise SeriesError(f"line {number} of {path.name} has {shown(' '.join(words))} where true or false is expected")


def _cases(file: IO[str], header: _Header, line_number: int, path: Path) -> SeriesSet:
    values, labels, lines, clock = [], [], [], Clock()
    times: list[npt.NDArray[np.float64]] = []
    labelled = header.classes is not None or header.number
    for number, line in enumerate(file, line_number + 1):
        text = line.strip()
        if not text or text.startswith(("#", "%")):
            continue
        where = f"line {number} of {path.name}"
        if header.timestamps:
            parts, label = _split_pairs(text, labelled)
            case, when, now = _with_times(parts, where, clock)
            if times and now.kind != clock.kind:
                raise SeriesError(
                    f"{where} has times that are {now.kind}s, after {clock.kind}s; write all the same way"
                )
            clock = now
            times.append(when)
        else:
            parts = text.split(":")
            label = parts.pop().strip() if labelled else ""
            case = _stacked([_numbers(part.split(","), where) for part in parts], where)
        if header.dimensions is not None and len(case) != header.dimensions:
            raise SeriesError(f"{where} has {len(case)} dimensions, but the header says {header.dimensions}")
        if header.classes and label not in header.classes and label != "?":
            raise SeriesError(f"{where} has the label {label!r}; the header lists {', '.join(header.classes)}")
        values.append(case)
        labels.append(label)
        lines.append(str(number))
    if not values:
        raise SeriesError(f"{path.name} has no case after @data; add at least one line")
    goal: Any = None
    if header.number:
        goal = np.array([_number(label, f"line {n} of {path.name}") for label, n in zip(labels, lines, strict=True)])
    elif labelled:
        goal = np.array([None if label in ("", "?") else label for label in labels], dtype=object)
    result = from_arrays(values, goal, times=times or None, source=path.name)  # type: ignore[arg-type]
    return replace(result, clock=clock)


def _number(text: str, where: str) -> float:
    entry = text.strip()
    if entry in ("?", "", "NaN", "nan"):
        return np.nan
    try:
        return float(entry)
    except ValueError:
        raise SeriesError(
            f"{where} has {shown(entry)} where a number is expected; write a number, or ? if missing"
        ) from None


def _numbers(entries: list[str], where: str) -> npt.NDArray[np.float64]:
    if entries == [""]:
        raise SeriesError(f"{where} has an empty series; remove the line, or write ? for a missing value")
    try:
        return np.array(entries, dtype=np.float64)
    except ValueError:  # a missing value, or a mistake to be named
        return np.array([_number(entry, where) for entry in entries])


def _stacked(rows: list[npt.NDArray[np.float64]], where: str) -> npt.NDArray[np.float64]:
    if not rows:
        raise SeriesError(f"{where} has no series before its label; write its values, separated by commas")
    if len({len(row) for row in rows}) > 1:
        raise SeriesError(
            f"{where} has dimensions of {', '.join(str(len(row)) for row in rows)} values; all need the same"
        )
    return np.stack(rows)


def _split_pairs(text: str, labelled: bool) -> tuple[list[str], str]:
    """The dimensions of a case with timestamps, which may contain colons inside brackets, and its label."""
    parts = [part.strip() for part in re.split(r":(?![^(]*\))", text)]
    label = parts.pop() if labelled else ""
    return parts, label


def _with_times(
    parts: list[str], where: str, clock: Clock
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], Clock]:
    """Values (dimensions, T) at all times of any dimension, NaN where a dimension has none; the times; their clock."""
    pairs = [_PAIR.findall(part) for part in parts]
    if not pairs or not any(pairs):
        raise SeriesError(f"{where} has no pairs (time,value); write them, or set @timestamps false")
    for part in parts:
        left = _PAIR.sub("", part).replace(",", "").strip()
        if left:
            raise SeriesError(f"{where} has {shown(left)} beside its pairs; write a pair as (time,value)")
    texts = [time.strip() for dimension in pairs for time, _ in dimension]
    numbers, clock = _read_times(texts, where, clock)
    when, position = np.unique(numbers, return_inverse=True)
    case = np.full((len(parts), len(when)), np.nan)
    used = 0
    for index, dimension in enumerate(pairs):
        own = position[used : used + len(dimension)]
        if bool((np.diff(numbers[used : used + len(dimension)]) <= 0).any()):
            raise SeriesError(f"{where} has times that do not increase in dimension {index}; sort them, each once")
        case[index, own] = [_number(value, where) for _, value in dimension]
        used += len(dimension)
    return case, when, clock


def _read_times(texts: list[str], where: str, clock: Clock) -> tuple[npt.NDArray[np.float64], Clock]:
    try:
        return np.array(texts, dtype=np.float64), Clock()
    except ValueError:
        import pandas as pd

        _, numbers, bad = read_clock(pd.Series(texts), Reading("date"))
        if bad.any():
            raise SeriesError(
                f"{where} has the time {shown(texts[int(bad.argmax())])}; write numbers or ISO dates"
            ) from None
        clock = clock if clock.kind == "date" else Clock("date", int(numbers.min()))
        return clock.from_nanoseconds(numbers), clock
