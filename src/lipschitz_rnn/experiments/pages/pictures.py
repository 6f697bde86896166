"""Pictures for any study: learning curves, the scores of all seeds, and a comparison of units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import (
    BLUE,
    GREEN,
    GREY,
    HALF_HEIGHT,
    PURPLE,
    RED,
    draw_bar,
    draw_dots,
    log_ticks,
    new_figure,
    to_svg,
)  # fmt: skip
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import QUICK, Study

_COLOURS = (BLUE, GREEN, RED, PURPLE)  # grey is the paper's


def learning_curves(study: Study, records: Sequence[Record]) -> Picture:
    """Validation score by epoch, one panel per task: mean and range over seeds."""
    figure, panels = _panels(records)
    for axis, own in panels:
        limits: list[float] = []
        for record, colour in zip(own, _colours(own), strict=True):
            epochs, columns = _columns(record)
            if not epochs:  # all networks diverged in the first epoch
                continue
            means = [sum(column) / len(column) for column in columns]
            low, high = [min(column) for column in columns], [max(column) for column in columns]
            axis.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
            mark = "o" if len(epochs) == 1 else ""
            axis.plot(epochs, means, color=colour, linewidth=1.4, marker=mark, label=_label(record))
            limits += [*means[len(means) // 5 :], max(high) if record.percent else min(low)]
        if limits:
            height = max(limits) - min(limits) or abs(max(limits)) or 1.0  # of one epoch and one seed: nothing
            margin = 0.05 * height + 0.5 * own[0].percent
            axis.set_ylim(max(0.0, min(limits) - margin), max(limits) + margin)
        axis.set(xlabel="epoch", ylabel=f"validation {_metric(own[0])}", title=_title(own[0]))
        if max(record.setup.epochs for record in own) < 10:
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        if limits:
            axis.legend(frameon=False, fontsize=8, loc="best")
    caption = "Validation score by epoch, without the first epochs: mean and range over seeds."
    return Picture(f"{study.name}-learning", to_svg(figure), caption)


def distributions(study: Study, records: Sequence[Record]) -> Picture:
    """Test score of every seed at the selected epoch, with the paper's minimum, average and maximum."""
    figure, panels = _panels(records, height=2.8)
    for axis, own in panels:
        for row, (record, colour) in enumerate(zip(own, _colours(own), strict=True)):
            draw_dots(axis, row, [_shown(record, score) for score in record.scores()], colour)
            cell = find_cell(record.setup)
            if cell is not None and cell.spread is not None:
                low, average, high = cell.spread
                axis.barh(row, high - low, left=low, height=2 * HALF_HEIGHT, color=GREY, alpha=0.2)
                draw_bar(axis, row, average, GREY)
        _name_rows(axis, [_label(record) for record in own], f"test {_metric(own[0])}", own[0])
        if not own[0].percent:  # long numbers close together
            axis.locator_params("x", nbins=4)
    caption = "Test score of every seed (dots), and minimum, average and maximum where the paper prints them (grey)."
    return Picture(f"{study.name}-seeds", to_svg(figure), caption)


def compare_units(study: Study, records: Sequence[Record]) -> Picture:
    """Test error of every seed of our unit, tuned or not, and of other units, with the numbers the paper quotes."""
    figure, panels = _panels(records, height=3.4)
    for axis, found in panels:
        own, names = sorted(found, key=lambda record: record.setup.unit != "lipschitz"), []
        for row, record in enumerate(own):
            errors = [100 - _shown(record, s) if record.percent else s for s in record.scores()]
            draw_dots(axis, row, errors, BLUE if record.setup.unit == "lipschitz" else GREEN)
            draw_bar(axis, row, sum(errors) / len(errors), RED)
            cell = find_cell(record.setup)
            if cell is not None and record.kind != "tuned":
                printed = 100 - cell.printed if record.percent else cell.printed
                axis.plot(printed, row, marker="D", markersize=5, color=GREY, linestyle="none")
            tuned = ", tuned" if record.kind == "tuned" else ""
            layers = f"{record.setup.num_layers} × " if record.setup.num_layers > 1 else ""
            names.append(f"{unit_and_start(record)}{tuned}, N = {layers}{record.setup.hidden_size}")
        _name_rows(axis, names, "test error (%)" if own[0].percent else f"test {own[0].metric}", own[0])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.set_xticks(log_ticks(axis.get_xlim()))
    caption = (
        "Test error of every seed (dots) on a logarithmic scale, and the mean over seeds (red). Grey: the lowest error "
        "that the paper prints for its own unit or quotes for another."
    )
    return Picture(f"{study.name}-units", to_svg(figure), caption)


def unit_and_start(record: Record) -> str:
    """The unit's name, marked where it differs from the published unit."""
    return record.setup.unit + (", warm start" if record.setup.unit_options.get("warm_start") else "")


def _name_rows(axis: Any, names: Sequence[str], label: str, record: Record) -> None:
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel=label, title=_title(record))
    axis.invert_yaxis()


def _panels(records: Sequence[Record], height: float = 3.4) -> tuple[Any, list[tuple[Any, list[Record]]]]:
    """One panel per task and metric, with its records."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        options = {name: value for name, value in record.setup.task_options.items() if name == "length"}
        groups.setdefault((f"{record.setup.task} {options}", record.metric), []).append(record)
    figure, axes = new_figure(len(groups), width=5.4, height=height)
    return figure, list(zip(axes, groups.values(), strict=True))


def _title(record: Record) -> str:
    length = record.setup.task_options.get("length")
    return record.setup.task if length is None else f"{record.setup.task}, T = {length}"


def _metric(record: Record) -> str:
    return f"{record.metric} (%)" if record.percent else record.metric


def _shown(record: Record, score: float) -> float:
    return 100 * score if record.percent else score


def _label(record: Record) -> str:
    values = record.setup
    integrator = values.unit_options.get("integrator", values.unit)
    name = f"{values.unit}, {integrator}" if record.kind == QUICK and integrator != values.unit else integrator
    return f"N = {values.hidden_size}, {name}"


def _colours(records: Sequence[Record]) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(records))]


def _columns(record: Record) -> tuple[list[int], list[list[float]]]:
    """The epochs, and for each the scores of the seeds that have one."""
    curves = record.curves[f"validation_{record.metric}"]
    columns = [[_shown(record, value) for value in values if value is not None] for values in zip(*curves, strict=True)]
    known = [(epoch, values) for epoch, values in enumerate(columns, 1) if values]
    return [epoch for epoch, _ in known], [values for _, values in known]
