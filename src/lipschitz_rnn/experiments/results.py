"""Committed results: each run is one small JSON file, without its weights and without paths of its machine.

```
results/<study>/<name with dashes>.json      results/mnist/ordered-mnist-lipschitz-128-euler.json
results/<study>/notes.md                     optional: notes on the numbers, printed on the page
```

A campaign exports each run folder with `export_run` and writes it with `write_record`. The page of a study is made from
its records only. Records are not trusted: their study and name become file names, so both are checked, and so is the
type of every value.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lipschitz_rnn import tasks
from lipschitz_rnn.documents.files import check_name, check_study, readable_json
from lipschitz_rnn.documents.numbers import rounded
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.folder import RunError
from lipschitz_rnn.training.history import Run, read_run
from lipschitz_rnn.training.reading import read_json
from lipschitz_rnn.training.settings import PLACE_SETTINGS, Settings

SCHEMA = 1
_SCORES = ("validation", "test", "test_last")
_ENVIRONMENT = ("lipschitz_rnn", "commit", "python", "torch", "numpy", "cuda", "platform", "device")


Curves = Sequence[Sequence[float | None]]  # for every member, one value per epoch


class ResultsError(RunError):
    """A results file is missing or cannot be used; the message names it."""


@dataclass(frozen=True)
class Record:
    """One run with all its members (seeds, or variants of the unit), as committed.

    Scores are the task's metric as reported (accuracy as a fraction), or None if there is no score.

    kind: the column or group of its study, e.g. paper, tuned, baseline.
    seeds: one entry per member: seed, selected_epoch, validation, test, test_last, diverged_step.
    curves: name -> one value per epoch for every member: train_loss, validation_loss, validation_<metric>; in some
        studies also A_real_max and W_real_max, the largest real parts of the eigenvalues.
    measures: additional measurements: name -> one value per member, or whatever the study's page reads.
    command: repeats the run; why: the reason for its settings, if they are not the paper's.
    """

    study: str
    name: str
    kind: str
    settings: Mapping[str, Any]
    seeds: Sequence[Mapping[str, Any]]
    curves: Mapping[str, Curves]
    metric: str
    percent: bool
    higher_is_better: bool
    parameters: int
    steps: int
    seconds: float
    ensemble: str
    environment: Mapping[str, Any]
    command: str = ""
    why: str = ""
    measures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return record_file(self.study, self.name)

    @cached_property
    def setup(self) -> Settings:
        """The settings of the run, typed."""
        return Settings.from_dict(self.settings)

    @property
    def at_once(self) -> int:
        """How many runs shared the machine while it trained."""
        return int(self.measures.get("cells_at_once", 1))

    def scores(self, name: str = "test") -> list[float]:
        """One score (test, test_last or validation) of every member that has it; of one that diverged, none: it would
        be that of the weights before it did.
        """
        return scores_of(self.seeds, name)

    @property
    def diverged(self) -> int:
        """How many members diverged."""
        return count_diverged(self.seeds)

    def best(self) -> float | None:
        """The best test score, or None if no network has one."""
        return (max if self.higher_is_better else min)(self.scores(), default=None)


def scores_of(seeds: Sequence[Mapping[str, Any]], name: str = "test") -> list[float]:
    """One finite score of every network that has it and did not diverge."""
    return [seed[name] for seed in seeds if not is_lost(seed) and seed[name] is not None and math.isfinite(seed[name])]


def is_lost(seed: Mapping[str, Any]) -> bool:
    """Whether a network diverged or never had a finite validation score, for which earlier versions recorded the test
    score of its initial weights."""
    return seed.get("diverged_step") is not None or (seed["validation"] is None and seed["test_last"] is None)


def count_diverged(seeds: Sequence[Mapping[str, Any]]) -> int:
    return sum(seed.get("diverged_step") is not None for seed in seeds)


def checked_record(record: Record) -> Record:
    """The record; ValueError if a value has the wrong type or a name is not plain."""
    check_study(record.study)
    check_name(record.name)
    for item in dataclasses.fields(record):
        value, (kind, words) = getattr(record, item.name), _KINDS[str(item.type).partition("[")[0]]
        if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
            raise ValueError(f"{item.name} is {value!r:.200}; it must be {words}")
    try:
        settings = Settings.from_dict(record.settings)
    except TypeError as error:
        raise ValueError(str(error)) from error
    for seed in record.seeds:
        if not isinstance(seed, Mapping) or not all(_is_number(seed.get(name, "")) for name in _SCORES):
            raise ValueError(f"an entry of seeds is {seed!r:.200}; it must hold the scores {', '.join(_SCORES)}")
    for name, curves in record.curves.items():
        rows = isinstance(curves, Sequence) and all(isinstance(row, Sequence) for row in curves)
        if not rows or not all(_is_number(value) for row in curves for value in row):
            raise ValueError(f"the curve {name} is {curves!r:.200}; it must be a list of numbers for every network")
    _require_possible(record, settings.epochs)
    return record


def _require_possible(record: Record, epochs: int) -> None:
    """ValueError for numbers that no run can have."""
    if not record.seconds >= 0.0:
        raise ValueError(f"seconds is {record.seconds!r}; it must be at least 0")
    seen: set[str] = set()
    for seed in record.seeds:
        for name in _SCORES if record.percent else ():
            if seed[name] is not None and 1.0 < seed[name] < math.inf:
                raise ValueError(
                    f"{name} of seed {seed.get('seed')} is {seed[name]!r}; it must be a fraction, at most 1"
                )
        member = f"seed {seed.get('seed')}" + (f", {seed['variant']}" if seed.get("variant") else "")
        if member in seen:
            raise ValueError(f"{member} occurs twice among seeds; each network must occur once")
        seen.add(member)
        if (chosen := seed.get("selected_epoch")) is not None and not 0 <= chosen <= epochs:
            raise ValueError(
                f"selected_epoch of {member} is {chosen!r}; it must be from 0 to the {epochs} epochs trained"
            )


# Annotation of a field of Record -> the type its value must have, and what messages call it.
_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "text"), "bool": (bool, "true or false"), "int": (int, "an integer"),
    "float": (int | float, "a number"), "Mapping": (Mapping, "an object"), "Sequence": (Sequence, "a list"),
}  # fmt: skip


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def record_file(study: str, name: str) -> str:
    """The path of a record in the results folder; ValueError if a name would lead elsewhere."""
    check_study(study)
    check_name(name)
    return f"{study}/{name.replace('/', '-')}.json"


def export_run(folder: Path, study: str, name: str, *, commit: str | None = None, **facts: Any) -> Record:
    """The record of a finished run folder; `facts` are additional curves and other fields of `Record`.

    `commit` is recorded if the run did not know its own.
    """
    run = read_run(folder)
    result = run.result or result_of_diverged(run)
    if result is None:
        raise ResultsError(f"{folder} is not complete: it has no result.json; resume it first")
    known = {**run.environment, "commit": run.environment.get("commit") or commit}
    return describe_run(dataclasses.replace(run, environment=known, result=result), study, name, **facts)


def result_of_diverged(run: Run) -> dict[str, Any] | None:
    """The result of a run without result.json in which every network diverged, without scores; otherwise None."""
    steps = diverged_steps(run)
    if steps is None:
        return None
    empty = dict.fromkeys(("selected_epoch", *_SCORES))
    seeds = [
        {"seed": member.seed, **empty, "diverged_step": step, "variant": dict(member.variant)}
        for member, step in zip(run.settings.members, steps, strict=True)
    ]
    metric = tasks.info(run.settings.task).metric
    named = {"metric": metric.name, "percent": metric.percent, "higher_is_better": metric.higher_is_better}
    size = {"parameters": 0, "steps": max(steps), "ensemble": ""}
    return {**named, **size, "seconds": run.seconds, "seeds": seeds}


def diverged_steps(run: Run) -> list[int] | None:
    """The step at which each network diverged; None if one of them did not."""
    known = {(event.get("seed"), str(event.get("variant", {}))): event["step"] for event in run.of_kind("diverged")}
    # Of the part of a run that is one variant, the members have none, but its lines of metrics still name it.
    steps = [known.get((member.seed, str(dict(member.variant) or run.variant))) for member in run.settings.members]
    return None if any(step is None for step in steps) else [step for step in steps if step is not None]


def describe_run(
    run: Run, study: str, name: str, *, curves: Mapping[str, Curves] | None = None, **facts: Any
) -> Record:
    """The record of a run; an unfinished one has no scores."""
    result: dict[str, Any] = {"seeds": [], "higher_is_better": False, "parameters": 0, "steps": 0, "ensemble": ""}
    result |= run.result or {"metric": run.metric, "percent": run.percent, "seconds": run.seconds}
    digits = dict.fromkeys(_SCORES, 6)
    copied = ("metric", "percent", "higher_is_better", "parameters", "steps", "ensemble")
    return Record(
        study=study,
        name=name,
        settings={key: value for key, value in run.settings.to_dict().items() if key not in PLACE_SETTINGS},
        seeds=[{key: rounded(value, digits.get(key)) for key, value in seed.items()} for seed in result["seeds"]],
        curves={**_curves(run), **(curves or {})},
        seconds=round(result["seconds"], 1),
        environment={key: run.environment.get(key) for key in _ENVIRONMENT},
        **{"kind": "paper", **{key: result[key] for key in copied}, **facts},
    )


def _curves(run: Run) -> dict[str, list[list[float | None]]]:
    _, scores = run.curve("validation", run.metric)
    _, losses = run.curve("validation", "loss")
    curves = {"train_loss": run.training_losses(), "validation_loss": losses, f"validation_{run.metric}": scores}
    return {name: [[rounded(value, 4) for value in member] for member in values] for name, values in curves.items()}


def check_results_place(folder: Path, study: str) -> None:
    """Raise now, not after the training, if the records of a study cannot be written; nothing is written."""
    own = folder.absolute() / study
    place = next(each for each in (own, *own.parents) if each.exists())
    if not place.is_dir():
        raise ResultsError(f"records cannot be written to {folder}: {place} is a file; choose another --results")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ResultsError(
            f"records cannot be written to {folder}: {place} is not writable; change its permissions, or choose "
            "another --results"
        )


def write_record(record: Record, folder: Path) -> Path:
    """Write a record atomically into the results folder."""
    checked_record(record)
    path = folder / record.file
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"schema": SCHEMA, **dataclasses.asdict(record)}
    atomic_write(path, (readable_json(values) + "\n").encode())
    return path


def read_record(path: Path) -> Record:
    """Read one record; ResultsError names the file and what is wrong with it."""
    fix = "restore it from a copy, or delete it and export the run again"
    values = read_json(path, ResultsError, fix)
    if (schema := values.pop("schema", None)) != SCHEMA:
        raise ResultsError(f"{path} has schema {schema}; this version reads schema {SCHEMA}; {fix}")
    names = {item.name for item in dataclasses.fields(Record)}
    optional = {"command", "why", "measures"}
    for problem, found in (("lacks", names - optional - set(values)), ("has an unknown", set(values) - names)):
        if found:
            raise ResultsError(f"{path} {problem} {min(found)!r}; a record has {', '.join(sorted(names))}")
    try:
        return checked_record(Record(**values))
    except ValueError as error:
        raise ResultsError(f"{path} cannot be used: {error}; {fix}") from error


def read_records(folder: Path, study: str | None = None) -> list[Record]:
    """All records in a results folder, or those of one study, sorted by file name; hidden folders hold none."""
    if not folder.is_dir():
        raise ResultsError(f"{folder} is not a folder of results")
    records = []
    for path in sorted(folder.glob(f"{study or '[!.]*'}/*.json")):
        records.append(read_record(path))
        if records[-1].study != path.parent.name:
            raise ResultsError(f"{path} has the study {records[-1].study!r}; it must be the name of its folder")
        if (own := folder / records[-1].file) != path:
            raise ResultsError(f"{path} holds the run {records[-1].name!r}, whose file is {own}; rename or delete it")
    return records
