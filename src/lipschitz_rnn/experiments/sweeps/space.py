"""The search space of a sweep: parameters with their values or ranges, some only under a condition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

Point = dict[str, Any]  # the path of a parameter, e.g. unit_options.beta, -> its value
TABLES = ("unit_options", "task_options", "data")  # paths start with one of these, or are the name of a setting
MOST_POINTS = 100_000
_KEYS = ("values", "low", "high", "log", "step", "count", "when")


@dataclass(frozen=True)
class Parameter:
    """One parameter: a list of values, or a range from `low` to `high`.

    log: the range is logarithmic; step: the distance of its values; count: how many of them a grid takes.
    when: it exists only where these other parameters or settings have one of these values.
    """

    path: str
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    count: int | None = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def is_integer(self) -> bool:
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    def is_active(self, chosen: Mapping[str, Any]) -> bool:
        return all(chosen.get(path) in allowed for path, allowed in self.when.items())

    def grid(self) -> list[Any]:
        """The values of a grid."""
        if self.values:
            return list(self.values)
        assert self.low is not None
        assert self.high is not None
        if self.step is not None:
            if (number := math.floor(min((self.high - self.low) / self.step, 1e9) + 1e-9) + 1) > MOST_POINTS:
                raise ValueError(f"{self.path} has more than {MOST_POINTS:,} values; make the step larger")
            return [self.low + self.step * index for index in range(number)]
        if self.count is None:
            raise ValueError(f"{self.path} is a range, which a grid cannot list; add count or step, or give values")
        shares = [index / max(self.count - 1, 1) for index in range(self.count)]
        if self.log:
            found = [self.low * (self.high / self.low) ** share for share in shares]
        else:
            found = [self.low + (self.high - self.low) * share for share in shares]
        return list(dict.fromkeys(round(value) for value in found)) if self.is_integer else [*found[:-1], self.high]

    def ends(self) -> list[Any]:
        """Its values, or the ends of its range: if these can be trained, so can what lies between."""
        return list(self.values) if self.values else [self.low, self.high]


def read_parameter(path: str, given: object) -> Parameter:
    """A parameter from TOML: a list, or a table with values, or with low and high."""
    if isinstance(given, list):
        given = {"values": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"{path} is {given!r}; give a list of values, or a range such as {{low = 0.1, high = 1.0}}")
    for key in (key for key in given if key not in _KEYS):
        raise ValueError(f"{path} has {key!r}{nearest(key, _KEYS)}; a parameter has {', '.join(_KEYS)}")
    when = _read_when(path, given.get("when", {}))
    if "values" in given:
        for key in (key for key in given if key not in ("values", "when")):
            raise ValueError(f"{path} has both values and {key}; give values, or a range")
        values = given["values"]
        if not isinstance(values, list) or not values:
            raise ValueError(f"{path} has the values {values!r}; give a list of at least one")
        if any(value in values[:index] for index, value in enumerate(values)):
            raise ValueError(f"{path} has the values {values!r}; give each once")
        return Parameter(path, tuple(values), when=when)
    return Parameter(path, when=when, **_read_range(path, given))


def _read_range(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("low", "high"):
        if not _is_number(given.get(key)):
            raise ValueError(
                f"{path} has {key} = {given.get(key)!r}; give a list of values, or low and high as numbers"
            )
    low, high = given["low"], given["high"]
    if not low < high:
        raise ValueError(f"{path} runs from {low} to {high}, which is empty; low must be below high")
    if not isinstance(given.get("log", False), bool):
        raise ValueError(f"{path} has log = {given['log']!r}; it must be true or false")
    if given.get("log") and low <= 0:
        raise ValueError(f"{path} is logarithmic from {low}; low must be above 0")
    step, count = given.get("step"), given.get("count")
    if step is not None and (not _is_number(step) or step <= 0 or given.get("log")):
        raise ValueError(f"{path} has step = {step!r}; it must be a positive number, without log")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_POINTS):
        raise ValueError(f"{path} has count = {count!r}; it must be a whole number from 1 to {MOST_POINTS:,}")
    return {"low": low, "high": high, "log": given.get("log", False), "step": step, "count": count}


def _read_when(path: str, given: object) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, Mapping):
        raise ValueError(f'{path} has when = {given!r}; write a condition such as {{unit = "lipschitz"}}')
    flat: dict[str, Any] = {}
    for key, value in given.items():
        nested = value if isinstance(value, Mapping) else None
        flat |= {key: value} if nested is None else {f"{key}.{name}": item for name, item in nested.items()}
    return {key: tuple(value) if isinstance(value, list) else (value,) for key, value in flat.items()}


def ordered(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Every parameter after those that its condition names."""
    waiting, done = list(parameters), []
    while waiting:
        paths = {parameter.path for parameter in waiting}
        ready = next((each for each in waiting if not paths & set(each.when)), None)
        if ready is None:
            names = ", ".join(sorted(paths))
            raise ValueError(f"the conditions of {names} wait for each other; remove one of them")
        waiting.remove(ready)
        done.append(ready)
    return tuple(done)


def grid_points(parameters: Sequence[Parameter], fixed: Mapping[str, Any]) -> list[Point]:
    """All combinations; a parameter whose condition does not hold is left out, so none comes twice."""
    points: list[Point] = [{}]
    for parameter in parameters:
        values = parameter.grid()
        points = [
            {**point, **({} if value is _ABSENT else {parameter.path: value})}
            for point in points
            for value in (values if parameter.is_active({**fixed, **point}) else (_ABSENT,))
        ]
        if len(points) > MOST_POINTS:
            raise ValueError(f'the grid has more than {MOST_POINTS:,} points; use method = "random" or fewer values')
    return points


_ABSENT = object()


def border_points(parameters: Sequence[Parameter], fixed: Mapping[str, Any]) -> Iterator[Point]:
    """For every parameter its values or ends, the others at their first: enough to find what cannot be trained."""
    for parameter in parameters:
        for end in parameter.ends():
            point: Point = {}
            needed = {path: allowed[0] for path, allowed in parameter.when.items()}
            for each in parameters:
                if each.is_active({**fixed, **point}):
                    point[each.path] = needed.get(each.path, each.ends()[0])
                    if each.path == parameter.path:
                        point[each.path] = end
            yield point


def nearest(name: str, known: Sequence[str]) -> str:
    """ " (did you mean 'beta'?)", or nothing if no known name is close."""
    close = get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def show_point(point: Mapping[str, Any]) -> str:
    """For example unit=gru learning_rate=0.01 beta=0.8."""
    shown = ((path.rpartition(".")[2], value) for path, value in point.items())
    return " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
