"""The figures of the paper's stability studies, drawn into one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.figures import GREY, new_figure
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.report.collect import read_run
from lipschitz_rnn.experiments.report.pictures import draw_tracks
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.stability.figures import draw_lemma2, draw_pendulum, draw_spectrum_against_beta
from lipschitz_rnn.training import Watcher

TRACKED_BETAS = (0.65, 0.95)  # the two panels of the paper's figure


def reproduce_figures(
    folder: Path, task: str, changes: Mapping[str, Any], watch: Callable[[str], Watcher] | None = None
) -> dict[str, Path]:
    """Draw all studies into ``folder``; the networks of the last one train in ``folder/runs``, or go on there."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable[[], Any]] = {
        "pendulum": draw_pendulum,
        "spectrum-against-beta": draw_spectrum_against_beta,
        "lemma2": draw_lemma2,
        "spectrum-over-training": lambda: _spectrum_over_training(folder / "runs", task, changes, watch),
    }
    written = {}
    for name, draw in drawings.items():
        written[name] = folder / f"{name}.png"
        draw().savefig(written[name], dpi=150)
    return written


def _spectrum_over_training(
    folder: Path, task: str, changes: Mapping[str, Any], watch: Callable[[str], Watcher] | None
) -> Any:
    """Largest real parts of the eigenvalues of A and W while a network trains, one panel for each β."""
    figure, axes = new_figure(len(TRACKED_BETAS))
    for axis, beta in zip(axes, TRACKED_BETAS, strict=True):
        name = f"{task}-beta{beta:g}"
        settings = preset_settings(task, changes={**changes, "unit_options": {"beta": beta}})
        train(settings, folder / name, resume=True, watcher=watch(name) if watch else None)
        draw_tracks(axis, read_run(folder / name))
        axis.axhline(0.0, color=GREY, linewidth=0.9)
        axis.set(xlabel="epoch", ylabel="largest real part", title=f"{task}, β = {beta:g}")
        axis.legend(frameon=False, fontsize=8)
    return figure
