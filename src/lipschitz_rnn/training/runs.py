"""Opens a run folder or a saved model: its networks, settings, task and preprocessing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lipschitz_rnn import plugins, tasks, units
from lipschitz_rnn.tasks import Split, Task
from lipschitz_rnn.training.errors import RunError
from lipschitz_rnn.training.evaluation import Scores, score_networks
from lipschitz_rnn.training.model import build_model, in_precision
from lipschitz_rnn.training.parallel import device_of_run
from lipschitz_rnn.training.reading import check_sources, read_shapes, read_sources, require_same_series
from lipschitz_rnn.training.run_settings import read_settings
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.training.sources import Builder
from lipschitz_rnn.training.weights import Weights, fill, read_weights
from lipschitz_rnn.units.lipschitz.pretrained import Pretrained, read_pretrained
from lipschitz_rnn.units.lipschitz.pretrained import available as pretrained_names


def load_run(
    source: str | os.PathLike[str] | Pretrained,
    *,
    build: Builder | None = None,
    task: Task | type[Task] | None = None,
    imports: Iterable[str] = (),
) -> LoadedRun:
    """Open a run folder, a saved model (….safetensors) or a pretrained network by its name.

    Args:
        build: builds the networks, as passed to `fit`. Default: what the run recorded; see below.
        task: the task, or its class. Default: the registered task with the name in the settings.
        imports: modules to import first, which register tasks and units or define the run's task or builder.

    Opening a folder never imports a module that it names. A task or builder from outside the package is used if it is
    passed here, registered, or defined in a module that the user named in `imports` or in LIPSCHITZ_RNN_IMPORT.

    Raises:
        RunError: it is not a run folder, something in it is missing or damaged, or code that it needs is missing.
    """
    plugins.import_modules(imports)
    if isinstance(source, Pretrained):
        return _open_file(source, build, task)
    place = os.fspath(source)
    if place.endswith(".safetensors") or (place in pretrained_names() and not os.path.exists(place)):
        return _open_file(read_pretrained(place), build, task)
    settings = read_settings(place)
    read = partial(read_weights, Path(place), settings)
    return LoadedRun(place, settings, read_shapes(place), read_sources(place), read, build, task)


@dataclass(frozen=True)
class LoadedRun:
    """A trained run. Its networks are in the order of `settings.members`: all seeds of the first variant, and so on."""

    name: str
    settings: Settings
    shapes: SimpleNamespace
    """What the task recorded about itself: input_size, output_size, vocabulary, readout and more."""
    sources: Mapping[str, Any]
    """Where the task, unit and builder were defined; see `training.sources`."""
    _read: Callable[[str | int], Weights]
    _given_build: Builder | None = None
    _given_task: Task | type[Task] | None = None

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """What the task does to raw inputs, as it recorded it; see `Task.preprocessing`."""
        return getattr(self.shapes, "preprocessing", {})

    @cached_property
    def networks(self) -> tuple[nn.Module, ...]:
        """All networks with the weights selected on validation data, on the CPU, in evaluation mode."""
        return self.checkpoint("best")

    def checkpoint(self, which: str | int = "best") -> tuple[nn.Module, ...]:
        """All networks with the weights selected on validation data ("best"), of the newest checkpoint ("last"), or of
        the checkpoint after an optimiser step (its number)."""
        found = self._read(which)
        return tuple(fill(self.initial(index), own, found.where) for index, own in enumerate(found.networks))

    def validated(self, which: str | int = "best") -> tuple[bool, ...]:
        """Of every network, whether it can be used: False if "best" are its initial weights, since it never had a
        finite validation score."""
        return self._read(which).validated

    def initial(self, index: int) -> nn.Module:
        """The network at `index` among the members, as it was before training."""
        member = self.settings.members[index]
        given: Any = self._given_task if isinstance(self._given_task, Task) else self.shapes
        try:
            with torch.random.fork_rng(devices=[]):  # a user's builder may draw from the global generator
                model = self._build(self.settings.of_variant(member.variant), given, member.seed)
                return in_precision(model, self.settings).eval()
        except AttributeError as error:
            if error.obj is not self.shapes:
                raise
            raise RunError(
                f"{self.name} has no {error.name!r} in its task.json, but its builder needs it; pass task= in Python"
            ) from error

    def of_variant(
        self, variant: int | None = None, which: str | int = "best"
    ) -> tuple[Settings, dict[int, nn.Module]]:
        """The settings and the networks, by seed, of the run or of one of its variants, counted from 0."""
        variants, seeds = self.settings.variants, self.settings.seeds
        if variant not in (range(len(variants)) if variants else (None,)):
            if not variants:
                raise ValueError(f"variant is {variant}, but {self.name} has no variants; leave it out")
            known = "; ".join(f"{index}: {options}" for index, options in enumerate(variants))
            raise ValueError(f"variant is {variant}; the variants of {self.name} are {known}; give one by its number")
        start = (variant or 0) * len(seeds)
        chosen = self.checkpoint(which)[start : start + len(seeds)]
        settings = self.settings if variant is None else self.settings.of_variant(variants[variant])
        return settings, dict(zip(seeds, chosen, strict=True))

    def load_task(self, *, data_dir: str | None = None, offline: bool | None = None) -> Task:
        """The task with its data, built with the options of the training."""
        name, own = self.settings.task, self.sources.get("task")
        # The trained task may have had options that the settings do not list; those in its record count.
        options = {**self.settings.task_options, **getattr(self.shapes, "options", {})}
        where = (data_dir or self.settings.data_dir, self.settings.offline if offline is None else offline)
        given: Any = self._given_task
        if given is None and not tasks.is_registered(name, own):
            if own is None:
                raise RunError(
                    f"{self.name} was trained on the task {name!r}, which is not known here; "
                    "import the module that registers it (--import MODULE), or pass task= in Python"
                )
            given = self._own(own, "its task", "task=")
        if isinstance(given, Task):
            if given.name != name:
                raise ValueError(f"task is {given.name!r}, but {self.name} was trained on {name!r}; pass that task")
            return given
        record = getattr(self.shapes, "series", None)
        if record is not None and name == "file":  # what it learned from its series, however it did that
            options["like"] = record
        task = tasks.load(name if given is None else given, where[0], offline=where[1], **options)
        require_same_series(record, task.describe().get("series"), self.name)
        return task

    def evaluate(
        self,
        split: Split = "test",
        which: str | int = "best",
        *,
        device: str | None = None,
        data_dir: str | None = None,
        offline: bool | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[tasks.Metric, Scores]:
        """The task's metric and the scores of all networks on a split; `progress` is called before each batch."""
        place = device_of_run(device, self.settings.device)
        task = self.load_task(data_dir=data_dir, offline=offline).to(place)
        return task.metric, score_networks(self.checkpoint(which), task, split, self.settings, progress)

    @cached_property
    def _build(self) -> Builder:
        record = self.sources.get("build")
        if self._given_build is not None:
            return self._given_build
        if record is not None:
            return self._own(record, "its model's builder", "build=")
        if self.settings.unit not in units.available():
            at = (self.sources.get("unit") or {}).get("module")
            module = f"--import {at}" if at else "--import MODULE"
            raise RunError(
                f"{self.name} was trained with the unit {self.settings.unit!r}, which is not registered; import the "
                f"module that registers it ({module}), or pass build= in Python"
            )
        return build_model

    def _own(self, record: Mapping[str, Any], what: str, argument: str) -> Any:
        try:
            return plugins.resolve(record, what)
        except plugins.MissingCodeError as error:
            raise RunError(f"{self.name} needs code that is not here: {error}, or pass {argument} in Python") from error


def _open_file(file: Pretrained, build: Builder | None, task: Task | type[Task] | None) -> LoadedRun:
    about = file.about
    settings = Settings.from_dict(about["settings"])

    def read(which: str | int) -> Weights:
        if which != "best":
            raise ValueError(f"which is {which!r}; {file.name} is a saved model, which has only the selected weights")
        return Weights([dict(file.tensors)], file.name, (True,))

    shapes = SimpleNamespace(**about["shapes"])
    return LoadedRun(file.name, settings, shapes, check_sources(about.get("sources", {}), file.name), read, build, task)
