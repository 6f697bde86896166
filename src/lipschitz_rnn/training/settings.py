"""Everything that defines a training run, frozen: the same settings and seed give the same weights."""

from __future__ import annotations

import copy
import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

Optimiser = Literal["adam", "adamw", "sgd", "rmsprop"]
Schedule = Literal["constant", "step", "one-cycle", "cosine"]
Precision = Literal["highest", "high", "medium", "bfloat16", "float64"]
EnsembleMode = Literal["auto", "vmap", "sequential"]
CudaGraph = Literal["auto", "on", "off"]

# Settings that say where and how fast a run goes, not what it computes: they may change when a run is resumed.
PLACE_SETTINGS = frozenset({"device", "data_dir", "offline", "checkpoint_minutes", "cuda_graph"})


@dataclass(frozen=True)
class Member:
    """One network of a run: its seed, and the unit options in which it differs from its neighbours."""

    seed: int
    variant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For example "seed 3", or "beta=0.8, seed 3"."""
        return ", ".join([*(f"{key}={value}" for key, value in self.variant.items()), f"seed {self.seed}"])


@dataclass(frozen=True)
class Settings:
    """One configuration, trained for every seed in `seeds` at once.

    With `variants`, every one of them is trained for every seed: each is a set of unit options laid over
    `unit_options`. Equal seeds start from the same random numbers and see the same batches in every variant.

    Epochs count from 0. `batch_size` is the global batch; a split smaller than that is one batch, and the last
    incomplete batch of an epoch is left out (the order is drawn anew each epoch, so every sample has its turn).
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "lipschitz"
    unit_options: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[Mapping[str, Any], ...] = ()  # such as ({"beta": 0.5}, {"beta": 0.75}): side by side in one run
    hidden_size: int = 128
    num_layers: int = 1
    dropout: float = 0.0  # on what the head reads, with masks from each seed's own generator
    seeds: tuple[int, ...] = (0,)
    epochs: int = 100
    batch_size: int = 128  # stateful tasks take their number of streams from their own options
    eval_batch_size: int = 1000
    optimiser: Optimiser = "adam"
    learning_rate: float = 0.001
    momentum: float = 0.9  # sgd
    smoothing: float = 0.9  # rmsprop's α
    weight_decay: float = 0.0
    clip: float | None = None  # largest gradient norm of one network
    schedule: Schedule = "constant"
    decay_factor: float = 0.1  # step: the rate is multiplied by this …
    decay_epochs: tuple[int, ...] = ()  # … after each of these epochs, as the paper's "at 90" acts after index 90
    warmup: float = 0.1  # one-cycle, cosine: share of all steps in which the rate rises
    final_rate: float = 0.0  # one-cycle, cosine: last rate as a share of learning_rate
    averaging: float | None = None  # rate of an exponential average of the weights; evaluation then uses the average
    precision: Precision = "highest"  # float32 products: highest, high (TF32), medium; or bfloat16 autocast, float64
    ensemble: EnsembleMode = "auto"
    device: str = "auto"
    cuda_graph: CudaGraph = "auto"
    log_steps: int = 50  # the device is read back once per this many steps
    checkpoint_minutes: float = 10.0  # between checkpoints inside an epoch; every epoch ends with one
    data_dir: str | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        for name in ("seeds", "decay_epochs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("task_options", "unit_options"):
            object.__setattr__(self, name, _plain_options(getattr(self, name)))
        object.__setattr__(self, "variants", _plain_variants(self.variants))
        _check(self)

    @property
    def members(self) -> tuple[Member, ...]:
        """Every network of the run: all seeds of the first variant, then of the next."""
        return tuple(Member(seed, variant) for variant in self.variants or ({},) for seed in self.seeds)

    def of_variant(self, variant: Mapping[str, Any]) -> Settings:
        """The settings with which the networks of one variant would be trained alone."""
        return dataclasses.replace(self, unit_options={**self.unit_options, **variant}, variants=())

    def per_member(self) -> Settings:
        """For what only has to know the seed of each network: `seeds` names one per member, again in each variant."""
        settings = copy.copy(self)  # a seed that stands there twice would not pass the checks of a user's settings
        object.__setattr__(settings, "seeds", tuple(member.seed for member in self.members))
        object.__setattr__(settings, "variants", ())
        return settings

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        known = {item.name for item in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]!r}; the settings are {', '.join(sorted(known))}")
        if "task" not in values:
            raise ValueError('the settings name no task; add task = "digits" or another of `lipschitz-rnn tasks`')
        return cls(**values)

    def differences(self, other: Settings) -> dict[str, tuple[Any, Any]]:
        """Settings, other than of place, in which two runs differ: name -> (self, other)."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {key: (mine[key], theirs[key]) for key in mine if key not in PLACE_SETTINGS and mine[key] != theirs[key]}


def read_toml(path: str | Path) -> dict[str, Any]:
    """Settings from a TOML file: the field names of `Settings`, with tables for `task_options` and `unit_options`."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def _plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Lists, as JSON and TOML would give back: equal settings stay equal on their way through a file."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in dict(options).items()}


