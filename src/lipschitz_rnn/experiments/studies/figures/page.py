"""The page of the stability figures: eigenvalues over training, and three drawings without training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import show_score, spread
from lipschitz_rnn.drawing import to_svg
from lipschitz_rnn.experiments.pages.sections import time_of
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.studies.figures.drawings import DRAWINGS
from lipschitz_rnn.experiments.studies.figures.tracks import COLOURS, Tracks, draw_training, read_tracks
from lipschitz_rnn.experiments.study import Study

_PAPER = (
    "The paper says of one network each: as β increases, the eigenvalues change less during training, and stay in the "
    "stable region for more of it."
)


def tracks_and_drawings(study: Study, records: Sequence[Record]) -> list[Block]:
    found: list[Block] = []
    for record in records:
        task, svg = record.setup.task, to_svg(draw_training(record))
        found += [
            Heading(f"Eigenvalues over training: {task}"),
            Picture(f"figures-spectrum-over-training-{task}", svg, _caption(record)),
            Paragraph(_finding(read_tracks(record))),
            _table([record]),
            Paragraph(_origin(record)),
        ]
    numbers = records[0].measures["drawings"]  # of no task, so the same in every record
    for name, drawing in DRAWINGS.items():
        found += [Heading(drawing.title), drawing.picture(name, numbers[name])]
    return found


def _caption(record: Record) -> str:
    count = len(record.setup.seeds)
    seeds = f"mean over {count} seeds, with the range from the lowest to the highest" if count > 1 else "one seed"
    text = (
        f"Largest real part of the eigenvalues of A (red) and W (blue), before training and after every epoch: {seeds}."
    )
    return f"{text} {record.why[0].upper()}{record.why[1:]}." if record.why else text


def _finding(tracks: Sequence[Tracks]) -> str:
    """What one sees in numbers, and whether it is what the paper says."""
    known = [each for each in tracks if each.values["A"]]
    lost = sum(len(each.seeds) - len(each.values["A"]) for each in tracks)
    told = [f"{lost} of {sum(len(each.seeds) for each in tracks)} networks diverged and are left out."] if lost else []
    told += [*map(_movement, known), _PAPER]
    return " ".join([*told, _verdict(known[0], known[-1])] if len(known) > 1 else told)


def _movement(tracks: Tracks) -> str:
    epochs, negative = len(tracks.values["A"][0]) - 1, tracks.negative_epochs()
    changes = [_show(tracks.change(matrix)) for matrix in COLOURS]
    return (
        f"For β = {tracks.beta:g} the largest real part of A goes up to {changes[0]} away from its start, that of W up "
        f"to {changes[1]}; both are negative after {negative:.3g} of {epochs} epochs."
    )


def _verdict(low: Tracks, high: Tracks) -> str:
    """Of the smallest and the largest β."""
    less = [matrix for matrix in COLOURS if high.change(matrix) < low.change(matrix)]
    change = f"seen here for {' and '.join(less)}" + (" alone" if len(less) == 1 else "") if less else "not seen here"
    before, after = low.negative_epochs(), high.negative_epochs()
    stay = "seen" if after > before else "not seen: both are equal" if after == before else "not seen: it is less of it"
    return f"The first is {change}, the second is {stay}."


def _table(records: Sequence[Record]) -> Table:
    """All values are means over seeds; the maximum is that of each network over its training."""
    header = ["task", "β", "seeds", "test min", "mean", "max"]
    header += [f"{matrix}, {when}" for matrix in COLOURS for when in ("start", "end", "maximum")]
    rows = []
    for record in records:
        for tracks in read_tracks(record):
            scores = [show_score(value, record.percent) for value in spread(tracks.scores)]
            parts = [
                _show(tracks.mean(matrix, choose))
                for matrix in COLOURS
                for choose in (itemgetter(0), itemgetter(-1), max)
            ]
            rows.append([record.setup.task, f"{tracks.beta:g}", str(len(tracks.seeds)), *scores, *parts])
    return Table(header, rows, left=1)


def _show(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}".replace("-", "−")


def _origin(record: Record) -> str:
    values = record.setup
    fixed = ", ".join(f"{name} = {value}" for name, value in values.unit_options.items() if name != "beta")
    return (
        "Largest real parts are means over seeds; the maximum is each network's own over its training. "
        f"N = {values.hidden_size}, {fixed}; {values.epochs} epochs, all networks as one ensemble; "
        f"{time_of([record])} on {record.environment.get('device', '?')}. Made by `{record.command}`."
    )
