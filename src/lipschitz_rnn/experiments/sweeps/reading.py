"""A sweep as a TOML file: what is fixed, what varies, how to search, and what to train at the end.

```toml
[sweep]
method = "random"          # grid (default), random or bayes
trials = 40

[settings]                 # as for `lipschitz-rnn train --config`, with task and preset
task = "digits"
seeds = [0, 1]

[space]                    # lists or ranges
learning_rate = {low = 0.001, high = 0.1, log = true}
unit_options.beta = [0.65, 0.75]

[final]                    # optional: the winner again, with these seeds
seeds = [10, 11, 12]
```
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from lipschitz_rnn import tasks, units
from lipschitz_rnn.data.reading import is_file_name
from lipschitz_rnn.experiments.presets import PRESETS, Preset, preset_settings
from lipschitz_rnn.experiments.sweeps.space import (
    TABLES,
    Parameter,
    Point,
    nearest,
    ordered,
    read_parameter,
    show_point,
)
from lipschitz_rnn.tasks import Metric
from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.settings import PLACE_SETTINGS, read_toml

Method = Literal["grid", "random", "bayes"]
Pruning = Literal["none", "median", "halving", "hyperband"]
_FREE = {"task", "preset", *(item.name for item in dataclasses.fields(Settings))}
_NEVER_VARIED = ("seeds", "variants", "unit_options", "task_options", "data", "preset", *sorted(PLACE_SETTINGS))
# name -> type, whether it may be 0, default
_OPTIONS: dict[str, tuple[type, Any]] = {
    "method": (str, "grid"), "trials": (int, None), "seed": (int, 0), "metric": (str, None), "best_per": (list, ()),
    "pruning": (str, "none"), "startup_trials": (int, 5), "startup_epochs": (int, 1), "at_once": (int, 32),
    "batch": (int, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """One sweep, as read from its file.

    metric: the task's metric, or "loss": both of the validation split.
    best_per: settings for each of whose values a winner is chosen, e.g. ("unit",); every task has its own anyway.
    at_once: most networks in one run; 1 trains every configuration as a run of its own.
    batch: bayes: how many configurations are drawn at once, and can share a run.
    """

    settings: Mapping[str, Any]
    space: tuple[Parameter, ...]
    preset: Preset = "working"
    data: Mapping[str, Any] = field(default_factory=dict)
    method: Method = "grid"
    trials: int | None = None
    seed: int = 0
    metric: str | None = None
    best_per: tuple[str, ...] = ()
    pruning: Pruning = "none"
    startup_trials: int = 5
    startup_epochs: int = 1
    at_once: int = 32
    batch: int = 1
    final: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def fixed(self) -> dict[str, Any]:
        """The fixed settings by their paths, for conditions."""
        flat: dict[str, Any] = {"unit": "lipschitz"}
        for name, value in {**self.settings, "data": self.data}.items():
            flat |= {f"{name}.{key}": item for key, item in value.items()} if name in TABLES else {name: value}
        return flat

    def resolve(self, point: Point, **changes: Any) -> Settings:
        """The settings of one configuration: preset, then the file's settings, then the point, then `changes`."""
        values: dict[str, Any] = {name: value for name, value in self.settings.items() if name != "task"}
        nested: dict[str, dict[str, Any]] = {name: dict(values.pop(name, {})) for name in TABLES[:2]}
        nested["data"] = dict(self.data)
        task = self.settings.get("task")
        for path, value in point.items():
            table, _, name = path.rpartition(".")
            if table:
                nested[table][name] = value
            elif path == "task":
                task = value
            else:
                values[path] = value
        data = nested.pop("data")
        try:
            if is_file_name(str(task)):
                from lipschitz_rnn.experiments.file_runs import file_settings

                given = values | {"unit_options": nested["unit_options"]} | changes
                return file_settings({"path": str(task), **data}, given, quick=self.preset == "quick")[0]
            return preset_settings(str(task), self.preset, values | nested | changes)
        except (ValueError, TypeError) as error:
            where = f" (at {show_point(point)})" if point else ""
            raise ValueError(f"{error}{where}") from error

    def final_settings(self, settings: Settings) -> Settings:
        """The settings of a winner's final run: those of [final], options added to the winner's own."""
        changes = dict(self.final or {})
        for name in (name for name in TABLES[:2] if name in changes):
            changes[name] = {**getattr(settings, name), **changes[name]}
        return dataclasses.replace(settings, **changes)

    def metric_of(self, settings: Settings) -> tuple[str, bool]:
        """The name of the metric to choose by, and whether higher is better."""
        found = _task_metric(settings)
        if self.metric in (None, found.name):
            return found.name, found.higher_is_better
        if self.metric == "loss":
            return "loss", False
        raise ValueError(
            f"metric is {self.metric!r}{nearest(str(self.metric), (found.name, 'loss'))}, but {settings.task} has "
            f"{found.name} and loss on its validation split"
        )

    def frozen(self) -> dict[str, Any]:
        """What must not change when the sweep is continued: everything but places, more trials and the final runs."""
        kept = {name: value for name, value in self.raw.items() if name != "final"}
        kept["settings"] = {k: v for k, v in self.raw.get("settings", {}).items() if k not in PLACE_SETTINGS}
        kept["sweep"] = {k: v for k, v in self.raw.get("sweep", {}).items() if k != "trials"}
        return kept


