"""Reads run folders, finished or not, and merges runs that differ only in their seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.paper import Cell, find_cell
from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.folder import RunError, read_settings
from lipschitz_rnn.training.reading import is_there, read_json, read_metrics, read_result
from lipschitz_rnn.training.settings import PLACE_SETTINGS

_DEPTH = 4  # how far below a given folder runs are looked for
METRICS = ("accuracy", "bits", "perplexity", "mse")


@dataclass(frozen=True)
class Run:
    """One folder. `result` is None while the run is not complete."""

    path: Path
    settings: Settings
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    result: dict[str, Any] | None
    variant: dict[str, Any] = field(default_factory=dict)  # the unit options in which it differs from its neighbours

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def metric(self) -> str:
        for record in self.of_kind("validation"):
            return next((name for name in METRICS if name in record), "loss")
        return self.result["metric"] if self.result else "accuracy"

    @property
    def percent(self) -> bool:
        return self.metric == "accuracy"

    @property
    def seconds(self) -> float:
        return max((record.get("seconds", 0.0) for record in self.records), default=0.0)

    def curve(self, kind: str, name: str) -> tuple[list[int], list[list[float | None]]]:
        """Steps and, for every seed, the values of one number over the run."""
        records = [record for record in self.of_kind(kind) if name in record]
        columns = zip(*(record[name] for record in records), strict=True)
        return [record["step"] for record in records], [list(column) for column in columns]

    def steps_per_epoch(self) -> int:
        validated = self.of_kind("validation")
        return validated[0]["step"] // (validated[0]["epoch"] + 1) if validated else 1


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    runs: list[Run]

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings

    @property
    def cell(self) -> Cell | None:
        """The paper's number for these settings."""
        return find_cell(self.settings)

    @property
    def title(self) -> str:
        settings = self.settings
        parts = [settings.task, *(f"{key} {value}" for key, value in settings.task_options.items())]
        parts += [settings.unit, f"N = {settings.hidden_size}"]
        if "integrator" in settings.unit_options:
            parts.append(str(settings.unit_options["integrator"]))
        parts += [f"{key} = {value}" for key, value in self.runs[0].variant.items()]
        return ", ".join(parts)

    def seeds(self) -> list[dict[str, Any]]:
        """Every seed's result, of the runs that are complete."""
        return [seed for run in self.runs if run.result for seed in run.result["seeds"]]

    def scores(self, name: str) -> list[float]:
        return [seed[name] for seed in self.seeds() if seed[name] is not None]


def read_run(path: Path) -> Run:
    """A run folder, finished or not. Raises RunError where a file of it cannot be used."""
    settings = read_settings(path)
    networks = len(settings.members)
    environment = read_json(path / "environment.json") if is_there(path / "environment.json") else {}
    result = read_result(path, networks) if is_there(path / "result.json") else None
    return Run(path, settings, environment, read_metrics(path, networks), result)


def split_variants(run: Run) -> list[Run]:
    """A run with variants as a run for each: its settings, its columns of every record, its part of the result."""
    settings = run.settings
    if not settings.variants:
        return [run]
    parts = []
    for index, variant in enumerate(settings.variants):
        own = slice(index * len(settings.seeds), (index + 1) * len(settings.seeds))
        records = [
            {k: v[own] if isinstance(v, list) and len(v) == len(settings.members) else v for k, v in record.items()}
            for record in run.records
            if record.get("variant", variant) == variant
        ]
        result = run.result and run.result | {"seeds": run.result["seeds"][own]}
        of_variant = settings.of_variant(variant)
        parts.append(replace(run, settings=of_variant, records=records, result=result, variant=dict(variant)))
    return parts


def _below(path: Path) -> list[Path]:
    """config.json of the run folders below a folder; bounded, so that a whole disk given by mistake is no search."""
    return sorted(found for depth in range(1, _DEPTH + 1) for found in path.glob("*/" * depth + "config.json"))


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The run folders among `paths` and below them; of a run with variants, each for itself."""
    found: dict[Path, list[Run]] = {}
    for path in paths:
        configs = [path / "config.json"] if is_there(path / "config.json") else _below(path)
        if not configs:
            raise RunError(
                f"{path} holds no run: neither it nor a folder up to {_DEPTH} levels below it has a config.json"
            )
        for config in configs:
            found.setdefault(config.parent.resolve(), split_variants(read_run(config.parent)))
    return [run for runs in found.values() for run in runs]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of equal settings, whatever their seeds and machines, in the order in which they were given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = run.settings.to_dict()
        key = {name: value for name, value in values.items() if name not in PLACE_SETTINGS | {"seeds", "log_steps"}}
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    return [Group(same) for same in groups.values()]