def _plain_variants(variants: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    if isinstance(variants, Mapping) or not all(isinstance(variant, Mapping) for variant in variants):
        raise TypeError(f'variants are {variants!r}; give a list of unit options, such as [{{"beta": 0.5}}]')
    plain = tuple(_plain_options(variant) for variant in variants)
    if any(variant in plain[:index] for index, variant in enumerate(plain)):
        raise ValueError(f"variants are {plain}; give each once")
    return plain


_COUNTS = ("hidden_size", "num_layers", "batch_size", "eval_batch_size", "log_steps")
_RANGES: dict[str, tuple[float, float]] = {
    "dropout": (0.0, 1.0),
    "momentum": (0.0, 1.0),
    "smoothing": (0.0, 1.0),
    "weight_decay": (0.0, math.inf),
    "warmup": (0.0, 1.0),
    "final_rate": (0.0, 1.0),
    "decay_factor": (0.0, math.inf),
    "checkpoint_minutes": (0.0, math.inf),
}
_POSITIVE = ("learning_rate", "clip", "averaging")


def _check(settings: Settings) -> None:
    """Name the first wrong value, what is allowed, and so the fix."""
    for name, hint in get_type_hints(Settings).items():
        allowed = get_args(hint)
        if getattr(hint, "__origin__", None) is Literal and getattr(settings, name) not in allowed:
            raise ValueError(f"{name} is {getattr(settings, name)!r}; it must be one of {', '.join(allowed)}")
    for name in _COUNTS:
        _check_integer(name, getattr(settings, name), 1)
    _check_integer("epochs", settings.epochs, 0)
    for name, (low, high) in _RANGES.items():
        value = _number(name, getattr(settings, name))
        if not low <= value <= high or (name == "dropout" and value == 1.0):
            raise ValueError(f"{name} is {value}; it must lie between {low} and {high}")
    for name in _POSITIVE:
        value = getattr(settings, name)
        if value is not None and not 0.0 < _number(name, value) < math.inf:
            raise ValueError(f"{name} is {value}; it must be a positive number")
    if settings.averaging is not None and settings.averaging > 1.0:
        raise ValueError(f"averaging is {settings.averaging}; a rate lies in (0, 1], for example 0.002")
    if not settings.seeds or len(set(settings.seeds)) != len(settings.seeds):
        raise ValueError(f"seeds are {settings.seeds}; give at least one, each once")
    for seed in settings.seeds:
        _check_integer("a seed", seed, 0)
    for epoch in settings.decay_epochs:
        _check_integer("a decay epoch", epoch, 0)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be a number")
    return float(value)


def _check_integer(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be an integer")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be at least {minimum}")
