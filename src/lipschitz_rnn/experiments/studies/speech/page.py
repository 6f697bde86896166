"""What only the page on speech has: the table on free recordings, and spectrograms with their predictions."""

from __future__ import annotations

from collections.abc import Sequence

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import spread
from lipschitz_rnn.drawing import empty_figure, to_svg
from lipschitz_rnn.experiments.pages.sections import count_seeds, name_unit, number, time_of
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import Study
from lipschitz_rnn.tasks.audio import HOP, NETWORK_RATE

_TITLES = {"spoken-digits": "Spoken digits", "timit-sample": "The free sample of TIMIT"}
_LIMIT = 3.0  # standard deviations, the range of the colours


def free_recordings(study: Study, records: Sequence[Record]) -> list[Block]:
    """A table for each free corpus, and the error of repeating the last frame."""
    page: list[Block] = []
    for task, title in _TITLES.items():
        own = [record for record in records if record.setup.task == task]
        if not own:
            continue
        rows = []
        for record in own:
            facts = [str(record.setup.hidden_size), f"{record.parameters:,}", str(record.setup.epochs)]
            scores = [number(record, value) for value in (record.best(), *spread(record.scores())[1:])]
            rows.append([name_unit(record), *facts, count_seeds(record.seeds), *scores, time_of([record])])
        header = ["unit", "N", "parameters", "epochs", "seeds", "best", "mean", "worst", "time of all seeds"]
        page += [Heading(title), Table(header, rows, left=1)]
        repeated = {record.measures["repeating"] for record in own if "repeating" in record.measures}
        if repeated:
            page.append(Paragraph(f"Predicting the last frame again gives an error of {min(repeated):.3f}."))
    return page


def examples(study: Study, records: Sequence[Record]) -> list[Block]:
    """Predicted against true log-magnitudes of an utterance of the test split, one picture for each corpus."""
    shown: dict[str, Record] = {}
    for record in (record for record in records if "example" in record.measures):
        shown.setdefault(record.setup.task, record)
    pictures = [_picture(study, task, record) for task, record in shown.items()]
    return [Heading("What the network predicts"), *pictures] if pictures else []


def _picture(study: Study, task: str, record: Record) -> Picture:
    example = record.measures["example"]
    true, predicted = ([[value / 100 for value in frame] for frame in example[name]] for name in ("true", "predicted"))
    error = [[p - t for p, t in zip(*frames, strict=True)] for frames in zip(predicted, true, strict=True)]
    figure, axes = empty_figure(3, 3.6, 2.8)
    seconds, top = len(true) * HOP / NETWORK_RATE, NETWORK_RATE / 2000
    for axis, (title, frames) in zip(axes, (("true", true), ("predicted", predicted), ("error", error)), strict=True):
        colours = "RdBu_r" if title == "error" else "magma"
        columns = [list(row) for row in zip(*frames, strict=True)]
        image = axis.imshow(
            columns, origin="lower", aspect="auto", cmap=colours, vmin=-_LIMIT, vmax=_LIMIT,
            extent=(0.0, seconds, 0.0, top), interpolation="nearest",
        )  # fmt: skip
        axis.set(title=title, xlabel="seconds")
    axes[0].set(ylabel="kHz")
    figure.colorbar(image, ax=axes[-1])
    caption = (
        f"{_TITLES.get(task, task)}, an utterance of the test split: log-magnitudes in standard deviations of each "
        "frequency, true, predicted from the frames before, and the difference."
    )
    return Picture(f"{study.name}-{task}", to_svg(figure), caption)
