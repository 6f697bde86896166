"""The quickstart: trains Lipschitz RNNs and LSTMs with about as many parameters on digits, and draws one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lipschitz_rnn.drawing import GREY, RED, draw_curves, new_figure, whole_epochs
from lipschitz_rnn.experiments.comparison.statistics import mean_interval
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.stability.studies.tracking import draw_eigenvalues, draw_tracks, spectral_curves
from lipschitz_rnn.training import Result, Settings, Watcher
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.units.registry import count_parameters

SEEDS = tuple(range(5))
EPOCHS = 50


@dataclass(frozen=True)
class Quickstart:
    """Both results, their difference, and the picture."""

    lipschitz: Result
    lstm: Result
    picture: Path

    def difference(self) -> tuple[float, float] | None:
        """95 % interval of the mean difference in test accuracy, seed by seed, as in the report; None for one seed."""
        pairs = zip(self.lipschitz.seeds, self.lstm.seeds, strict=True)
        known = [(ours.test, theirs.test) for ours, theirs in pairs]
        differences = [ours - theirs for ours, theirs in known if ours is not None and theirs is not None]
        return mean_interval(differences) if len(differences) > 1 else None

    def conclusion(self) -> str:
        """The conclusion that the seeds support."""
        interval = self.difference()
        if interval is None:
            return "One seed per unit cannot show which unit is better; use more, e.g. --seeds 0-4."
        low, high = (100.0 * bound for bound in interval)
        between = f"95 % interval over seeds: {low:+.1f} to {high:+.1f} points"
        if low > 0.0:
            return f"On this test split, with this training, the Lipschitz RNN is better ({between})."
        if high < 0.0:
            return f"On this test split, with this training, the LSTM is better ({between})."
        return f"The seeds vary too much to call either unit better ({between})."


def test_scores(result: Result) -> list[float]:
    return [seed.test for seed in result.seeds if seed.test is not None]


def quickstart_settings(seeds: Sequence[int] = SEEDS, epochs: int | None = None) -> tuple[Settings, Settings]:
    """The Lipschitz unit, and the LSTM with the closest number of parameters, trained the same way."""
    changes = {"seeds": tuple(seeds), "device": "cpu", "offline": True, "epochs": EPOCHS if epochs is None else epochs}
    ours = preset_settings("digits", changes=changes)
    target = count_parameters("lipschitz", ours.hidden_size, 1, 10)
    size = min(range(1, 2 * ours.hidden_size), key=lambda n: abs(count_parameters("lstm", n, 1, 10) - target))
    return ours, replace(ours, unit="lstm", unit_options={}, hidden_size=size)


def run_quickstart(
    folder: Path,
    seeds: Sequence[int] = SEEDS,
    epochs: int | None = None,
    watch: Callable[[str], Watcher] | None = None,
) -> Quickstart:
    """Train both in `folder`, or continue where an earlier call stopped, and draw the picture."""
    results = {}
    for name, settings in zip(("lipschitz", "lstm"), quickstart_settings(seeds, epochs), strict=True):
        results[name] = train(settings, folder / name, resume=True, watcher=watch(name) if watch else None)
    picture = folder / "quickstart.png"
    draw_quickstart(folder, results["lipschitz"], results["lstm"], picture)
    return Quickstart(results["lipschitz"], results["lstm"], picture)


def draw_quickstart(folder: Path, ours: Result, theirs: Result, path: Path) -> None:
    """Learning curves of both, eigenvalues of A and W over training, and all eigenvalues at the selected epoch."""
    figure, (curves, tracks, plane) = new_figure(3)
    labels = {"lipschitz": f"Lipschitz RNN ({ours.parameters:,})", "lstm": f"LSTM ({theirs.parameters:,})"}
    for name, colour in (("lipschitz", RED), ("lstm", GREY)):
        run = read_run(folder / name)
        steps, values = run.curve("validation", "accuracy")
        percent = [[None if value is None else 100 * value for value in curve] for curve in values]
        draw_curves(curves, [step / run.steps_per_epoch() for step in steps], percent, colour, labels[name])
    title = "Learning (parameters)" if len(ours.seeds) == 1 else f"Learning, {len(ours.seeds)} seeds (parameters)"
    curves.set(xlabel="epoch", ylabel="validation accuracy (%)", title=title)
    curves.legend(frameon=False, fontsize=8, loc="lower right")
    draw_tracks(tracks, spectral_curves(read_run(folder / "lipschitz").of_kind("probe")))
    tracks.set_title("Eigenvalues over training")
    draw_eigenvalues(plane, ours.models[0])
    plane.set_title(f"Eigenvalues after training, seed {ours.seeds[0].seed}")
    for axis in (curves, tracks):
        whole_epochs(axis)
    figure.savefig(path, dpi=150)
