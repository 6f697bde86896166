"""Puts configurations that can share an ensemble into one run, as its variants."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lipschitz_rnn import tasks
from lipschitz_rnn.experiments.sweeps.space import Point
from lipschitz_rnn.training import Settings, build_model
from lipschitz_rnn.training.variation import stackable_options


@dataclass(frozen=True)
class Trial:
    """One configuration of a sweep."""

    number: int
    point: Point
    settings: Settings


@dataclass(frozen=True)
class Job:
    """One run: a trial, or several as the variants of an ensemble, in their order."""

    name: str
    trials: tuple[Trial, ...]
    settings: Settings


class Packer:
    """Packs trials; remembers which options each unit can vary, which is found by building it once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._stackable: dict[str, frozenset[str]] = {}

    def pack(self, trials: Sequence[Trial]) -> list[Job]:
        """Runs of at most `at_once` networks, named by their first trial. Seeds of one trial are never separated."""
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(self._key(trial), []).append(trial)
        jobs = []
        for group in groups.values():
            size = max(1, self._at_once // len(group[0].settings.seeds))
            jobs += [_job(group[start : start + size]) for start in range(0, len(group), size)]
        return sorted(jobs, key=lambda job: job.trials[0].number)

    def _key(self, trial: Trial) -> str:
        """Equal for trials that differ only in options that can vary within a run."""
        values = trial.settings.to_dict()
        if self._at_once == 1 or trial.settings.variants:
            return str(trial.number)
        options = values.pop("unit_options")
        able = self._able(trial.settings)
        free = sorted(name for name, value in options.items() if name in able and _is_number(value))
        fixed = {name: value for name, value in options.items() if name not in free}
        return json.dumps([values, fixed, free], sort_keys=True)

    def _able(self, settings: Settings) -> frozenset[str]:
        words = {name: value for name, value in settings.unit_options.items() if not _is_number(value)}
        key = json.dumps([settings.task, settings.unit, words], sort_keys=True)
        if key not in self._stackable:
            small = dataclasses.replace(settings, hidden_size=min(settings.hidden_size, 64))
            shapes = tasks.check(settings.task, settings.data_dir, offline=settings.offline, **settings.task_options)
            try:
                found = stackable_options(build_model(small, shapes, settings.seeds[0]))
            except (ValueError, TypeError):  # options that depend on the size
                found = stackable_options(build_model(settings, shapes, settings.seeds[0]))
            self._stackable[key] = frozenset(found)
        return self._stackable[key]


def _job(trials: Sequence[Trial]) -> Job:
    first = trials[0]
    name = f"{first.number:05d}"
    if len(trials) == 1:
        return Job(name, (first,), first.settings)
    options = [trial.settings.unit_options for trial in trials]
    same = {key: value for key, value in options[0].items() if all(other[key] == value for other in options)}
    variants = tuple({key: value for key, value in each.items() if key not in same} for each in options)
    distinct = tuple(variant for index, variant in enumerate(variants) if variant not in variants[:index])
    settings = dataclasses.replace(first.settings, unit_options=same, variants=distinct if distinct[1:] else ())
    return Job(name, tuple(trials), settings)


def variant_of(job: Job, trial: Trial) -> int:
    """The place of a trial among the variants of its run. Equal configurations have the same."""
    for index, variant in enumerate(job.settings.variants):
        if all(trial.settings.unit_options[name] == value for name, value in variant.items()):
            return index
    return 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
