"""A section for sweeps: test score against the option that varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.numbers import counted, show_score, spread
from lipschitz_rnn.drawing import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    draw_band,
    legend_below,
    new_figure,
    percent_limit,
    to_svg,
)
from lipschitz_rnn.experiments.pages.sections import time_of
from lipschitz_rnn.experiments.results import Record, count_diverged, scores_of
from lipschitz_rnn.experiments.study import QUICK, Study

_COLOURS = (RED, BLUE, GREEN, PURPLE)
_MARKS = ((0, (1, 1.5)), (0, (5, 2)))  # line styles of the paper's best values, task by task


class Point(NamedTuple):
    """All seeds of one value."""

    value: float
    networks: int
    scores: list[float]  # test score at the selected epoch, where there is one
    last: list[float]  # test score at the last epoch
    diverged: int

    @property
    def mean(self) -> float | None:
        return spread(self.scores)[1]


class Curve(NamedTuple):
    """Scores on one task against one option; a sweep may consist of several runs."""

    task: str
    option: str
    records: list[Record]
    points: list[Point]

    @property
    def differences(self) -> str:
        """How the runs differ from the paper, as their records say."""
        return "; ".join(dict.fromkeys(record.why for record in self.records if record.why))

    @property
    def epochs(self) -> int:
        return self.records[0].setup.epochs


def varied_option(record: Record) -> str | None:
    """The one option whose numbers the variants of a run are; None for any other run."""
    variants = record.setup.variants
    names = {name for variant in variants for name in variant}
    values = [value for variant in variants for value in variant.values()]
    plain = all(isinstance(value, int | float) for value in values) and len(values) == len(variants)
    return names.pop() if len(names) == 1 and plain and all(variants) else None


def read_curves(records: Sequence[Record]) -> list[Curve]:
    """Of runs that vary one option; others are left to other sections."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record, option in ((record, varied_option(record)) for record in records):
        if option is None:
            continue
        groups.setdefault((record.kind, record.setup.task, option), []).append(record)
    curves = []
    for (_, task, option), same in groups.items():
        found: dict[float, list[Any]] = {}
        for seed in (seed for record in same for seed in record.seeds):
            found.setdefault(float(seed["variant"][option]), []).append(seed)
        points = []
        for value, seeds in sorted(found.items()):
            scores, last = (scores_of(seeds, name) for name in ("test", "test_last"))
            diverged = count_diverged(seeds)
            points.append(Point(value, len(seeds), scores, last, diverged))
        curves.append(Curve(task, option, same, points))
    return curves


