"""The Hessian of one network at several epochs, each measurement in a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lipschitz_rnn.documents.numbers import rounded
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.target_loss import Taken, load_taken, take_at_loss
from lipschitz_rnn.robustness.hessian_spectrum import NotConverged
from lipschitz_rnn.robustness.measuring import unit_hessian
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training import RunError, Settings
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.processes import Watch
from lipschitz_rnn.training.reading import read_json

NUMBERS = ("lambda_max", "lambda_min", "trace", "trace_error", "loss")


@dataclass(frozen=True)
class Grid:
    """The training losses at which networks are measured, and how; all of it is in the record."""

    losses: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005)
    samples: int = 2000  # of the training split
    probes: int = 16
    lanczos: int = 30
    tolerance: float = 0.01


def epochs_at_losses(folder: Path, losses: Sequence[float]) -> list[dict[float, Taken]]:
    """For every network of a run, the first epoch at each of the losses that it reached."""
    found = {loss: take_at_loss(folder, loss) for loss in losses}
    return [
        {loss: each for loss in losses if (each := found[loss][index]) is not None and each.reached}
        for index in range(len(found[losses[0]]))
    ]


@dataclass(frozen=True)
class CurvedNetwork:
    """The network at `index` in a finished run, with the epochs at which it is measured."""

    name: str
    folder: Path
    settings: Settings
    index: int
    taken: Mapping[float, Taken]
    grid: Grid

    def points(self) -> list[dict[str, Any]]:
        """One entry per loss that is reached and measured: the loss asked for, epoch, its mean loss, the Hessian."""
        known = ((loss, taken, self._read(taken)) for loss, taken in self.taken.items())
        return [
            {"at": loss, "epoch": taken.epoch, "train_loss": rounded(taken.loss, 5), **measured}
            for loss, taken, measured in known
            if measured is not None
        ]

    def is_complete(self) -> bool:
        return all(self._read(taken) is not None for taken in self.taken.values())

    def complete(self, watch: Watch) -> None:
        """Measure what is missing; losses that select the same epoch share a measurement.

        One that fails, because of the weights, is told at the end: the others are still measured.
        """
        watch(self.name).note(f"measuring at {len(self.taken)} losses")
        started = time.monotonic()
        device = choose_device(self.settings.device)
        task = load_task(self.settings).to(device)
        failures = []
        for loss, taken in self.taken.items():
            if self._read(taken) is None:
                network = load_taken(self.folder, self.index, taken).to(device)
                try:
                    self._write(taken, _measure(network, task, self.grid))
                except (ValueError, NotConverged) as error:
                    failures.append(f"at a loss of {loss:g}, {error}")
        watch(self.name).note(f"measured in {time.monotonic() - started:.0f} s")
        if failures:
            raise RunError("; ".join(failures))

    def _file(self, taken: Taken) -> Path:
        return self.folder / "curvature" / f"network-{self.index}-epoch-{taken.epoch:04d}.json"

    def _read(self, taken: Taken) -> dict[str, Any] | None:
        """The stored measurement, if it was made in the same way."""
        if not self._file(taken).exists():
            return None
        stored = read_json(self._file(taken), fix="delete it to measure the network again")
        measured = stored.get("measured")
        return measured if stored.get("of") == self._method() and isinstance(measured, dict) else None

    def _write(self, taken: Taken, measured: Mapping[str, Any]) -> None:
        self._file(taken).parent.mkdir(exist_ok=True)
        kept = {"of": self._method(), "measured": measured}
        atomic_write(self._file(taken), (json.dumps(kept, indent=1) + "\n").encode())

    def _method(self) -> dict[str, Any]:
        """What a measurement depends on: not on the other losses of the grid."""
        return {name: value for name, value in asdict(self.grid).items() if name != "losses"}


def _measure(network: nn.Module, task: Task, grid: Grid) -> dict[str, Any]:
    how: dict[str, Any] = {"probes": grid.probes, "lanczos": grid.lanczos, "tolerance": grid.tolerance}
    found = unit_hessian(network, task, grid.samples, **how, batch_size=grid.samples)  # one graph for all products
    return {**{name: rounded(float(getattr(found, name)), 6) for name in NUMBERS}, "samples": found.samples}
