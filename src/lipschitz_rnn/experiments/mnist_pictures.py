"""The pictures of the MNIST page: how the cells learned, where their seeds ended, and other units beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.experiments.figures import BLUE, GREEN, GREY, RED, new_figure, to_svg
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.report.document import Picture
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.training import Settings

PURPLE = "#7d5ba6"  # grey is the paper's
_COLOURS = {(64, "euler"): BLUE, (64, "midpoint"): GREEN, (128, "euler"): RED, (128, "midpoint"): PURPLE}
_HALF_HEIGHT = 0.32


def learning_curves(records: Sequence[Record]) -> Picture:
    """Validation accuracy by epoch, one panel a task: mean over seeds, and the range that they cover."""
    tasks = list(dict.fromkeys(record.settings["task"] for record in records))
    figure, axes = new_figure(len(tasks), width=5.4)
    for axis, task in zip(axes, tasks, strict=True):
        lowest, highest = 100.0, 0.0
        for record in _of_task(records, task):
            epochs, low, mean, high = _ranges(record.curves[f"validation_{record.metric}"])
            colour, label = _look(record)
            axis.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.plot(epochs, mean, color=colour, linewidth=1.4, label=label)
            lowest, highest = min(lowest, *mean[len(mean) // 5 :]), max(highest, *high)
        limits = (max(0.0, lowest - 1.0), min(100.0, highest + 0.5))
        axis.set(xlabel="epoch", ylabel="validation accuracy (%)", title=task, ylim=limits)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    caption = "Validation accuracy by epoch, the first ones cut off: mean over seeds, and the range that they cover."
    return Picture("mnist-learning", to_svg(figure), caption)


def distributions(records: Sequence[Record]) -> Picture:
    """Test accuracy of every seed at the selected epoch, beside the paper's minimum, average and maximum."""
    tasks = list(dict.fromkeys(record.settings["task"] for record in records))
    figure, axes = new_figure(len(tasks), width=5.4, height=2.8)
    for axis, task in zip(axes, tasks, strict=True):
        own = _of_task(records, task)
        for row, record in enumerate(own):
            _dots(axis, row, [100 * score for score in record.scores()], _look(record)[0])
            cell = find_cell(Settings.from_dict(record.settings))
            if cell is not None and cell.spread is not None:
                low, average, high = cell.spread
                axis.barh(row, high - low, left=low, height=2 * _HALF_HEIGHT, color=GREY, alpha=0.2)
                axis.plot([average] * 2, [row - _HALF_HEIGHT, row + _HALF_HEIGHT], color=GREY, linewidth=1.4)
        axis.set_yticks(range(len(own)), [_look(record)[1] for record in own])
        axis.set(xlabel="test accuracy (%)", title=task)
        axis.invert_yaxis()
    caption = "Test accuracy of every seed (dots), and minimum, average and maximum that the paper prints (grey)."
    return Picture("mnist-seeds", to_svg(figure), caption)


def units_beside_ours(records: Sequence[Record]) -> Picture:
    """Test error of every seed of our unit, tuned and not, and of the others, beside what the paper quotes."""
    tasks = list(dict.fromkeys(record.settings["task"] for record in records))
    figure, axes = new_figure(len(tasks), width=5.4, height=3.4)
    for axis, task in zip(axes, tasks, strict=True):
        own = sorted(_of_task(records, task), key=lambda record: record.settings["unit"] != "lipschitz")
        for row, record in enumerate(own):
            errors = [100 * (1 - score) for score in record.scores()]
            _dots(axis, row, errors, BLUE if record.settings["unit"] == "lipschitz" else GREEN)
            mean = sum(errors) / len(errors)
            axis.plot([mean] * 2, [row - _HALF_HEIGHT, row + _HALF_HEIGHT], color=RED, linewidth=1.4)
            cell = find_cell(Settings.from_dict(record.settings))
            if cell is not None and record.kind != "tuned":
                axis.plot(100 - cell.printed, row, marker="D", markersize=5, color=GREY, linestyle="none")
        axis.set_yticks(range(len(own)), [_unit_and_size(record) for record in own])
        axis.set(xlabel="test error (%)", xscale="log", title=task)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.set_xticks(_ticks(axis.get_xlim()))
        axis.invert_yaxis()
    caption = (
        "Test error of every seed (dots), on a logarithmic scale, and their mean (red); grey, the error of the best "
        "network that the paper prints for its own unit or quotes for another."
    )
    return Picture("mnist-units", to_svg(figure), caption)


def _dots(axis: Any, row: int, values: Sequence[float], colour: str) -> None:
    """One dot a seed, beside each other, so that equal scores stay visible."""
    places = [row + _HALF_HEIGHT * (index / max(len(values) - 1, 1) - 0.5) for index in range(len(values))]
    axis.scatter(sorted(values), places, s=16, color=colour, alpha=0.8, linewidths=0, zorder=3)


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Round numbers, more of them where less than a power of ten is shown."""
    low, high = limits
    digits = (1, 2, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5)
    return [value for power in (-1, 0, 1) for digit in digits if low <= (value := digit * 10.0**power) <= high]


def _unit_and_size(record: Record) -> str:
    unit = str(record.settings["unit"]) + (", tuned" if record.kind == "tuned" else "")
    return f"{unit}, N = {record.settings['hidden_size']}"


def _of_task(records: Sequence[Record], task: str) -> list[Record]:
    return [record for record in records if record.settings["task"] == task]


def _look(record: Record) -> tuple[str, str]:
    size, integrator = record.settings["hidden_size"], record.settings["unit_options"]["integrator"]
    return _COLOURS.get((size, integrator), GREY), f"N = {size}, {integrator}"


def _ranges(curves: Sequence[Sequence[float | None]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Epochs, and over the seeds that have a value then: minimum, mean and maximum in percent."""
    columns: list[tuple[int, list[Any]]] = [
        (epoch, [100 * value for value in values if value is not None])
        for epoch, values in enumerate(zip(*curves, strict=True), 1)
    ]
    known = [(epoch, values) for epoch, values in columns if values]
    low, high = [min(values) for _, values in known], [max(values) for _, values in known]
    return [epoch for epoch, _ in known], low, [sum(values) / len(values) for _, values in known], high
