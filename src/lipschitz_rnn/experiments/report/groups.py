"""Finds run folders, and merges runs that differ only in their seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.paper import Cell, find_cell
from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.folder import RunError
from lipschitz_rnn.training.history import Run, read_run
from lipschitz_rnn.training.reading import is_there
from lipschitz_rnn.training.settings import PLACE_SETTINGS

_DEPTH = 4  # how far below a given folder runs are looked for


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


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The run folders among `paths` and below them; a run with variants as one run for each of them."""
    found: dict[Path, list[Run]] = {}
    for path in paths:
        # Bounded, so that a whole disk given by mistake is not searched.
        below = sorted(file for depth in range(1, _DEPTH + 1) for file in path.glob("*/" * depth + "config.json"))
        configs = [path / "config.json"] if is_there(path / "config.json") else below
        if not configs:
            raise RunError(
                f"{path} holds no run: neither it nor a folder up to {_DEPTH} levels below it has a config.json"
            )
        for config in configs:
            found.setdefault(config.parent.resolve(), read_run(config.parent).by_variant())
    return [run for runs in found.values() for run in runs]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of equal settings, whatever their seeds and machines, in the order in which they were given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = run.settings.to_dict()
        key = {name: value for name, value in values.items() if name not in PLACE_SETTINGS | {"seeds", "log_steps"}}
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    return [Group(same) for same in groups.values()]
