"""The first minute: a Lipschitz RNN and an LSTM of about its size learn digits, and one picture shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lipschitz_rnn.experiments.figures import GREY, RED, draw_curves, draw_eigenvalues, new_figure
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.report.collect import read_run
from lipschitz_rnn.experiments.report.pictures import draw_tracks
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training import Result, Settings, Watcher
from lipschitz_rnn.units.registry import count_parameters


@dataclass(frozen=True)
class Quickstart:
    """Both results and the picture."""

    lipschitz: Result
    lstm: Result
    picture: Path


def quickstart_settings(seed: int = 0, epochs: int | None = None) -> tuple[Settings, Settings]:
    """The Lipschitz unit, and the LSTM whose number of parameters is nearest to its own, trained the same way."""
    changes = {"seeds": (seed,), "device": "cpu", "offline": True} | ({} if epochs is None else {"epochs": epochs})
    ours = preset_settings("digits", changes=changes)
    target = count_parameters("lipschitz", ours.hidden_size, 1, 10)
    size = min(range(1, 2 * ours.hidden_size), key=lambda n: abs(count_parameters("lstm", n, 1, 10) - target))
    return ours, replace(ours, unit="lstm", unit_options={}, hidden_size=size)


def run_quickstart(
    folder: Path, seed: int = 0, epochs: int | None = None, watch: Callable[[str], Watcher] | None = None
) -> Quickstart:
    """Train both in `folder`, or go on where an earlier call stopped, and draw the picture."""
    results = {}
    for name, settings in zip(("lipschitz", "lstm"), quickstart_settings(seed, epochs), strict=True):
        results[name] = train(settings, folder / name, resume=True, watcher=watch(name) if watch else None)
    picture = folder / "quickstart.png"
    draw_quickstart(folder, results["lipschitz"], results["lstm"], picture)
    return Quickstart(results["lipschitz"], results["lstm"], picture)


def draw_quickstart(folder: Path, ours: Result, theirs: Result, path: Path) -> None:
    """Learning curves of both, eigenvalue tracks of A and W, and all their eigenvalues at the selected epoch."""
    figure, (curves, tracks, plane) = new_figure(3)
    labels = {"lipschitz": f"Lipschitz RNN ({ours.parameters:,})", "lstm": f"LSTM ({theirs.parameters:,})"}
    for name, colour in (("lipschitz", RED), ("lstm", GREY)):
        run = read_run(folder / name)
        steps, values = run.curve("validation", "accuracy")
        percent = [[None if value is None else 100 * value for value in curve] for curve in values]
        draw_curves(curves, [step / run.steps_per_epoch() for step in steps], percent, colour, labels[name])
    curves.set(xlabel="epoch", ylabel="validation accuracy (%)", title="Learning (parameters)")
    curves.legend(frameon=False, fontsize=8, loc="lower right")
    draw_tracks(tracks, read_run(folder / "lipschitz"))
    tracks.axhline(0.0, color=GREY, linewidth=0.9)
    tracks.set(xlabel="epoch", ylabel="largest real part", title="Eigenvalues over training")
    tracks.legend(frameon=False, fontsize=8)
    draw_eigenvalues(plane, ours.models[0])
    plane.set_title("Eigenvalues after training")
    figure.savefig(path, dpi=150)
