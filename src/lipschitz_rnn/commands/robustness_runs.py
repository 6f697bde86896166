"""Opens runs and parses options for `lipschitz-rnn robustness`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipschitz_rnn.commands.parsing import parse_seeds
from lipschitz_rnn.commands.threads import choose_threads
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.parallel import device_of_run
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.training.update import forward_precision, matmul_precision


@dataclass(frozen=True)
class Run:
    """A trained run and its task, both on the device for the measurement."""

    folder: Path
    settings: Settings
    task: Task
    models: dict[int, nn.Module]  # by seed
    device: torch.device

    @property
    def title(self) -> str:
        return f"{self.settings.task} · {self.settings.unit}"

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The precision it was trained in, so that clean accuracies agree with `evaluate`."""
        with ExitStack() as stack:
            stack.enter_context(matmul_precision(self.settings.precision))
            stack.enter_context(forward_precision(self.settings, self.device))
            yield


def open_run(
    folder: Path,
    which: str,
    seeds: str | None,
    variant: int | None,
    device: str | None,
    data_dir: str | None,
    offline: bool,
) -> Run:
    """The networks of a run folder, or those of some seeds, and the task they were trained on."""
    loaded = load_run(folder)
    settings, models = loaded.of_variant(variant, which)
    place = device_of_run(device, settings.device)
    if seeds is not None:
        wanted = parse_seeds(seeds)
        missing = [seed for seed in wanted if seed not in models]
        if missing:
            raise ValueError(f"--seeds is {seeds!r}; {folder} has the seeds {', '.join(map(str, models))}")
        models = {seed: models[seed] for seed in wanted}
    choose_threads(1, settings.batch_size, settings.hidden_size)
    task = loaded.load_task(data_dir=data_dir, offline=offline).to(place)
    return Run(folder, settings, task, {seed: m.to(place) for seed, m in models.items()}, place)


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The names of run folders, or their full paths if two have the same name."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise ValueError(f"the same run is given twice: {', '.join(names)}; name each run once")
    return names


def document(run: Run, which: str, split: str, seeds: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What --json prints for one run."""
    facts = {"run": str(run.folder), "task": run.settings.task, "unit": run.settings.unit}
    each = [{"seed": seed, **values} for seed, values in seeds.items()]
    return facts | {"which": which, "split": split, "seeds": each}


def parse_amounts(text: str | None) -> tuple[float, ...] | None:
    """ "0,0.1,0.2" as numbers; None stays None."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--amounts is {text!r}; write numbers separated by commas, e.g. 0,0.1,0.2") from None
