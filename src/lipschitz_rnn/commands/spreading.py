"""The seeds of `train` on an engine: what the options ask for, and lines about the runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
from rich.console import Console

from lipschitz_rnn.commands.sweep_board import last_validation, show_epoch
from lipschitz_rnn.commands.threads import choose_threads_for_runs, usable_cores
from lipschitz_rnn.experiments.engines import make_engine
from lipschitz_rnn.experiments.engines.base import EngineName, refuse_cluster_options, slots_here
from lipschitz_rnn.experiments.seeds import plan_seeds, read_spread, train_seeds
from lipschitz_rnn.training import Result, Settings


@dataclass(frozen=True)
class Places:
    """Where groups of seeds run; see `make_engine`."""

    engine: EngineName
    jobs: int | None
    address: str | None
    gpus: float | None

    @classmethod
    def asked(
        cls, engine: EngineName | None, jobs: int | None, address: str | None, gpus: float | None, out: Path | None
    ) -> Self | None:
        """None for a single run: no option asks for more, and the folder holds no seeds that were divided before."""
        given = [each for each in (engine, jobs, address, gpus) if each is not None]
        if not given and (out is None or read_spread(out) is None):
            return None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("torchrun trains one run with all its processes; leave out --engine and --jobs")
        if engine != "ray":
            refuse_cluster_options(address, gpus)
        return cls(engine or "local", jobs, address, gpus)

    def train(self, settings: Settings, folder: Path, resume: bool, quiet: bool) -> Result:
        """Train all seeds, and tell about every epoch of every run."""
        plan_seeds(settings, folder, self.jobs or 1, resume=resume)  # before processes start, or a cluster is joined
        choose_threads_for_runs([settings])
        slots = slots_here(self.jobs, settings.device)
        threads = max(1, min(torch.get_num_threads(), usable_cores() // slots)) if self.engine == "local" else 1
        where = partial(make_engine, address=self.address, gpus=self.gpus, device=settings.device)
        lines = None if quiet else _Lines(folder)
        with where(self.engine, self.jobs, threads=threads) as engine:
            return train_seeds(settings, folder, engine, resume=resume, threads=threads, tell=lines)


class _Lines:
    """One line for every new epoch of a run, wherever it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._console = folder, Console(stderr=True)
        self._told: dict[str, int] | None = None

    def __call__(self, running: Mapping[str, Settings]) -> None:
        if self._told is None:
            self._told = {}
            self._say(f"run folders: {self._folder}")
        for name, settings in running.items():
            record = last_validation(self._folder / name)
            if record is not None and self._told.get(name) != record["epoch"]:
                self._told[name] = record["epoch"]
                epoch, score = show_epoch(record, settings.epochs)
                self._say(f"{name}: epoch {epoch}  {score}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
