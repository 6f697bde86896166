"""The interface of every task: splits, shapes, loss and metric.

A task provides batches and scores outputs; it knows nothing about models, optimisers or epochs. Sequences are
time-major. When several networks train together, every tensor may have a leading member axis S: the shapes below become
(S, T, B, p), (S, B) and so on, and `loss` and `measure` return one value per member.
"""

from __future__ import annotations

import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Generators = torch.Generator | Sequence[torch.Generator] | None


class DataError(RuntimeError):
    """A data file is missing, damaged or of the wrong kind. The message names the file, what is expected, the fix."""


@dataclass(frozen=True)
class Metric:
    """How a task is scored. Sums and weights of `Task.measure` are added over batches; `finish` turns sum / weight
    into the reported number. With `percent` it is a fraction in [0, 1] that is shown in percent."""

    name: Literal["accuracy", "bits", "perplexity", "mse"]
    higher_is_better: bool = False
    percent: bool = False

    def finish(self, mean: float) -> float:
        if self.name == "perplexity":
            # exp overflows above 709.78; such a perplexity, of a diverged network, may as well be infinite.
            return math.exp(mean) if mean < 709.0 else (math.inf if not math.isnan(mean) else math.nan)
        return mean / math.log(2.0) if self.name == "bits" else mean


ACCURACY = Metric("accuracy", higher_is_better=True, percent=True)
BITS = Metric("bits")
PERPLEXITY = Metric("perplexity")
MSE = Metric("mse")
METRICS: dict[str, Metric] = {metric.name: metric for metric in (ACCURACY, BITS, PERPLEXITY, MSE)}


