"""Everything that defines a training run, frozen: the same settings and seed give the same weights."""

from __future__ import annotations

import copy
import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lipschitz_rnn.training.setting_checks import as_integers, check_settings, plain_options, plain_variants

Optimiser = Literal["adam", "adamw", "sgd", "rmsprop"]
Schedule = Literal["constant", "step", "one-cycle", "cosine"]
Precision = Literal["highest", "high", "medium", "bfloat16", "float64"]
EnsembleMode = Literal["auto", "vmap", "sequential"]
CudaGraph = Literal["auto", "on", "off"]
CHOICES: dict[str, tuple[str, ...]] = {
    "optimiser": get_args(Optimiser),
    "schedule": get_args(Schedule),
    "precision": get_args(Precision),
    "ensemble": get_args(EnsembleMode),
    "cuda_graph": get_args(CudaGraph),
}

_LARGEST_TOML = 1 << 20  # bytes

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

    Every value is checked when settings are made, by `replace` too: a wrong one raises ValueError or TypeError with the
    value and what is allowed. Options are plain values, as JSON and TOML know them.

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
            object.__setattr__(self, name, as_integers(name, getattr(self, name)))
        for name in ("task_options", "unit_options"):
            object.__setattr__(self, name, plain_options(name, getattr(self, name)))
        object.__setattr__(self, "variants", plain_variants(self.variants))
        if isinstance(self.data_dir, os.PathLike):
            object.__setattr__(self, "data_dir", os.fspath(self.data_dir))
        check_settings({item.name: getattr(self, item.name) for item in dataclasses.fields(self)}, CHOICES)

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
        if not isinstance(values, Mapping):
            raise TypeError(f"the settings are a {type(values).__name__}; give an object with the names of settings")
        known = {item.name for item in dataclasses.fields(cls)}
        unknown = [name for name in values if name not in known]
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
    """Settings from a TOML file: the field names of `Settings`, with tables for `task_options` and `unit_options`.

    Raises OSError where the file cannot be read, and ValueError where it is not TOML.
    """
    with open(path, "rb") as file:
        content = file.read(_LARGEST_TOML + 1)
    if len(content) > _LARGEST_TOML:
        raise ValueError(f"{path} is larger than {_LARGEST_TOML:,} bytes; settings are a short TOML file")
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
