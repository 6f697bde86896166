"""One run of a sweep, as an engine executes it: train or resume, report epochs to the pruner, stop early if told."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.experiments.sweeps.reading import Sweep
from lipschitz_rnn.training import Diverged, Settings, Watcher
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.folder import RunInUse, read_settings
from lipschitz_rnn.training.reading import is_there, read_json

PRUNED = "pruned.json"
_PATIENCE = 120.0  # seconds to wait for the process that a dead node has left in the folder


class Pruned(Exception):
    """The pruner stopped the run: others were better at the same epoch."""


@dataclass(frozen=True)
class Reporting:
    """How a run reports to the pruner of its sweep."""

    sweep: Sweep
    folder: Path
    number: int
    metric: str
    higher_is_better: bool
    epochs: int


@dataclass(frozen=True)
class Work:
    """One run, picklable. It can be called again after its process died: it goes on from its last checkpoint."""

    settings: Settings
    folder: Path
    reporting: Reporting | None = None
    threads: int | None = None

    def __call__(self) -> None:
        if is_over(self.folder, self.settings.epochs):
            return
        self._set_threads()
        watcher = Watcher() if self.reporting is None else PruneWatcher(self.reporting)
        waited = 0.0
        while True:
            try:
                train(self.settings, self.folder, resume=True, watcher=watcher)
            except RunInUse:  # a node was lost, but its process lives some seconds longer
                if waited > _PATIENCE:
                    raise
                waited += 0.5
                time.sleep(0.5)
                continue
            except Diverged:
                pass  # a result too: metrics.jsonl tells
            except Pruned as pruned:
                atomic_write(self.folder / PRUNED, (json.dumps({"reason": str(pruned)}) + "\n").encode())
            return

    def _set_threads(self) -> None:
        """As many as the first part of the run had: the last bits of its weights depend on it."""
        environment = self.folder / "environment.json"
        recorded = read_json(environment).get("threads") if is_there(environment) else None
        count = recorded if isinstance(recorded, int) and recorded > 0 else self.threads
        if count is not None:
            torch.set_num_threads(count)


def is_over(folder: Path, epochs: int = 0) -> bool:
    """Whether there is nothing left to train: complete with so many epochs, pruned, or all networks diverged."""
    from lipschitz_rnn.experiments.results import result_of_diverged
    from lipschitz_rnn.training.history import read_run

    if (folder / PRUNED).exists() or ((folder / "result.json").exists() and _has(folder, epochs)):
        return True
    return (folder / "metrics.jsonl").exists() and result_of_diverged(read_run(folder)) is not None


def _has(folder: Path, epochs: int) -> bool:
    return not epochs or read_settings(folder).epochs >= epochs


class PruneWatcher(Watcher):
    """Reports the validation score of every epoch, the mean over seeds, and stops the run if the pruner says so."""

    def __init__(self, reporting: Reporting) -> None:
        from lipschitz_rnn.experiments.sweeps.search import import_optuna, open_study

        self._metric = reporting.metric
        facts = (reporting.metric, reporting.higher_is_better, reporting.epochs)
        study = open_study(reporting.sweep, reporting.folder, *facts)
        frozen = study.get_trials(deepcopy=False)[reporting.number]
        self._reported = set(frozen.intermediate_values)
        # One that failed before and has another try is over for Optuna, which takes no more reports of it.
        self._trial = None if frozen.state.is_finished() else import_optuna().trial.Trial(study, frozen._trial_id)

    def record(self, record: Mapping[str, Any]) -> None:
        if self._trial is None or record["kind"] != "validation":
            return
        values = [value for value in record[self._metric] if value is not None]
        epoch = int(record["epoch"])
        if len(values) < len(record[self._metric]) or not all(map(math.isfinite, values)):
            return  # a network diverged: the run ends by itself, or goes on with the others
        if epoch not in self._reported:  # not again after an interruption
            self._trial.report(sum(values) / len(values), epoch)
            self._reported.add(epoch)
        if self._trial.should_prune():
            raise Pruned(f"pruned after epoch {epoch + 1}")
