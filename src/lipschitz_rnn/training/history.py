"""Reads the training history of a run folder, finished or not: settings, metrics, result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn.tasks.base import METRICS
from lipschitz_rnn.training.folder import RunError, read_settings
from lipschitz_rnn.training.reading import is_there, read_json, read_metrics, read_result
from lipschitz_rnn.training.settings import Settings

# How many levels below a folder to search for runs: those of `reproduce` are up to seven below its --out. Limited,
# so that a disk given by mistake is not searched completely.
_DEPTH = 7


@dataclass(frozen=True)
class Run:
    """One run folder. `result` is None until the run is complete."""

    path: Path
    settings: Settings
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    result: dict[str, Any] | None
    variant: dict[str, Any] = field(default_factory=dict)  # the unit options that differ between variants
    fingerprint: str | None = None  # of the data, if they are from a file of one's own

    @property
    def title(self) -> str:
        """For example: digits, lipschitz, N = 64, euler, beta = 0.5."""
        settings = self.settings
        parts = [settings.task, *(f"{key} {value}" for key, value in settings.task_options.items())]
        parts += [settings.unit, f"N = {settings.hidden_size}"]
        parts += [str(value) for key, value in settings.unit_options.items() if key == "integrator"]
        return ", ".join([*parts, *(f"{key} = {value}" for key, value in self.variant.items())])

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def metric(self) -> str:
        """The task's metric; for an unfinished run, the number next to the validation loss."""
        if self.result is not None:
            return str(self.result["metric"])
        names = [name for record in self.of_kind("validation") for name, values in record.items()
                 if isinstance(values, list) and name != "loss"]  # fmt: skip
        return names[0] if names else "loss"

    @property
    def percent(self) -> bool:
        if self.result is not None:
            return bool(self.result["percent"])
        return self.metric in METRICS and METRICS[self.metric].percent

    @property
    def seconds(self) -> float:
        return max((record.get("seconds", 0.0) for record in self.records), default=0.0)

    def curve(self, kind: str, name: str) -> tuple[list[int], list[list[float | None]]]:
        """Steps and, for every seed, the values of one quantity over the run."""
        records = [record for record in self.of_kind(kind) if name in record]
        columns = zip(*(record[name] for record in records), strict=True)
        return [record["step"] for record in records], [list(column) for column in columns]

    def steps_per_epoch(self) -> int:
        validated = self.of_kind("validation")
        return validated[0]["step"] // (validated[0]["epoch"] + 1) if validated else 1

    def training_losses(self) -> list[list[float | None]]:
        """Mean training loss of every epoch for each member: lines of metrics, weighted by the steps they cover."""
        sums: dict[int, list[list[tuple[int, float | None]]]] = {}
        before = 0
        for record in self.of_kind("train"):
            members = sums.setdefault(record["epoch"], [[] for _ in record["loss"]])
            for member, loss in zip(members, record["loss"], strict=True):
                member.append((record["step"] - before, loss))
            before = record["step"]
        means = [[_weighted(member) for member in sums[epoch]] for epoch in sorted(sums)]
        return [list(member) for member in zip(*means, strict=True)]

    def by_variant(self) -> list[Run]:
        """One run per variant: its settings, its columns of every record, its part of the result."""
        settings, parts = self.settings, []
        for index, variant in enumerate(settings.variants):
            own = slice(index * len(settings.seeds), (index + 1) * len(settings.seeds))
            records = [
                {k: v[own] if isinstance(v, list) and len(v) == len(settings.members) else v for k, v in record.items()}
                for record in self.records
                if record.get("variant", variant) == variant
            ]
            result = self.result and self.result | {"seeds": self.result["seeds"][own]}
            of_variant = settings.of_variant(variant)
            parts.append(replace(self, settings=of_variant, records=records, result=result, variant=dict(variant)))
        return parts or [self]


def _weighted(values: Sequence[tuple[int, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in values if value is not None]
    if len(known) < len(values):
        return None  # it diverged in this epoch
    return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)


def read_run(path: Path) -> Run:
    """Read a run folder, finished or not. Raises RunError if one of its files cannot be used."""
    settings = read_settings(path)
    networks = len(settings.members)
    environment = read_json(path / "environment.json") if is_there(path / "environment.json") else {}
    result = read_result(path, networks) if is_there(path / "result.json") else None
    return Run(
        path, settings, environment, read_metrics(path, networks), result, fingerprint=_fingerprint(path, settings)
    )


def _fingerprint(path: Path, settings: Settings) -> str | None:
    if settings.task != "file":
        return None
    try:
        series = read_json(path / "task.json").get("series")
    except RunError:  # it is not needed for anything else here
        return None
    found = series.get("fingerprint") if isinstance(series, dict) else None
    return found if isinstance(found, str) else None


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in `paths` and their subfolders; a run with variants counts as one run per variant."""
    found: dict[Path, list[Run]] = {}
    for path in paths:
        folders = sorted(_run_folders(path))
        if not folders:
            raise RunError(_no_run(path))
        for folder in folders:
            found.setdefault(folder.resolve(), read_run(folder).by_variant())
    return [run for runs in found.values() for run in runs]


def holds_runs(path: Path) -> bool:
    """Whether `find_runs` finds a run there."""
    return any(True for _ in _run_folders(path))


def _no_run(path: Path) -> str:
    """Why there is no run to read."""
    if not is_there(path):
        return f"there is no folder {path}; give a run folder, or a folder that holds runs"
    if not path.is_dir():
        return f"{path} is a file; give a run folder, or a folder that holds runs"
    try:
        os.listdir(path)
    except OSError as error:
        return f"{path} cannot be searched for runs: {error.strerror}; change its permissions"
    return f"{path} holds no run: neither it nor a folder up to {_DEPTH} levels below it has a config.json"


def _run_folders(path: Path) -> Iterator[Path]:
    """`path` if it is a run, else the runs below it; a run holds no others, and hidden folders hold none.

    Level by level, and each folder once: links may lead to the same folder in several ways, or in a circle.
    """
    seen: set[tuple[int, int]] = set()
    level = [path]
    for depth in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            identity = _identity(folder)
            if identity is None or identity in seen:
                continue
            seen.add(identity)
            if is_there(folder / "config.json"):
                yield folder
            elif depth < _DEPTH:
                below += _subfolders(folder)
        level = below


def _identity(folder: Path) -> tuple[int, int] | None:
    """The same for all names of a folder; None if it is not there."""
    try:
        status = folder.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _subfolders(path: Path) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    except (OSError, ValueError):  # may not be read, or went away
        return []
    return [path / name for name in names if os.path.isdir(path / name)]  # False for a link that leads nowhere
