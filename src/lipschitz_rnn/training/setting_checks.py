"""Checks the values of `Settings`. The error names the first wrong one, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import torch

_LARGEST = 2**31 - 1  # for any count: far beyond any machine, and the product of two does not overflow
_LARGEST_RATE = 1e30  # with the factors of an optimiser it still is a float32


@dataclass(frozen=True)
class Setting:
    """The description of a setting: its help, its panel on the help page, its flags and its allowed range.

    flags: by default the name of the setting with dashes. low, high: inclusive; above, below: exclusive.
    """

    help: str
    group: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    low: float = -math.inf
    high: float = math.inf
    above: float | None = None
    below: float | None = None
    finite: bool = True

    def check(self, name: str, kind: Any, value: object) -> None:
        """Raise TypeError or ValueError for an invalid choice or number; other types are checked elsewhere."""
        kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
        if value is None and NoneType in kinds:
            return
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(get_args(kind))}")
        elif int in kinds:
            _check_integer(name, value, int(self.low), _LARGEST)
        elif float in kinds and not self._holds(_number(name, value)):
            raise ValueError(f"{name} is {value}; it must be {self._limits()}")

    def _holds(self, value: float) -> bool:
        inside = self.low <= value <= self.high and (math.isfinite(value) or (not self.finite and value > 0))
        return inside and (self.above is None or value > self.above) and (self.below is None or value < self.below)

    def _limits(self) -> str:
        high, excluded = (self.high, "") if self.below is None else (self.below, f", without {self.below:g}")
        if high == math.inf:
            return "a positive number" if self.above == 0 else f"at least {self.low:g}{' and finite' * self.finite}"
        low = self.low if self.above is None else self.above
        excluded = excluded if self.above is None else f", without {self.above:g}"
        return f"between {low:g} and {high:g}{excluded}"


def check_settings(values: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError for the first invalid value that `Setting.check` does not find."""
    for name in ("task", "unit"):
        _check_name(name, values[name])
    seeds = values["seeds"]
    for seed in seeds:
        _check_integer("a seed", seed, 0, 2**63 - 1)
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds are {seeds}; give at least one, each once")
    for epoch in values["decay_epochs"]:
        _check_integer("a decay epoch", epoch, 0, _LARGEST)
    _check_rates(values)
    _check_place(values["device"], values["data_dir"], values["offline"])


def _check_rates(values: Mapping[str, Any]) -> None:
    rate = values["learning_rate"]
    products = {f"learning_rate × {name}": rate * values[name] for name in ("matrix_rate", "bias_rate")}
    for name, product in {"learning_rate": rate, **products}.items():
        if product > _LARGEST_RATE:
            raise ValueError(f"{name} is {product:g}; it must be at most {_LARGEST_RATE:g}")


def _check_place(device: object, data_dir: object, offline: object) -> None:
    if not isinstance(device, str):
        raise TypeError(f'device is {device!r} ({type(device).__name__}); it must be "auto", "cpu", "cuda" or "cuda:1"')
    if device != "auto":
        try:
            torch.device(device)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f'device is {device!r}; it must be "auto", "cpu", "cuda" or "cuda:1"') from error
    if data_dir is not None and not isinstance(data_dir, str):
        raise TypeError(f"data_dir is {data_dir!r} ({type(data_dir).__name__}); it must be the path of a folder")
    if data_dir is not None and (not data_dir or "\0" in data_dir):
        raise ValueError(f"data_dir is {data_dir!r}; it must be the path of a folder, or None")
    if not isinstance(offline, bool):
        raise TypeError(f"offline is {offline!r} ({type(offline).__name__}); it must be True or False")


def as_integers(name: str, values: object) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} are {values!r} ({type(values).__name__}); give a list of integers, such as [0, 1]")
    return tuple(values)


def plain_options(name: str, options: object) -> dict[str, Any]:
    """Options with lists instead of tuples, as JSON and TOML return them, so that settings survive a round trip."""
    if not isinstance(options, Mapping):
        raise TypeError(f'{name} are {options!r}; give options by name, such as {{"beta": 0.8}}')
    for key in options:
        _check_name(f"an option of {name}", key)
    return {key: _plain_value(f"{name}[{key!r}]", value) for key, value in options.items()}


def plain_variants(variants: object) -> tuple[dict[str, Any], ...]:
    usable = isinstance(variants, Sequence) and all(isinstance(variant, Mapping) for variant in variants)
    if not isinstance(variants, Sequence) or not usable:
        raise TypeError(f'variants are {variants!r}; give a list of unit options, such as [{{"beta": 0.5}}]')
    plain = tuple(plain_options("variants", variant) for variant in variants)
    if any(variant in plain[:index] for index, variant in enumerate(plain)):
        raise ValueError(f"variants are {plain}; give each once")
    return plain


def _plain_value(name: str, value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}; it must be a finite number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain_value(name, item) for item in value]
    if isinstance(value, Mapping):
        return plain_options(name, value)
    raise TypeError(
        f"{name} is {value!r} ({type(value).__name__}); use numbers, text, True, False, None or lists of these: "
        "they are written to config.json"
    )


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be a name")
    if not value.strip() or "\0" in value:
        raise ValueError(f"{name} is {value!r}; it must be a name")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is an integer that no float can hold; it must be a number") from None


def _check_integer(name: str, value: object, minimum: int, maximum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be an integer")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be at least {minimum}")
    if value > maximum:
        raise ValueError(f"{name} is {value}; it must be at most {maximum}")