@dataclass(frozen=True)
class Batch:
    """One batch. `lengths`: the number of valid steps of each sequence; None if all steps are valid. `timespans`: the
    time since the previous sample, which is the length of the step that reads each input; None if all are equal."""

    inputs: Tensor  # (T, B, p) floating, or (T, B) int64 tokens
    targets: Tensor  # (B,) classes | (T, B, q) values | (T, B) tokens | (B, q) values
    lengths: Tensor | None = None  # (B,) int64
    timespans: Tensor | None = None  # (T, B) floating, finite and at least 0 in the valid steps

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """A batch with `change` applied to every tensor."""
        parts = (self.inputs, self.targets, self.lengths, self.timespans)
        return Batch(*(None if part is None else change(part) for part in parts))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda part: part.to(device))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the batch has, in order."""
        return [part for part in (self.inputs, self.targets, self.lengths, self.timespans) if part is not None]


@dataclass(frozen=True)
class TaskInfo(Mapping[str, Any]):
    """The facts about a task that are known before any data is read; sizes and shapes are those of its defaults.

    Read them as attributes. Access by key, as in the dictionary that `tasks.info` once returned, is deprecated.
    """

    name: str
    summary: str
    input_size: int
    output_size: int
    sequence_length: int
    readout: Literal["last", "all"]
    metric: Metric
    sizes: Mapping[str, int | None]  # None: known only once the user's own data is read
    source: str
    licence: str
    vocabulary: int | None = None
    stateful: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # with their defaults; `tasks.info` fills it in

    def __getitem__(self, key: str) -> Any:
        warnings.warn(
            f'tasks.info(…)["{key}"] is deprecated; write tasks.info(…).{key}', DeprecationWarning, stacklevel=2
        )
        return asdict(self)[key]

    def __iter__(self) -> Iterator[str]:
        return (item.name for item in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


_SHAPE_FACTS = ("input_size", "output_size", "sequence_length", "vocabulary")  # options may change these


class Task(ABC):
    """A sequence problem with its splits ("train", "validation", "test"), loss and metric.

    Subclasses set the class attribute `info`, take their options as keyword-only arguments, and put every tensor that
    must follow `to(device)` into `self._data`. Those that read files take `root` (a folder or None) first, and
    `offline`. `defaults` are the settings with which `lipschitz-rnn train` trains the task by default. `timed` says
    that batches have timespans, so that a unit that cannot take them is rejected before any data is read.
    """

    info: ClassVar[TaskInfo]
    timed: bool = False
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: Mapping[str, Any], **differing: Any) -> None:
        """`options`: as given by the user, for the record. `differing`: shapes that differ from `info`."""
        facts = {key: differing.get(key, getattr(self.info, key)) for key in _SHAPE_FACTS}
        self.name: str = self.info.name
        self.input_size: int = facts["input_size"]
        self.output_size: int = facts["output_size"]
        self.sequence_length: int = facts["sequence_length"]
        self.vocabulary: int | None = facts["vocabulary"]
        self.readout: Literal["last", "all"] = self.info.readout
        self.metric: Metric = self.info.metric
        self.stateful: bool = self.info.stateful
        self.options = dict(options)
        self.device = torch.device("cpu")
        self._data: dict[str, Tensor] = {}

    @property
    def carries_state(self) -> bool:
        """Whether the state after one window is the initial state of the next."""
        return self.stateful

    def to(self, device: torch.device | str) -> Self:
        """Move the data to `device`, in place like a module, and return the task."""
        self.device = torch.device(device)
        self._data = {key: value.to(self.device) for key, value in self._data.items()}
        return self

    @abstractmethod
    def size(self, split: Split) -> int:
        """Samples in `split`; for stateful tasks the number of consecutive windows."""

    def order(self, generator: torch.Generator, batch_size: int) -> Tensor:
        """The training samples in a new random order, (n,) int64; batches are cut from its beginning.

        A task may override it, e.g. to put sequences of similar length into the same batch. The order must depend only
        on the arguments.
        """
        return torch.randperm(self.size("train"), generator=generator)

    @abstractmethod
    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        """The samples `indices`, (B,) int64, or (S, B) for S members at once, as a batch on the task's device.

        `generator` is for augmentation and noise in training: one, or a sequence of S when indices are (S, B).
        Without it the batch depends only on the indices. Stateful tasks take a single window number.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Mean loss, differentiable and free of data-dependent shapes. outputs: (B, q), or (T, B, q) for "all"."""

    @abstractmethod
    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(sum, weight), to be added over batches: the metric is `metric.finish(sum / weight)`."""

    def loss_weight(self, outputs: Tensor, batch: Batch) -> Tensor:
        """What `loss` is a mean over, by which the losses of batches are weighted: by default that of `measure`."""
        return self.measure(outputs, batch)[1]

    def describe(self) -> dict[str, Any]:
        """Counts, shapes, options and source, as plain values for listings and for a run's configuration."""
        facts = asdict(self.info)
        facts.update(
            {key: getattr(self, key) for key in ("input_size", "output_size", "sequence_length", "vocabulary")}
        )
        facts["sizes"] = {split: self.size(split) for split in SPLITS}
        facts["options"] = dict(self.options)
        facts["preprocessing"] = dict(self.preprocessing())
        return facts | ({"timed": True} if self.timed else {})  # others: the same record as before it existed

    def preprocessing(self) -> Mapping[str, Any]:
        """How raw inputs are transformed before a network sees them, as plain values recorded with every run.

        {"scale": a, "shift": b} means raw · a + b, with one number or one per channel. Empty: no change.
        """
        return {}

    @classmethod
    def option_defaults(cls) -> dict[str, Any]:
        """The task's own options with their defaults, in the order of its signature."""
        parameters = inspect.signature(cls).parameters.values()
        keyword_only = (p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "offline")
        return {p.name: p.default for p in keyword_only}

    @classmethod
    def shapes(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """What a network must know before any data is read: input_size, output_size, vocabulary, readout, timed."""
        facts = {fact: getattr(cls.info, fact) for fact in ("input_size", "output_size", "vocabulary", "readout")}
        return facts | {"timed": cls.timed}


def member_generators(generator: Generators, indices: Tensor) -> list[torch.Generator]:
    """One generator for indices (B,), or S for indices (S, B): one per member, or the same one S times.

    With its own generator, a member of an ensemble draws the same numbers as in a run of its own.
    """
    if generator is None:
        raise ValueError("generator is None; random draws need a torch.Generator, or one for each member")
    members = len(indices) if indices.dim() == 2 else 1
    several = [generator] * members if isinstance(generator, torch.Generator) else list(generator)
    if len(several) != members:
        raise ValueError(f"{len(several)} generators for {members} members; give one, or one for each member")
    return several


def check_split(split: str) -> Split:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(map(repr, SPLITS))}")
    return split


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise a ValueError that lists the allowed values of an option."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")


def check_count(name: str, value: object, minimum: int = 1, maximum: int | None = None) -> None:
    """Raise unless `value` is an integer in [minimum, maximum]."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be an integer")
    if value < minimum or (maximum is not None and value > maximum):
        limit = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise ValueError(f"{name} is {value}; it must be {limit}")
