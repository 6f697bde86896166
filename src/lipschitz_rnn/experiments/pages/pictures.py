"""Pictures for any study: how its cells learned, where their seeds ended, and other units beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import BLUE, GREEN, GREY, PURPLE, RED, new_figure, to_svg
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import Study

_COLOURS = (BLUE, GREEN, RED, PURPLE)  # grey is the paper's
_HALF_HEIGHT = 0.32


def learning_curves(study: Study, records: Sequence[Record]) -> Picture:
    """Validation score by epoch, one panel a task: mean over seeds, and the range that they cover."""
    figure, panels = _panels(records)
    for axis, own in panels:
        limits: list[float] = []
        for record, colour in zip(own, _colours(own), strict=True):
            epochs, columns = _columns(record)
            means = [sum(column) / len(column) for column in columns]
            low, high = [min(column) for column in columns], [max(column) for column in columns]
            axis.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.plot(epochs, means, color=colour, linewidth=1.4, label=_label(record))
            limits += [*means[len(means) // 5 :], *(high if record.percent else low)]
        if limits:
            margin = 0.05 * (max(limits) - min(limits)) + 0.5 * own[0].percent
            axis.set_ylim(max(0.0, min(limits) - margin), max(limits) + margin)
        axis.set(xlabel="epoch", ylabel=f"validation {_metric(own[0])}", title=own[0].setup.task)
        axis.legend(frameon=False, fontsize=8, loc="best")
    caption = "Validation score by epoch, the first ones cut off: mean over seeds, and the range that they cover."
    return Picture(f"{study.name}-learning", to_svg(figure), caption)


def distributions(study: Study, records: Sequence[Record]) -> Picture:
    """Test score of every seed at the selected epoch, beside the paper's minimum, average and maximum."""
    figure, panels = _panels(records, height=2.8)
    for axis, own in panels:
        for row, (record, colour) in enumerate(zip(own, _colours(own), strict=True)):
            _dots(axis, row, [_shown(record, score) for score in record.scores()], colour)
            cell = find_cell(record.setup)
            if cell is not None and cell.spread is not None:
                low, average, high = cell.spread
                axis.barh(row, high - low, left=low, height=2 * _HALF_HEIGHT, color=GREY, alpha=0.2)
                axis.plot([average] * 2, [row - _HALF_HEIGHT, row + _HALF_HEIGHT], color=GREY, linewidth=1.4)
        axis.set_yticks(range(len(own)), [_label(record) for record in own])
        axis.set(xlabel=f"test {_metric(own[0])}", title=own[0].setup.task)
        axis.invert_yaxis()
    caption = "Test score of every seed (dots), and minimum, average and maximum where the paper prints them (grey)."
    return Picture(f"{study.name}-seeds", to_svg(figure), caption)


def units_beside_ours(study: Study, records: Sequence[Record]) -> Picture:
    """Test error of every seed of our unit, tuned and not, and of the others, beside what the paper quotes."""
    figure, panels = _panels(records, height=3.4)
    for axis, found in panels:
        own = sorted(found, key=lambda record: record.setup.unit != "lipschitz")
        for row, record in enumerate(own):
            errors = [_error(record, score) for score in record.scores()]
            _dots(axis, row, errors, BLUE if record.setup.unit == "lipschitz" else GREEN)
            axis.plot(
                [sum(errors) / len(errors)] * 2, [row - _HALF_HEIGHT, row + _HALF_HEIGHT], color=RED, linewidth=1.4
            )
            cell = find_cell(record.setup)
            if cell is not None and record.kind != "tuned":
                printed = 100 - cell.printed if record.percent else cell.printed
                axis.plot(printed, row, marker="D", markersize=5, color=GREY, linestyle="none")
        names = [record.setup.unit + (", tuned" if record.kind == "tuned" else "") for record in own]
        axis.set_yticks(range(len(own)), [f"{n}, N = {r.setup.hidden_size}" for n, r in zip(names, own, strict=True)])
        axis.set(xlabel="test error (%)" if own[0].percent else f"test {own[0].metric}", title=own[0].setup.task)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.set_xticks(_ticks(axis.get_xlim()))
        axis.invert_yaxis()
    caption = (
        "Test error of every seed (dots), on a logarithmic scale, and their mean (red); grey, the error of the best "
        "network that the paper prints for its own unit or quotes for another."
    )
    return Picture(f"{study.name}-units", to_svg(figure), caption)


def _panels(records: Sequence[Record], height: float = 3.4) -> tuple[Any, list[tuple[Any, list[Record]]]]:
    """A panel for each task and metric, with its records."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        options = {name: value for name, value in record.setup.task_options.items() if name == "length"}
        groups.setdefault((f"{record.setup.task} {options}", record.metric), []).append(record)
    figure, axes = new_figure(len(groups), width=5.4, height=height)
    return figure, list(zip(axes, groups.values(), strict=True))


def _metric(record: Record) -> str:
    return f"{record.metric} (%)" if record.percent else record.metric


def _shown(record: Record, score: float) -> float:
    return 100 * score if record.percent else score


def _error(record: Record, score: float) -> float:
    return 100 * (1 - score) if record.percent else score


def _dots(axis: Any, row: int, values: Sequence[float], colour: str) -> None:
    """One dot a seed, beside each other, so that equal scores stay visible."""
    places = [row + _HALF_HEIGHT * (index / max(len(values) - 1, 1) - 0.5) for index in range(len(values))]
    axis.scatter(sorted(values), places, s=16, color=colour, alpha=0.8, linewidths=0, zorder=3)


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Round numbers, more of them where less than a power of ten is shown."""
    low, high = limits
    digits = (1, 2, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5)
    return [value for power in (-1, 0, 1, 2) for digit in digits if low <= (value := digit * 10.0**power) <= high]


def _label(record: Record) -> str:
    values = record.setup
    return f"N = {values.hidden_size}, {values.unit_options.get('integrator', values.unit)}"


def _colours(records: Sequence[Record]) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(records))]


def _columns(record: Record) -> tuple[list[int], list[list[float]]]:
    """Epochs, and the scores of the seeds that have one then."""
    curves = record.curves[f"validation_{record.metric}"]
    columns = [[_shown(record, value) for value in values if value is not None] for values in zip(*curves, strict=True)]
    known = [(epoch, values) for epoch, values in enumerate(columns, 1) if values]
    return [epoch for epoch, _ in known], [values for _, values in known]
