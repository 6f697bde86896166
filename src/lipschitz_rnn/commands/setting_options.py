"""The options of `train`, generated from the fields of `Settings`, where each setting has its description."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

import typer

from lipschitz_rnn.commands.parsing import parse_epochs, parse_options, parse_seeds, require_number
from lipschitz_rnn.commands.signatures import Command, with_options
from lipschitz_rnn.training.setting_checks import Setting
from lipschitz_rnn.training.settings import Settings, described_settings

_ASSIGNMENT = "NAME=VALUE"
_METAVARS = {"unit_options": _ASSIGNMENT, "task_options": _ASSIGNMENT, "variants": "OPTIONS", "decay_epochs": "EPOCHS"}


def with_settings(command: Command) -> Command:
    """Add an option for every setting except the task; the command receives the given ones as `given`."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        asked = {name: kwargs.pop(_parameter(name)) for name in _SETTINGS}
        given = {name: _read(name, value) for name, value in asked.items() if not _is_absent(value)}
        command(*args, **kwargs, given=given)

    options = {_parameter(name): _option(name, kind, setting) for name, (kind, setting) in _SETTINGS.items()}
    return with_options(run, command, options, instead_of="given")


_SETTINGS = {name: described for name, described in described_settings().items() if name != "task"}


# Options that act only with some optimisers or schedules.
_WITH = {
    "momentum": ("optimiser", ("sgd",)),
    "decay_factor": ("schedule", ("step",)),
    "decay_epochs": ("schedule", ("step",)),
    "warmup": ("schedule", ("one-cycle", "cosine")),
    "final_rate": ("schedule", ("one-cycle", "cosine")),
}


def idle_options(given: Mapping[str, Any], settings: Settings) -> list[str]:
    """A sentence for each given option that changes nothing with the optimiser or schedule in force."""
    return [
        f"--{name.replace('_', '-')} has no effect with --{other} {chosen}; it is for {' and '.join(needed)}"
        for name, (other, needed) in _WITH.items()
        if given.get(name) is not None and (chosen := getattr(settings, other)) not in needed
    ]


def _is_absent(value: Any) -> bool:
    return value is None or value is False or value == []  # 0 is a value


def _parameter(name: str) -> str:
    """The name of the option, e.g. --unit-option for `unit_options`."""
    flags = _SETTINGS[name][1].flags
    return flags[0].removeprefix("--").replace("-", "_") if flags else name


def _option(name: str, kind: Any, setting: Setting) -> Any:
    """Flags are always spelled out: Typer 0.27 would derive them from the metavar."""
    flags = setting.flags or ("--" + name.replace("_", "-"),)
    metavar = setting.metavar or _METAVARS.get(name)
    option = typer.Option(*flags, help=setting.help, metavar=metavar, rich_help_panel=setting.group, show_default=False)
    return Annotated[_typed(kind), option]


def _typed(kind: Any) -> Any:
    """The type of the option for a setting of this type; None stands for an option that was not given."""
    origin = get_origin(kind)
    several = origin is tuple and get_origin(get_args(kind)[0]) is Mapping
    if origin is Mapping or several:
        return list[str] | None
    return (str if origin is tuple else kind) | None if kind is not bool else bool


def _read(name: str, value: Any) -> Any:
    if name == "seeds":
        return parse_seeds(value)
    if name == "decay_epochs":
        return parse_epochs(value)
    if name == "variants":
        return tuple(parse_options(options.split(), "--variant") for options in value)
    if name in ("unit_options", "task_options"):
        return parse_options(value, _SETTINGS[name][1].flags[0])
    if name == "epochs":
        require_number("--epochs", value, lambda epochs: epochs >= 1, "give at least 1")
    if name == "clip":
        require_number("--clip", value, lambda norm: 0 <= norm < math.inf, "give at least 0; 0 does not clip")
    return None if name == "clip" and value == 0 else value