@dataclass(frozen=True)
class ScoreAgainstOption:
    """The section of a study whose rows each vary one option.

    symbols: option -> its symbol; meanings: option -> what it is; marks: (task, option) -> the paper's best values;
    remarks: (task, option) -> a sentence on what the paper says.
    """

    symbols: Mapping[str, str] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict)
    remarks: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def __call__(self, study: Study, records: Sequence[Record]) -> list[Block]:
        curves = read_curves(records)
        if not curves:
            return []
        differences = _differences(curves)
        caption = "Test score against the option that varies: mean over seeds, and the range from worst to best seed."
        if any(point.diverged for curve in curves for point in curve.points):
            caption += " A cross marks a value at which some or all networks diverged."
        picture = Picture(study.name, to_svg(self.draw(curves)), " ".join([caption, *differences]))
        page: list[Block] = [*([Paragraph(" ".join(differences))] if differences else []), picture]
        for curve in curves:
            remark = self.remarks.get((curve.task, curve.option), "")
            title = f"{_named(curve, curves)}, {self._label(curve.option)}"
            page += [Heading(title), self._table(curve)]
            page.append(Paragraph(" ".join(filter(None, (self._best(curve), remark, _origin(curve))))))
        return page

    def _symbol(self, option: str) -> str:
        return self.symbols.get(option, option)

    def _label(self, option: str) -> str:
        meaning = self.meanings.get(option)
        return self._symbol(option) + (f": {meaning}" if meaning else "")

    def _table(self, curve: Curve) -> Table:
        header = [self._symbol(curve.option), "networks", "test min", "mean", "max", "last epoch, mean", "diverged"]
        rows, percent = [], curve.records[0].percent
        for point in curve.points:
            shown = [show_score(value, percent) for value in (*spread(point.scores), spread(point.last)[1])]
            rows.append([f"{point.value:g}", str(point.networks), *shown, str(point.diverged or "–")])
        return Table(header, rows, left=0)

    def _best(self, curve: Curve) -> str:
        """Where the mean is best, which is what a sweep is made for."""
        first = curve.records[0]
        known = [(point.mean, point.value) for point in curve.points if point.mean is not None]
        if len(known) < 2:
            return ""
        mean, value = (max if first.higher_is_better else min)(known, key=lambda pair: pair[0])
        return f"The mean is best at {self._symbol(curve.option)} = {value:g} ({show_score(mean, first.percent)})."

    def draw(self, curves: Sequence[Curve]) -> Any:
        """One panel per option: the mean as a line, the range over seeds as a band."""
        options = list(dict.fromkeys(curve.option for curve in curves))
        names = list(dict.fromkeys(_named(curve, curves) for curve in curves))
        figure, axes = new_figure(len(options))
        for axis, option in zip(axes, options, strict=True):
            for curve in (curve for curve in curves if curve.option == option):
                name = _named(curve, curves)
                self._draw_curve(axis, curve, name, names.index(name))
            self._draw_marks(axis, [curve for curve in curves if curve.option == option], names)
            first = curves[0].records[0]
            axis.set(xlabel=self._label(option), ylabel=f"test {first.metric}{' (%)' if first.percent else ''}")
            if first.percent:
                percent_limit(axis)
        legend_below(figure)
        if differences := _differences(curves):
            figure.suptitle("\n".join(differences), fontsize=9, color=GREY)
        return figure

    def _draw_curve(self, axis: Any, curve: Curve, name: str, place: int) -> None:
        """The curve, and a cross at every value where networks diverged."""
        colour, points = _COLOURS[place % len(_COLOURS)], [point for point in curve.points if point.scores]
        scale = 100.0 if curve.records[0].percent else 1.0
        seeds = max(point.networks for point in curve.points)
        label = f"{name} ({seeds} seed{'s' if seeds > 1 else ''})"
        columns = [[scale * score for score in point.scores] for point in points]
        draw_band(axis, [point.value for point in points], columns, colour, label, mark="o")
        look = {"color": colour, "marker": "x", "markersize": 7, "linestyle": "none"}
        for point in (point for point in curve.points if point.diverged):
            where: dict[str, Any] = {}
            height = scale * point.mean if point.mean is not None else 0.01 + 0.05 * place
            if point.mean is None:  # near the bottom, where no score is left
                where = {"transform": axis.get_xaxis_transform(), "clip_on": False}
            axis.plot([point.value], [height], label=f"{name}: diverged", **look, **where)

    def _draw_marks(self, axis: Any, curves: Sequence[Curve], names: Sequence[str]) -> None:
        """The paper's best values, once for each task, in the colour of its first curve."""
        for number, task in enumerate(dict.fromkeys(curve.task for curve in curves)):
            first = next(curve for curve in curves if curve.task == task)
            colour = _COLOURS[names.index(_named(first, curves)) % len(_COLOURS)]
            look = {"color": colour, "linewidth": 1.5, "linestyle": _MARKS[number % len(_MARKS)]}
            for best in self.marks.get((task, first.option), ()):
                axis.axvline(best, label=f"{task}: paper's peak", zorder=1, **look)


def _named(curve: Curve, curves: Sequence[Curve]) -> str:
    """The task, and the number of epochs where runs of other lengths are on the same page."""
    lengths = {other.epochs for other in curves if other.task == curve.task}
    return f"{curve.task}, {curve.epochs} epochs" if len(lengths) > 1 else curve.task


def _differences(curves: Sequence[Curve]) -> list[str]:
    """What a reader must know before comparing the numbers with the paper's."""
    lengths = _lengths(curves)
    changed: dict[str, list[str]] = {}
    for curve in (curve for curve in curves if curve.differences):
        if not (lengths and f"{curve.epochs} epochs" in curve.differences):  # which is said already
            changed.setdefault(curve.differences, []).append(_named(curve, curves))
    differences = [f"{' and '.join(dict.fromkeys(tasks))}: {text}." for text, tasks in changed.items()]
    return [lengths, *differences] if lengths else differences


def _lengths(curves: Sequence[Curve]) -> str:
    """How many seeds the runs of each length have; empty if all are equally long or the seeds differ otherwise."""
    seeds = {(curve.epochs, len(record.setup.seeds)) for curve in curves for record in curve.records}
    epochs = [length for length, _ in seeds]
    if len(seeds) < 2 or len(set(epochs)) < len(epochs):
        return ""
    known = [f"runs of {length} epochs have {counted(number, 'seed')}" for length, number in sorted(seeds)]
    return f"{', '.join(known).capitalize()}."


def _origin(curve: Curve) -> str:
    first, values = curve.records[0], curve.records[0].setup
    fixed = ", ".join(f"{name} = {value}" for name, value in values.unit_options.items() if name != curve.option)
    quick = " (quick)" if first.kind == QUICK else ""
    return (
        f"N = {values.hidden_size}, {fixed}; {values.epochs} epochs{quick}, seeds {', '.join(map(str, values.seeds))}; "
        f"{time_of(curve.records)} on {first.environment.get('device', '?')}. Made by `{first.command}`."
    )
