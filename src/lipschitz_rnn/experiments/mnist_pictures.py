"""The two pictures of the MNIST page: how the cells learned, and where their seeds ended."""

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
            scores = sorted(100 * score for score in record.scores())
            colour, _ = _look(record)
            # Seeds beside each other, so that equal scores stay visible.
            places = [row + _HALF_HEIGHT * (index / max(len(scores) - 1, 1) - 0.5) for index in range(len(scores))]
            axis.scatter(scores, places, s=16, color=colour, alpha=0.8, linewidths=0, zorder=3)
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