def _task_metric(settings: Settings) -> Metric:
    if settings.task == "file":
        return _file_metric(json.dumps(dict(settings.task_options)), settings.data_dir)
    return tasks.info(settings.task).metric


@lru_cache(maxsize=64)
def _file_metric(options: str, data_dir: str | None) -> Metric:
    """Of a file, whose kind of task is known after reading it."""
    return tasks.load("file", data_dir, **json.loads(options)).metric


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file. ValueError names the file, what is wrong and what is allowed."""
    raw = read_toml(path)
    try:
        return make_sweep(raw)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def make_sweep(raw: Mapping[str, Any]) -> Sweep:
    """A sweep from the tables of its file."""
    _check_keys("the file", raw, ("sweep", "settings", "data", "space", "final"))
    for name, table in raw.items():
        if not isinstance(table, Mapping):
            raise ValueError(f"{name} is {table!r}; write a table [{name}]")
    fixed, options = dict(raw.get("settings", {})), dict(raw.get("sweep", {}))
    _check_keys("[settings]", fixed, sorted(_FREE))
    _check_keys("[sweep]", options, list(_OPTIONS))
    for name in (name for name in TABLES if not isinstance(fixed.get(name, {}), Mapping)):
        raise ValueError(f"{name} in [settings] is {fixed[name]!r}; write a table [settings.{name}]")
    preset = fixed.pop("preset", "working")
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    space = ordered(_read_space(raw.get("space", {})))
    if not space:
        raise ValueError("[space] is empty; give at least one setting with a list of values, or a range")
    if "variants" in fixed:
        raise ValueError(
            "variants are in [settings]; put what differs into [space], e.g. unit_options.beta = [0.6, 0.8]"
        )
    known = _read_options(options)
    sweep = Sweep(fixed, space, preset, raw.get("data", {}), **known, final=_read_final(raw.get("final")), raw=raw)
    given = sweep.fixed if "unit" in fixed else {name: value for name, value in sweep.fixed.items() if name != "unit"}
    for parameter in (each for each in space if each.path in given and not each.when):
        raise ValueError(f"{parameter.path} is in [settings] and in [space]; give it once")
    _check_search(sweep)
    _check_conditions(sweep)
    _check_names(sweep)
    return sweep


def _read_space(given: Mapping[str, Any]) -> list[Parameter]:
    parameters = []
    allowed = [name for name in sorted(_FREE) if name not in _NEVER_VARIED]
    for name, value in given.items():
        if name in TABLES:
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} in [space] is {value!r}; write {name}.NAME = [values]")
            parameters += [read_parameter(f"{name}.{key}", item) for key, item in value.items()]
            continue
        if name.partition(".")[0] in TABLES:  # in quotes, as a condition names it
            parameters.append(read_parameter(name, value))
            continue
        if name == "seeds":
            raise ValueError(
                "seeds are in [space]; put them into [settings]: every configuration trains with all of them"
            )
        if name not in allowed:
            raise ValueError(f"{name!r} in [space] cannot be varied{nearest(name, [*allowed, *TABLES])}; these can: "
                             f"{', '.join(allowed)}, and unit_options.NAME, task_options.NAME, data.NAME")  # fmt: skip
        parameters.append(read_parameter(name, value))
    paths = [each.path for each in parameters]
    for path in (path for index, path in enumerate(paths) if path in paths[:index]):
        raise ValueError(f"{path} is in [space] twice, with quotes and without; give it once")
    return parameters


def _read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, (kind, default) in _OPTIONS.items():
        value = given.get(name, default)
        if name in given and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(
                f"{name} is {value!r}; it must be {'a whole number' if kind is int else 'a ' + kind.__name__}"
            )
        if kind is int and value is not None and value < (0 if name in ("seed", "startup_epochs") else 1):
            raise ValueError(f"{name} is {value}; it must be at least {0 if name in ('seed', 'startup_epochs') else 1}")
        values[name] = tuple(value) if kind is list else value
    choices: dict[str, tuple[str, ...]] = {"method": get_args(Method), "pruning": get_args(Pruning)}
    for name, allowed in choices.items():
        if values[name] not in allowed:
            raise ValueError(f"{name} is {values[name]!r}{nearest(str(values[name]), allowed)}; it must be one of "
                             f"{', '.join(allowed)}")  # fmt: skip
    return values


def _read_final(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    _check_keys("[final]", given, sorted(_FREE - {"task", "preset", "variants"}))
    for name in (name for name in TABLES if not isinstance(given.get(name, {}), Mapping)):
        raise ValueError(f"{name} in [final] is {given[name]!r}; write a table [final.{name}]")
    if not given.get("seeds"):
        raise ValueError("[final] names no seeds; give seeds that the search has not used, e.g. seeds = [10, 11, 12]")
    return dict(given)


def _check_search(sweep: Sweep) -> None:
    if sweep.method == "grid" and sweep.trials is not None:
        raise ValueError('trials is given, but a grid has as many as it has points; use method = "random" or "bayes"')
    if sweep.method != "grid" and sweep.trials is None:
        raise ValueError(f"method is {sweep.method!r} without trials; add e.g. trials = 40")
    if "task" not in sweep.settings and not any(each.path == "task" for each in sweep.space):
        raise ValueError('no task is given; add task = "digits", or a file, to [settings] or [space]')
    if (sweep.method == "bayes" or sweep.pruning != "none") and any(each.path == "task" for each in sweep.space):
        raise ValueError("a Bayesian search and pruning compare all trials, so there can be one task only; write a "
                         "sweep for each")  # fmt: skip
    if sweep.method == "bayes" and sweep.best_per:
        raise ValueError("best_per is for grids and random search; write a Bayesian sweep for each value")
    if sweep.method == "grid":
        for parameter in sweep.space:
            parameter.grid()
    paths = [*sweep.fixed, *(each.path for each in sweep.space), *_FREE]
    for name in (name for name in sweep.best_per if name not in paths):
        raise ValueError(f"best_per has {name!r}{nearest(name, paths)}; name settings, e.g. unit or unit_options.beta")


def _check_conditions(sweep: Sweep) -> None:
    """A condition on what has no value, or on a value that is not in its list, would silently remove a parameter.

    One on a fixed setting may fail: whoever changes that setting need not change the rest of the file.
    """
    space = {each.path: each for each in sweep.space}
    paths = [*sweep.fixed, *space]
    for parameter in sweep.space:
        for path, allowed in parameter.when.items():
            if path not in paths:
                raise ValueError(f"{parameter.path} depends on {path!r}{nearest(path, [*paths, *_FREE])}, which is "
                                 "neither in [space] nor in [settings]")  # fmt: skip
            known = [*space[path].values, sweep.fixed.get(path)] if path in space and space[path].values else None
            if known is not None and not any(value in known for value in allowed):
                raise ValueError(f"{parameter.path} exists only where {path} is {_listed(allowed)}, but [space] has "
                                 f"{_listed(space[path].values)}: it would never be used")  # fmt: skip


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(map(repr, values))


def _check_names(sweep: Sweep) -> None:
    """Tasks, units and their options exist, with the nearest known name where one does not."""

    def values(path: str, default: Sequence[Any] = ()) -> list[Any]:
        found = next((each.ends() for each in sweep.space if each.path == path), None)
        return found or ([sweep.settings[path]] if path in sweep.settings else list(default))

    names = values("task")
    for name in (name for name in names if not is_file_name(str(name))):
        if name not in tasks.available():
            raise ValueError(f"there is no task {name!r}{nearest(str(name), tasks.available())}; `lipschitz-rnn tasks` "
                             "lists them")  # fmt: skip
    known_units = [units.info(unit) for unit in values("unit", ["lipschitz"]) if unit != "contracting"]
    files = any(is_file_name(str(name)) for name in names)
    for table, known in (
        ("unit_options", {option for unit in known_units for option in unit.options()}),
        ("task_options", {o for n in names if not is_file_name(str(n)) for o in tasks.find(n).option_defaults()}),
        ("data", set(tasks.find("file").option_defaults()) - {"path", "step_size"} if files else set()),
    ):
        given = [*sweep.settings.get(table, {}), *(sweep.data if table == "data" else ())]
        given += [each.path.partition(".")[2] for each in sweep.space if each.path.startswith(f"{table}.")]
        for name in (name for name in given if name not in known):
            owner = {"unit_options": "the unit has", "task_options": "the task has", "data": "own data have"}[table]
            raise ValueError(f"{table} has {name!r}{nearest(name, sorted(known))}; {owner} "
                             f"{', '.join(sorted(known)) or 'no options'}")  # fmt: skip


def _check_keys(where: str, given: object, known: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {given!r}; write a table")
    for name in (name for name in given if name not in known):
        raise ValueError(f"{where} has {name!r}{nearest(name, known)}; it can have {', '.join(known)}")
