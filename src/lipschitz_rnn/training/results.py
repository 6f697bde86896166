"""The results of training: the weights selected on validation data, and the test scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lipschitz_rnn.tasks import Metric
from lipschitz_rnn.training.checkpoint import copy_tensors

LOWER_RATE = "train again with a lower learning rate, or with a gradient clip"


def no_finite_score(networks: int) -> str:
    """Why there are no weights to use, and what to do."""
    who = "its network has no" if networks == 1 else f"none of its {networks} networks has a"
    return f"{who} finite validation score; {LOWER_RATE}"


class Selection:
    """The parameters of every member at its best validation epoch; before the first epoch, the initial ones."""

    def __init__(self, metric: Metric, parameters: Mapping[str, Tensor]) -> None:
        self._sign = 1.0 if metric.higher_is_better else -1.0
        self.parameters = {name: value.detach().clone() for name, value in parameters.items()}
        members = len(next(iter(self.parameters.values())))
        self.epochs: list[int | None] = [None] * members
        self.values: list[float | None] = [None] * members

    def consider(
        self, values: Sequence[float], epoch: int, parameters: Mapping[str, Tensor], alive: Sequence[bool]
    ) -> bool:
        """Keep the members that are at least as good as before, so that ties go to the later epoch, with its smaller
        learning rate. Returns whether there were any."""
        better = [i for i, value in enumerate(values) if alive[i] and self._beats(value, self.values[i])]
        for i in better:
            self.epochs[i], self.values[i] = epoch, values[i]
            for name, kept in self.parameters.items():
                kept[i].copy_(parameters[name][i].detach())
        return bool(better)

    def forget(self) -> None:
        """Whatever comes next is better than all before."""
        self.values = [None] * len(self.values)

    def _beats(self, value: float, best: float | None) -> bool:
        return math.isfinite(value) and (best is None or self._sign * value >= self._sign * best)

    def state(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "values": self.values}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return {prefix + name: value for name, value in self.parameters.items()}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.epochs, self.values = list(state["epochs"]), list(state["values"])
        copy_tensors(tensors, self.parameters, "best/", "the checkpoint")


@dataclass(frozen=True)
class SeedResult:
    """One seed, of one variant if there are several.

    Scores are the task's metric as reported (accuracy as a fraction), or None if there is no score: a network without a
    finite validation score has no test scores either, since only its initial weights could be tested.
    """

    seed: int
    selected_epoch: int | None
    validation: float | None  # at the selected epoch
    test: float | None  # at the selected epoch
    test_last: float | None  # at the last epoch, which a network that diverged has not reached
    diverged_step: int | None = None
    variant: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # its unit options from Settings.variants


@dataclass(frozen=True)
class Result:
    """A finished run. `seeds` and `models` hold one entry per network, all seeds of the first variant before the next.

    Models have the weights of their selected epoch; they are not part of the JSON.
    """

    task: str
    unit: str
    metric: str
    higher_is_better: bool
    percent: bool
    parameters: int
    steps: int
    seconds: float
    ensemble: str
    seeds: tuple[SeedResult, ...]
    models: tuple[nn.Module, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def validated(self) -> tuple[bool, ...]:
        """Of every network, whether it has weights to use: selected ones, or with no epochs the initial ones."""
        return tuple(self.steps == 0 or seed.validation is not None for seed in self.seeds)

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("models", "seeds")}
        return values | {"seeds": [dataclasses.asdict(seed) for seed in self.seeds]}
