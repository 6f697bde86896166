"""Runs on somebody's own file: their defaults, their training, and what is measured afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lipschitz_rnn.data import (
    FileTask,
    SeriesModel,
    named_unit,
    probabilities,
    unit_step,
    with_max_step,
    with_step,
)
from lipschitz_rnn.data import metrics as measures
from lipschitz_rnn.data.calibration import calibrate, errors_of, scored_predictions
from lipschitz_rnn.data.free_runs import future_times
from lipschitz_rnn.data.intervals import Intervals
from lipschitz_rnn.data.task import SeriesTask
from lipschitz_rnn.experiments.file_baselines import baseline
from lipschitz_rnn.experiments.left_out import left_out_note, require_validated
from lipschitz_rnn.stability.studies.tracking import spectral_probe
from lipschitz_rnn.training import Result, RunError, Settings, Watcher, fit
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.preparation import check_start
from lipschitz_rnn.training.results import LOWER_RATE

ASSESSMENT = "assessment.json"
_PAIRS = 2000  # most points of predicted against true values that are kept
_WORST = 10  # series
_COVERAGE = 0.9  # of the intervals that are tried on the test split

# Chosen on made irregular series (three frequencies, 10 % of the values missing) with other seeds than the tests'.
DEFAULTS: dict[str, Any] = {
    "hidden_size": 64,
    "epochs": 60,
    "patience": 20,
    "batch_size": 32,
    "learning_rate": 0.01,
    "clip": 1.0,
    "schedule": "one-cycle",
    "warmup": 0.2,
}


def file_settings(
    options: Mapping[str, Any], changes: Mapping[str, Any], *, quick: bool = False
) -> tuple[Settings, FileTask]:
    """The settings and the task of a run on a file; reads the file, and writes nothing.

    Args:
        options: those of `FileTask`, without the step size, which follows from the unit.
        changes: settings that differ from the defaults.
    """
    unit, given = named_unit(changes.get("unit", "lipschitz"), changes.get("unit_options"))
    unit_options = with_step(unit, given)
    step = unit_step(unit, unit_options)
    asked: dict[str, Any] = {**options, "path": os.path.abspath(options["path"]), "step_size": step}
    task = FileTask(changes.get("data_dir"), **asked)
    if task.preprocessing_module.fitted.time_use == "step":  # also if regular: the series to predict may not be
        unit_options = with_max_step(unit, unit_options)
    few = {"batch_size": max(4, min(DEFAULTS["batch_size"], task.size("train") // 10))}  # ten steps per epoch
    values = DEFAULTS | few | ({"epochs": 10} if quick else {}) | dict(changes)
    values |= {"task": "file", "task_options": asked, "unit": unit, "unit_options": unit_options}
    return Settings(**values), task


def train_file(
    settings: Settings,
    task: FileTask,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Train all seeds on the task of the settings. The task is passed, so that its file is read only once."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        check_start(settings, task, folder, resume)
    return fit(settings, task, folder, resume=resume, watcher=watcher, probe=spectral_probe)


def assess(settings: Settings, task: FileTask, result: Result, folder: Path, *, certify: bool = True) -> dict[str, Any]:
    """Measure all networks on the test split, and write the numbers to the run folder.

    Predictions come from whole models, from raw values on, as they would be deployed. Networks that were never
    validated are left out, as they are by `predict`; those whose predictions are not all finite have no scores.
    """
    task = task.to("cpu")
    require_validated(folder, result.validated)
    kept = [index for index, counts in enumerate(result.validated) if counts]
    models = [SeriesModel.from_record(result.models[index].cpu(), task.record()) for index in kept]
    goals, outputs, owners = scored_predictions(models, task, "test")
    members = [settings.members[index] for index in kept]
    finite = [bool(np.isfinite(each).all()) for each in outputs]
    if not any(finite):
        raise RunError(f"{folder} has no finite predictions on its test split; {LOWER_RATE}")
    found = [each for each, good in zip(outputs, finite, strict=True) if good]
    odd = [member.name for member, good in zip(members, finite, strict=True) if not good]
    left_out = [note] if (note := left_out_note(settings.members, result.validated)) else []
    if odd:
        left_out.append(
            f"predictions on the test split are not all finite, so there are no scores of: {'; '.join(odd)}"
        )
    record: dict[str, Any] = {
        "kind": task.kind,
        "source": task.series.source,
        "targets": list(task.target.names),
        "classes": None if task.target.classes is None else list(task.target.classes),
        "networks": [member.name for member in members],
        "notes": [*task.notes(), *left_out],
        "left_out": left_out,
        "test_samples": len(goals),
        "baseline": baseline(task, goals),
    }
    if task.target.classes is not None:
        record |= _classes(goals, found, owners, task)
    else:
        record |= _numbers(goals, found, owners, task)
        intervals = calibrate(models, task, task.horizon)
        record["intervals"] = None if intervals is None else intervals.to_dict()
        record["coverage"] = None if intervals is None else _coverage(intervals, models, task)
    if task.kind == "forecast":
        record["horizon"] = _free_runs(task, models, task.horizon)
    record["certificate"] = _certificate(models) if certify else None
    atomic_write(folder / ASSESSMENT, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return record


def _classes(
    labels: npt.NDArray[Any], logits: list[npt.NDArray[Any]], owners: npt.NDArray[Any], task: SeriesTask
) -> dict[str, Any]:
    chances = [probabilities(each) for each in logits]
    classes = task.target.size
    counts = sum(measures.confusion(labels, each.argmax(1), classes) for each in chances)
    pooled, repeated = np.concatenate(chances), np.tile(labels, len(chances))
    mean = np.mean(chances, axis=0)
    wrong = _by_owner(-np.log(np.maximum(mean[np.arange(len(labels)), labels], 1e-12)), owners)
    return {
        "metrics": measures.spread([measures.class_metrics(labels, each) for each in chances]),
        "ensemble": measures.class_metrics(labels, mean) if len(chances) > 1 else None,
        "confusion": np.asarray(counts).tolist(),
        "calibration": measures.calibration(repeated, pooled),
        "calibration_error": measures.calibration_error(repeated, pooled),
        "worst": _worst(wrong, task, "cross-entropy"),
    }


def _numbers(
    values: npt.NDArray[Any], found: list[npt.NDArray[Any]], owners: npt.NDArray[Any], task: SeriesTask
) -> dict[str, Any]:
    mean = np.mean(found, axis=0)
    known = np.isfinite(values)
    misses = np.where(known, np.abs(mean - values), 0.0).sum(1) / np.maximum(known.sum(1), 1)
    errors = _by_owner(np.where(known.any(1), misses, np.nan), owners)  # a row without any value has no error
    chosen = np.random.default_rng(0).permutation(len(values))[:_PAIRS]
    whole = known.all(1)
    pairs = [[values[row].tolist(), mean[row].tolist()] for row in np.sort(chosen) if whole[row]]
    return {
        "metrics": measures.spread([measures.number_metrics(values, each) for each in found]),
        "ensemble": measures.number_metrics(values, mean) if len(found) > 1 else None,
        "pairs": pairs,
        "worst": _worst(errors, task, "mean absolute error"),
    }


def _coverage(intervals: Intervals, models: list[SeriesModel], task: FileTask) -> dict[str, Any] | None:
    """How much of the test split the intervals contain, which the networks and the intervals have not seen."""
    errors = np.abs(errors_of(models, task, "test", task.horizon))
    steps = intervals.steps
    while steps:  # as far ahead as there are enough errors
        try:
            widths = intervals.half_widths(_COVERAGE, steps)
            break
        except ValueError:
            steps -= 1
    else:
        return None
    errors = errors[:, :steps]
    known = np.isfinite(errors)
    if not known.any():
        return None
    inside = float(((errors <= widths) & known).sum() / known.sum())
    return {"asked": _COVERAGE, "found": inside, "count": int(known.sum()), "steps": steps, "widths": widths.tolist()}


def _by_owner(scores: npt.NDArray[Any], owners: npt.NDArray[Any]) -> dict[int, float]:
    """The mean score of every series."""
    known = np.isfinite(scores)
    total = np.bincount(owners[known], weights=scores[known])
    count = np.bincount(owners[known])
    return {index: float(total[index] / count[index]) for index in np.flatnonzero(count).tolist()}


def _worst(scores: Mapping[int, float], task: SeriesTask, name: str) -> list[dict[str, Any]]:
    order = sorted(scores, key=lambda index: -scores[index])[:_WORST]
    lengths = task.series.lengths
    return [
        {"series": str(task.series.ids[i]), "samples": int(lengths[i]), "score": scores[i], "measure": name}
        for i in order
    ]


def _free_runs(task: SeriesTask, models: list[SeriesModel], horizon: int, most: int = 64) -> dict[str, Any]:
    """RMSE by step ahead of free runs from the scored part of every window of the test split, and of persistence."""
    windows = task.windows["test"]
    series = task.series
    starts, limit = [], 0
    for index in range(min(most, len(windows))):
        begin = int(windows.start[index] + windows.skip[index])
        known = begin - int(series.offsets[windows.series[index]])
        if task.by_time is False:  # whole series are in the test split: their first half is the past
            known = int(windows.length[index]) // 2
            begin = int(windows.start[index]) + known
        ahead = min(horizon, int(series.offsets[windows.series[index] + 1]) - begin)
        if known >= 2 and ahead >= 1:
            starts.append((int(windows.series[index]), begin, ahead))
            limit = max(limit, ahead)
    if not starts:
        return {}
    owners, begins, aheads = (np.array(column) for column in zip(*starts, strict=True))
    past = series.segments(owners, series.offsets[owners], begins)
    columns = list(task.target.columns)
    future = np.full((len(starts), limit, len(columns)), np.nan)
    for row, (begin, ahead) in enumerate(zip(begins, aheads, strict=True)):
        future[row, :ahead] = series.values[begin : begin + ahead][:, columns]
    when = future_times(models[0], series, begins, aheads, limit)
    use_times = models[0].preprocessing.fitted.gap is not None
    values, times, lengths = past.padded()
    scale = np.array(models[0].preprocessing.fitted.scale)[columns]
    runs = [model.free_run(values, times if use_times else None, lengths, limit, when).numpy() for model in models]
    last = models[0].preprocessing.last_seen(values, lengths)[np.arange(len(starts)), lengths - 1][:, columns].numpy()

    reached = [step for step in range(limit) if np.isfinite(future[:, step]).any()]
    if not reached:
        return {}

    def by_step(predicted: npt.NDArray[Any]) -> list[float]:
        squares = ((predicted - future) / scale) ** 2
        return [float(np.sqrt(np.nanmean(squares[:, step]))) for step in reached]

    return {
        "steps": [step + 1 for step in reached],
        "rmse": [by_step(run) for run in runs],
        "persistence": by_step(np.repeat(last[:, None], limit, 1)),
        "unit": "standard deviations of the training data",
    }


def _certificate(models: list[SeriesModel]) -> dict[str, Any]:
    """What `certify` says of the models, over all times between samples that they take, a few seconds each: of the
    first that is not certified, if there is one."""
    from lipschitz_rnn.stability import certify

    for model in models:
        try:
            found = certify(model, time_limit=5.0)
        except (ValueError, TypeError, ImportError, RuntimeError) as error:
            return {"holds": None, "sentence": f"Not examined: {error}", "next_step": ""}
        if not found.holds:
            break
    return {"holds": bool(found.holds), "sentence": found.sentence(), "next_step": found.next_step or ""}
