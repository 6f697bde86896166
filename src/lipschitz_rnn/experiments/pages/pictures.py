"""Pictures for any study: learning curves, the scores of all seeds, and a comparison of units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import (
    BLUE,
    GREEN,
    GREY,
    HALF_HEIGHT,
    PALETTE,
    RED,
    draw_bar,
    draw_dots,
    legend_below,
    look_of,
    new_figure,
    percent_limit,
    plain_log_ticks,
    to_svg,
)  # fmt: skip
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import Study

_ACROSS = 2  # panels in a row: more would be too small on a page


def learning_curves(study: Study, records: Sequence[Record]) -> Picture:
    """Validation score by epoch, one panel per task: mean and range over seeds."""
    figure, panels = _panels(records)
    labels = _labels(records)
    looks = {label: look_of(number) for number, label in enumerate(dict.fromkeys(labels.values()))}
    for axis, own in panels:
        limits: list[float] = []
        for record in own:
            epochs, columns = _columns(record)
            if not epochs:  # all networks diverged in the first epoch
                continue
            label = labels[record.name]
            means = [sum(column) / len(column) for column in columns]
            low, high = [min(column) for column in columns], [max(column) for column in columns]
            axis.fill_between(epochs, low, high, color=looks[label]["color"], alpha=0.15, linewidth=0)
            mark = "o" if len(epochs) == 1 else ""
            axis.plot(epochs, means, linewidth=1.4, marker=mark, label=label, **looks[label])
            limits += [*means[len(means) // 5 :], max(high) if record.percent else min(low)]
        if limits:
            height = max(limits) - min(limits) or abs(max(limits)) or 1.0  # of one epoch and one seed: nothing
            margin = 0.05 * height + 0.5 * own[0].percent
            axis.set_ylim(max(0.0, min(limits) - margin), max(limits) + margin)
            if own[0].percent:
                percent_limit(axis)
        axis.set(xlabel="epoch", ylabel=f"validation {_metric(own[0])}", title=_title(own[0]))
        if max(record.setup.epochs for record in own) < 10:
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    legend_below(figure)
    caption = "Validation score by epoch, without the first epochs: mean and range over seeds."
    return Picture(f"{study.name}-learning", to_svg(figure), caption)


def distributions(study: Study, records: Sequence[Record]) -> Picture:
    """Test score of every seed at the selected epoch, with the paper's minimum, average and maximum."""
    figure, panels = _panels(records, height=1.4 + 0.35 * _most_rows(records))
    labels, printed = _labels(records), False
    for axis, own in panels:
        for row, record in enumerate(own):
            draw_dots(axis, row, [_shown(record, score) for score in record.scores()], PALETTE[row % len(PALETTE)])
            cell = find_cell(record.setup)
            if cell is not None and cell.spread is not None:
                low, average, high = cell.spread
                axis.barh(row, high - low, left=low, height=2 * HALF_HEIGHT, color=GREY, alpha=0.2)
                draw_bar(axis, row, average, GREY)
                printed = True
        _name_rows(axis, [labels[record.name] for record in own], f"test {_metric(own[0])}", own[0])
        if not own[0].percent:  # long numbers close together
            axis.locator_params("x", nbins=4)
    caption = "Test score of every seed"
    caption += " (dots), and minimum, average and maximum where the paper prints them (grey)." if printed else "."
    return Picture(f"{study.name}-seeds", to_svg(figure), caption)


def compare_units(study: Study, records: Sequence[Record]) -> Picture:
    """Test error of every seed of our unit, tuned or not, and of other units, with the numbers the paper quotes."""
    figure, panels = _panels(records, height=1.2 + 0.25 * _most_rows(records))
    quoted = False
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
                quoted = True
            tuned = ", tuned" if record.kind == "tuned" else ""
            layers = f"{record.setup.num_layers} × " if record.setup.num_layers > 1 else ""
            names.append(f"{unit_and_start(record)}{tuned}, N = {layers}{record.setup.hidden_size}")
        _name_rows(axis, names, "test error (%)" if own[0].percent else f"test {own[0].metric}", own[0])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        plain_log_ticks(axis)
    caption = "Test error of every seed (dots) on a logarithmic scale, and the mean over seeds (red)."
    if quoted:
        caption += " Grey: the lowest error that the paper prints for its own unit or quotes for another."
    return Picture(f"{study.name}-units", to_svg(figure), caption)


def unit_and_start(record: Record) -> str:
    """The unit's name, marked where it differs from the published unit."""
    return record.setup.unit + (", warm start" if record.setup.unit_options.get("warm_start") else "")


def _name_rows(axis: Any, names: Sequence[str], label: str, record: Record) -> None:
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel=label, title=_title(record))
    axis.invert_yaxis()


def _most_rows(records: Sequence[Record]) -> int:
    """Of one panel."""
    return max(Counter(map(_panel_of, records)).values())


def _panel_of(record: Record) -> tuple[str, str]:
    return _title(record), record.metric


def _panels(records: Sequence[Record], height: float = 3.4) -> tuple[Any, list[tuple[Any, list[Record]]]]:
    """One panel per task and metric, with its records."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault(_panel_of(record), []).append(record)
    figure, axes = new_figure(len(groups), width=5.4, height=height, across=_ACROSS)
    return figure, list(zip(axes, groups.values(), strict=True))


def _title(record: Record) -> str:
    length = record.setup.task_options.get("length")
    return record.setup.task if length is None else f"{record.setup.task}, T = {length}"


def _metric(record: Record) -> str:
    return f"{record.metric} (%)" if record.percent else record.metric


def _shown(record: Record, score: float) -> float:
    return 100 * score if record.percent else score


def _labels(records: Sequence[Record]) -> dict[str, str]:
    """What tells the rows of a picture apart: the parts of their names that not all have, nor the title of a panel."""
    parts = {record.name: _parts(record) for record in records}
    shared = set.intersection(*map(set, parts.values()))
    return {name: ", ".join([part for part in own if part not in shared] or own) for name, own in parts.items()}


def _parts(record: Record) -> list[str]:
    """The name of a row without its group and task, as in "times-input", "gru", "N = 32"."""
    values = record.setup
    own = record.name.removeprefix(f"{record.kind}/").removeprefix(f"{values.task}/").split("/")
    length = f"length-{values.task_options.get('length')}"
    sizes = {str(values.hidden_size): f"N = {values.hidden_size}"}
    return [sizes.get(part, part) for part in own if part != length]


def _columns(record: Record) -> tuple[list[int], list[list[float]]]:
    """The epochs, and for each the scores of the seeds that have one."""
    curves = record.curves[f"validation_{record.metric}"]
    columns = [[_shown(record, value) for value in values if value is not None] for values in zip(*curves, strict=True)]
    known = [(epoch, values) for epoch, values in enumerate(columns, 1) if values]
    return [epoch for epoch, _ in known], [values for _, values in known]
