"""The frozen settings of a training run: the same settings and seed give the same weights."""

from __future__ import annotations

import copy
import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from lipschitz_rnn.training.setting_checks import Setting, as_integers, check_settings, plain_options, plain_variants

Optimiser = Literal["adam", "adamw", "sgd", "rmsprop", "muon"]
Schedule = Literal["constant", "step", "one-cycle", "cosine"]
Precision = Literal["highest", "high", "medium", "bfloat16", "float64"]
EnsembleMode = Literal["auto", "vmap", "sequential"]
CudaGraph = Literal["auto", "on", "off"]
NETWORK, OPTIMISATION, MACHINE = "Network", "Optimisation", "Machine"  # groups of settings on a help page
WHERE, OUTPUT = "Run folder and data", "Output"

_LARGEST_TOML = 1 << 20  # bytes

# Where and how fast a run executes, not what it computes: these may change when a run is resumed.
PLACE_SETTINGS = frozenset({"device", "data_dir", "offline", "checkpoint_minutes", "cuda_graph"})


@dataclass(frozen=True)
class Member:
    """One network of a run: its seed, and the unit options of its variant."""

    seed: int
    variant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For example "seed 3", or "beta=0.8, seed 3"."""
        return ", ".join([*(f"{key}={value}" for key, value in self.variant.items()), f"seed {self.seed}"])


@dataclass(frozen=True)
class Settings:
    """One configuration, trained for every seed in `seeds` at once.

    With `variants`, each of them is trained for every seed: a variant is a set of unit options that override
    `unit_options`. Equal seeds start from the same random numbers and see the same batches in every variant.

    The annotation of each setting describes it; the same text is the help of its option in `lipschitz-rnn train`. Every
    value is checked on construction, also by `replace`: a wrong one raises ValueError or TypeError with the value and
    what is allowed. Options are plain values, as in JSON and TOML.

    Epochs count from 0. `batch_size` is the global batch size. A smaller split is one batch, and the last incomplete
    batch of an epoch is dropped (the order is drawn again in each epoch, so every sample is used).
    """

    task: Annotated[str, Setting("Name of a task; `lipschitz-rnn tasks` lists them.")]
    task_options: Annotated[
        Mapping[str, Any],
        Setting("Option of the task, e.g. length=300; repeat for more.", NETWORK, ("--task-option", "-t")),
    ] = field(default_factory=dict)
    unit: Annotated[str, Setting("Recurrent unit; `lipschitz-rnn units` lists them. Default: lipschitz.", NETWORK)] = (
        "lipschitz"
    )
    unit_options: Annotated[
        Mapping[str, Any],
        Setting("Option of the unit, e.g. beta=0.8; repeat for more.", NETWORK, ("--unit-option", "-u")),
    ] = field(default_factory=dict)
    variants: Annotated[
        tuple[Mapping[str, Any], ...],  # e.g. ({"beta": 0.5}, {"beta": 0.75}), trained together in one run
        Setting(
            'Train one more network with these unit options, e.g. "beta=0.5 gamma=0.1"; repeat for each variant.',
            NETWORK,
            ("--variant",),
        ),
    ] = ()
    hidden_size: Annotated[int, Setting("Hidden size N.", NETWORK, ("--hidden-size", "-n"), low=1)] = 128
    num_layers: Annotated[int, Setting("Number of stacked layers.", NETWORK, low=1)] = 1
    dropout: Annotated[  # with masks from each seed's own generator
        float, Setting("Dropout on the head's input, in training only.", NETWORK, low=0, below=1)
    ] = 0.0
    embedding_dropout: Annotated[
        float, Setting("Dropout on embedded tokens, in training only; text tasks.", NETWORK, low=0, below=1)
    ] = 0.0
    seeds: Annotated[
        tuple[int, ...], Setting("Seeds to train together, e.g. 0-11 or 0,2,5. Default: 0.", NETWORK, ("--seeds", "-s"))
    ] = (0,)
    epochs: Annotated[int, Setting("Number of epochs.", OPTIMISATION, ("--epochs", "-e"), low=0)] = 100
    patience: Annotated[
        int | None,
        Setting(
            "Stop if no network has improved on validation data for N epochs. Default: train all epochs.",
            OPTIMISATION,
            metavar="N",
            low=1,
        ),
    ] = None
    batch_size: Annotated[
        int,
        Setting(
            "Batch size over all processes (text tasks: -t train_batch=N).",
            OPTIMISATION,
            ("--batch-size", "-b"),
            low=1,
        ),
    ] = 128
    eval_batch_size: Annotated[int, Setting("Batch size for validation and test.", OPTIMISATION, low=1)] = 1000
    optimiser: Annotated[
        Optimiser,
        Setting("Optimiser; sgd is with momentum, muon orthogonalises updates of hidden matrices.", OPTIMISATION),
    ] = "adam"
    learning_rate: Annotated[
        float,
        Setting("Learning rate; with a schedule, the largest one.", OPTIMISATION, ("--learning-rate", "--lr"), above=0),
    ] = 0.001
    momentum: Annotated[float, Setting("sgd: momentum.", OPTIMISATION, low=0, high=1)] = 0.9
    smoothing: Annotated[float, Setting("rmsprop: smoothing constant α.", OPTIMISATION, low=0, high=1)] = 0.9
    matrix_rate: Annotated[
        float, Setting("muon: learning rate of hidden matrices as a multiple of --lr.", OPTIMISATION, above=0)
    ] = 1.0
    bias_rate: Annotated[
        float, Setting("Learning rate of the unit's biases as a multiple of --lr.", OPTIMISATION, above=0)
    ] = 1.0
    weight_decay: Annotated[float, Setting("Weight decay.", OPTIMISATION, low=0)] = 0.0
    clip: Annotated[
        float | None, Setting("Clip the gradient norm of each network; 0: no clipping.", OPTIMISATION, above=0)
    ] = None
    schedule: Annotated[Schedule, Setting("How the learning rate changes over the run.", OPTIMISATION)] = "constant"
    decay_factor: Annotated[
        float,
        Setting("step: factor on the learning rate after each decay epoch.", OPTIMISATION, low=0),
    ] = 0.1
    decay_epochs: Annotated[  # the paper's "at 90" acts after index 90
        tuple[int, ...], Setting("step: decay after these epochs, counted from 0, e.g. 90 or 30,60.", OPTIMISATION)
    ] = ()
    warmup: Annotated[
        float, Setting("one-cycle, cosine: fraction of the run in which the rate rises.", OPTIMISATION, low=0, high=1)
    ] = 0.1
    final_rate: Annotated[
        float, Setting("one-cycle, cosine: final rate as a fraction of --lr.", OPTIMISATION, low=0, high=1)
    ] = 0.0
    margin: Annotated[
        float,
        Setting("Classification: raise the scores of wrong classes by this much in the loss.", OPTIMISATION, low=0),
    ] = 0.0
    train_radius: Annotated[  # in units of the network's inputs
        float,
        Setting(
            "Contracting units: raise the scores of wrong classes by what an input change of this l2 norm could do.",
            OPTIMISATION,
            low=0,
        ),
    ] = 0.0
    gain_penalty: Annotated[
        float,
        Setting("Contracting units: weight of the squared gain from inputs to scores.", OPTIMISATION, low=0),
    ] = 0.0
    head_penalty: Annotated[
        float,
        Setting("Contracting units: weight of the squared gain of the head alone.", OPTIMISATION, low=0),
    ] = 0.0
    robust_ramp: Annotated[
        float,
        Setting(
            "Fraction of the run in which --margin, --train-radius and both penalties rise from 0 to their full size.",
            OPTIMISATION,
            low=0,
            high=1,
        ),
    ] = 0.0
    averaging: Annotated[
        float | None,
        Setting(
            "Evaluate a moving average of the weights with this update rate, e.g. 0.002.",
            OPTIMISATION,
            above=0,
            high=1,
        ),
    ] = None
    precision: Annotated[
        Precision,
        Setting(
            "Arithmetic: highest (default), high (TF32 or finer) or medium in float32; bfloat16; float64.", MACHINE
        ),
    ] = "highest"
    ensemble: Annotated[
        EnsembleMode, Setting("How seeds train: auto (default), vmap (all in one call) or sequential.", MACHINE)
    ] = "auto"
    device: Annotated[str, Setting("auto, cpu, cuda or cuda:1. Default: auto.", MACHINE)] = "auto"
    cuda_graph: Annotated[
        CudaGraph, Setting("Replay each step as a CUDA graph: auto (default), on or off.", MACHINE)
    ] = "auto"
    log_steps: Annotated[  # how often results are copied from the device
        int, Setting("Log metrics every N steps.", OUTPUT, low=1)
    ] = 50
    checkpoint_minutes: Annotated[  # every epoch ends with one
        float,
        Setting(
            "Also save a checkpoint within an epoch, every NUMBER minutes; inf: never.", OUTPUT, low=0, finite=False
        ),
    ] = 10.0
    data_dir: Annotated[
        str | None,
        Setting("Folder with data files. Default: LIPSCHITZ_RNN_DATA, else the cache.", WHERE, metavar="FOLDER"),
    ] = None
    offline: Annotated[bool, Setting("Never download data.", WHERE)] = False

    def __post_init__(self) -> None:
        for name in ("seeds", "decay_epochs"):
            object.__setattr__(self, name, as_integers(name, getattr(self, name)))
        for name in ("task_options", "unit_options"):
            object.__setattr__(self, name, plain_options(name, getattr(self, name)))
        object.__setattr__(self, "variants", plain_variants(self.variants))
        if isinstance(self.data_dir, os.PathLike):
            object.__setattr__(self, "data_dir", os.fspath(self.data_dir))
        for name, (kind, setting) in described_settings().items():
            setting.check(name, kind, getattr(self, name))
        check_settings({item.name: getattr(self, item.name) for item in dataclasses.fields(self)})

    @property
    def members(self) -> tuple[Member, ...]:
        """Every network of the run: all seeds of the first variant, then those of the next, and so on."""
        return tuple(Member(seed, variant) for variant in self.variants or ({},) for seed in self.seeds)

    def of_variant(self, variant: Mapping[str, Any]) -> Settings:
        """The settings for training only the networks of one variant."""
        return dataclasses.replace(self, unit_options={**self.unit_options, **variant}, variants=())

    def per_member(self) -> Settings:
        """`seeds` with one entry per member, repeated for each variant, for code that needs only the seeds."""
        settings = copy.copy(self)  # the checks would reject repeated seeds
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
            raise TypeError(f"the settings are a {type(values).__name__}; give a mapping of names to values")
        known = {item.name for item in dataclasses.fields(cls)}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]!r}; the settings are {', '.join(sorted(known))}")
        if "task" not in values:
            raise ValueError('the settings name no task; add task = "digits" or another of `lipschitz-rnn tasks`')
        return cls(**values)

    def differences(self, other: Settings) -> dict[str, tuple[Any, Any]]:
        """Settings in which two runs differ, except those of place: name -> (self, other)."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {key: (mine[key], theirs[key]) for key in mine if key not in PLACE_SETTINGS and mine[key] != theirs[key]}


@cache
def described_settings() -> dict[str, tuple[Any, Setting]]:
    """The type and description of every setting, for checks and for the options of `lipschitz-rnn train`."""
    hints = get_type_hints(Settings, include_extras=True)
    return {item.name: get_args(hints[item.name])[:2] for item in dataclasses.fields(Settings)}  # type: ignore[misc]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Settings from a TOML file: the field names of `Settings`, with tables for `task_options` and `unit_options`.

    Raises OSError if the file cannot be read, and ValueError if it is not TOML.
    """
    with open(path, "rb") as file:
        content = file.read(_LARGEST_TOML + 1)
    if len(content) > _LARGEST_TOML:
        raise ValueError(f"{path} is larger than {_LARGEST_TOML:,} bytes; settings are a short TOML file")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors begin a file with a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
