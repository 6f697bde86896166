"""The page of the stability figures: eigenvalues over training, and three figures without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import show_score, spread
from lipschitz_rnn.drawing import BLUE, GREY, RED, draw_band, mean_of, new_figure, to_svg
from lipschitz_rnn.experiments.pages.sections import time_of
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.studies.figures.drawings import DRAWINGS
from lipschitz_rnn.experiments.study import Study

COLOURS = {"A": RED, "W": BLUE}  # the paper's


@dataclass(frozen=True)
class Tracks:
    """All seeds of one β, with their largest real parts before training and after every epoch."""

    beta: float
    seeds: list[Any]  # as in the record
    values: dict[str, list[list[float]]]  # A and W -> networks that did not diverge -> before training and by epoch

    @property
    def scores(self) -> list[float]:
        return [seed["test"] for seed in self.seeds if seed["test"] is not None]

    def mean(self, matrix: str, choose: Callable[[Sequence[float]], float]) -> float:
        """The mean over seeds of one number per network: its first, last or largest value."""
        return mean_of([choose(network) for network in self.values[matrix]])

    def change(self, matrix: str) -> float:
        """The largest distance from the initial value, averaged over seeds."""
        return self.mean(matrix, lambda network: max(abs(value - network[0]) for value in network))

    def negative_epochs(self) -> float:
        """The number of epochs after which all real parts of A and W are negative, averaged over seeds."""
        both = zip(self.values["A"], self.values["W"], strict=True)
        return mean_of([sum(a < 0 and w < 0 for a, w in zip(A[1:], W[1:], strict=True)) for A, W in both])


def read_tracks(record: Record) -> list[Tracks]:
    """The tracks of every β of a record, in its order."""
    groups: dict[float, list[int]] = {}
    for index, seed in enumerate(record.seeds):
        groups.setdefault(float(seed["variant"]["beta"]), []).append(index)
    start = record.measures["before_training"]
    tracks = []
    for beta, own in groups.items():
        good = [index for index in own if record.seeds[index]["diverged_step"] is None]
        names = {matrix: f"{matrix}_real_max" for matrix in COLOURS}
        values = {m: [[start[name][i], *record.curves[name][i]] for i in good] for m, name in names.items()}
        tracks.append(Tracks(beta, [record.seeds[index] for index in own], values))
    return tracks


def draw_training(record: Record) -> Any:
    """One panel per β, on the same scale: the mean over seeds as a line, their range as a band."""
    tracks = read_tracks(record)
    figure, axes = new_figure(len(tracks))
    for axis, each in zip(axes, tracks, strict=True):
        for matrix, colour in COLOURS.items():
            columns = list(zip(*each.values[matrix], strict=True))
            draw_band(axis, range(len(columns)), columns, colour, f"max Re λ({matrix})")
        axis.axhline(0.0, color=GREY, linewidth=0.9)
        axis.set(xlabel="epoch", ylabel="largest real part", title=f"{record.setup.task}, β = {each.beta:g}")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=8)
    low, high = zip(*(axis.get_ylim() for axis in axes), strict=True)
    for axis in axes:
        axis.set_ylim(min(low), max(high))
    return figure


def tracks_and_drawings(study: Study, records: Sequence[Record]) -> list[Block]:
    found: list[Block] = []
    for record in records:
        task, tracks, svg = record.setup.task, read_tracks(record), to_svg(draw_training(record))
        found += [
            Heading(f"Eigenvalues over training: {task}"),
            Picture(f"figures-spectrum-over-training-{task}", svg, _caption(record)),
            *_lost(tracks),
            _ends(record, tracks),
            _movement(tracks),
            Paragraph(_origin(record)),
        ]
    numbers = records[0].measures["drawings"]  # independent of the task, so the same in every record
    for name, drawing in DRAWINGS.items():
        found += [Heading(drawing.title), drawing.picture(name, numbers[name])]
    return found


def _caption(record: Record) -> str:
    count = len(record.setup.seeds)
    seeds = f"mean over {count} seeds, and the range from lowest to highest" if count > 1 else "one seed"
    text = (
        f"Largest real part of the eigenvalues of A (red) and W (blue), before training and after every epoch: {seeds}."
    )
    return f"{text} {record.why[0].upper()}{record.why[1:]}." if record.why else text


def _lost(tracks: Sequence[Tracks]) -> list[Block]:
    lost = sum(len(each.seeds) - len(each.values["A"]) for each in tracks)
    every = sum(len(each.seeds) for each in tracks)
    return [Paragraph(f"{lost} of {every} networks diverged and are left out.")] if lost else []


def _ends(record: Record, tracks: Sequence[Tracks]) -> Table:
    """Means over seeds; the maximum of each network is over its training."""
    shown: dict[str, Any] = {"start": itemgetter(0), "end": itemgetter(-1), "maximum": max}
    header = ["task", "β", "seeds", "test min", "mean", "max"]
    header += [f"{matrix}, {when}" for matrix in COLOURS for when in shown]
    rows = []
    for each in tracks:
        scores = [show_score(value, record.percent) for value in spread(each.scores)]
        parts = [_show(each.mean(matrix, choose)) for matrix in COLOURS for choose in shown.values()]
        rows.append([record.setup.task, f"{each.beta:g}", str(len(each.seeds)), *scores, *parts])
    return Table(header, rows, left=1)


def _movement(tracks: Sequence[Tracks]) -> Table:
    """How far the largest real parts move from their initial values, and how long both are negative; seed means."""
    header = ["β", "A, largest change", "W, largest change", "epochs with both negative"]
    rows = [
        [f"{each.beta:g}", *(_show(each.change(matrix)) for matrix in COLOURS), _show(each.negative_epochs())]
        for each in tracks
    ]
    return Table(header, rows, left=0)


def _show(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}".replace("-", "−")


def _origin(record: Record) -> str:
    values = record.setup
    fixed = ", ".join(f"{name} = {value}" for name, value in values.unit_options.items() if name != "beta")
    return (
        "Largest real parts are means over seeds; the maximum of each network is over its training. "
        f"N = {values.hidden_size}, {fixed}; {values.epochs} epochs, all networks as one ensemble; "
        f"{time_of([record])} on {record.environment.get('device', '?')}. Made by `{record.command}`."
    )
