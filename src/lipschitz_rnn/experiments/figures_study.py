"""The run of the paper's figure on training: where the eigenvalues of A and W go, for a smaller and a larger β.

Both β and all seeds train side by side as one ensemble: `lipschitz-rnn reproduce figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn import tasks
from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.figures_drawings import measure_drawings
from lipschitz_rnn.experiments.mnist import show_seeds
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.report.collect import read_run
from lipschitz_rnn.experiments.results import Record, spectral_curves, write_record
from lipschitz_rnn.experiments.runs import load_run
from lipschitz_rnn.experiments.spectra import spectral_probe
from lipschitz_rnn.training import Settings

STUDY = "figures"
SEEDS = (0, 1, 2)
BETAS = (0.65, 0.95)  # the two panels of the paper's figure
PAPERS_TASK, DEFAULT_TASK = "ordered-mnist", "digits"
_COMMAND = "lipschitz-rnn reproduce figures"


def plan_figures(
    task: str = DEFAULT_TASK, *, seeds: Sequence[int] | None = None, changes: Mapping[str, Any] | None = None
) -> Plan:
    """The one run of the study: the preset of the task, with each β for each seed.

    Args:
        changes: settings: epochs (the decay moves with them), hidden_size, precision, device, data_dir.
    """
    tasks.info(task)  # an unknown name is told before anything starts
    usual = preset_settings(task)
    variants = tuple({"beta": beta} for beta in BETAS)
    settings = preset_settings(task, changes={**(changes or {}), "seeds": tuple(seeds or SEEDS), "variants": variants})
    decays = tuple(epoch * settings.epochs // usual.epochs for epoch in settings.decay_epochs)
    settings = replace(settings, decay_epochs=decays)
    kind = "paper" if task == PAPERS_TASK else "other task"
    return Plan(STUDY, f"{task}/spectra", kind, settings, _command(settings, usual), _why(settings, usual))


def _why(settings: Settings, usual: Settings) -> str:
    """What is not as in the paper."""
    if settings.task != PAPERS_TASK:
        return f"not the paper's task: {settings.task}, N = {settings.hidden_size} and {settings.epochs} epochs"
    changed = settings.epochs != usual.epochs
    return f"{settings.epochs} epochs, not the paper's {usual.epochs}" if changed else ""


def _command(settings: Settings, usual: Settings) -> str:
    parts = [_COMMAND]
    parts += [f"--task {settings.task}"] if settings.task != DEFAULT_TASK else []
    parts += [f"--seeds {show_seeds(settings.seeds)}"] if settings.seeds != SEEDS else []
    parts += [f"--epochs {settings.epochs}"] if settings.epochs != usual.epochs else []
    parts += [f"--precision {settings.precision}"] if settings.precision != "highest" else []
    return " ".join(parts)


@dataclass(frozen=True)
class FiguresCampaign(Campaign):
    """Keeps in the record what the figures show: largest real parts before training and after every epoch, and the
    numbers of the drawings that need no training."""

    def export(self, plan: Plan, measures: Mapping[str, Any] | None = None) -> Record:
        folder = self.out / plan.name
        found = {"before_training": initial_spectra(folder), "drawings": measure_drawings()}
        record = super().export(plan, {**(measures or {}), **found})
        record = replace(record, curves={**record.curves, **spectral_curves(read_run(folder).of_kind("probe"))})
        write_record(record, self.results)
        return record


def initial_spectra(folder: Path) -> dict[str, list[float | None]]:
    """The largest real parts of A and W that every network of a run started from, found again from its seed."""
    run = load_run(folder)
    found = spectral_probe([run.initial(index) for index in range(len(run.settings.members))])
    probe = {name: [values[name] for values in found] for name in found[0]}
    return {name: [value for (value,) in members] for name, members in spectral_curves([probe]).items()}
