"""The page of the ablation study, made from its records: accuracy against α and β as in the paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lipschitz_rnn.experiments.ablation import EPOCHS
from lipschitz_rnn.experiments.campaign import time_of
from lipschitz_rnn.experiments.figures import BLUE, GREEN, GREY, RED, new_figure, to_svg
from lipschitz_rnn.experiments.paper import ABLATION_BEST_BETA, ABLATION_LARGEST_ALPHA
from lipschitz_rnn.experiments.report.document import Block, Heading, Paragraph, Picture, Table
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.scores import show_score

SYMBOLS = {"alpha": "α", "beta": "β"}
MEANING = {"alpha": "factor on the linear term", "beta": "from symmetric to skew-symmetric"}
COLOURS = {"ordered-mnist": RED, "permuted-mnist": BLUE, "digits": GREEN}


@dataclass(frozen=True)
class Point:
    """All seeds of one value."""

    value: float
    networks: int
    scores: list[float]  # test at the selected epoch, of the networks that have one
    last: list[float]  # test at the last epoch
    diverged: int

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def spread(self) -> tuple[float, float, float]:
        """Minimum, mean, maximum."""
        return min(self.scores), self.mean, max(self.scores)


@dataclass(frozen=True)
class Curve:
    """Accuracy of one task against one option."""

    task: str
    option: str
    records: list[Record]
    points: list[Point]

    @property
    def quick(self) -> bool:
        return any(record.kind == "quick" for record in self.records)

    @property
    def differences(self) -> str:
        """What is not as in the paper, in the words of the records."""
        return "; ".join(dict.fromkeys(record.why for record in self.records if record.why and not self.quick))

    def best(self) -> Point | None:
        return max((point for point in self.points if point.scores), key=lambda point: point.mean, default=None)


def read_curves(records: Sequence[Record]) -> list[Curve]:
    """Records of the same task, kind and option laid together: a sweep may have run in several parts."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        option = next(iter(record.settings["variants"][0]))
        groups.setdefault((record.kind, record.settings["task"], option), []).append(record)
    curves = []
    for (_, task, option), same in groups.items():
        found: dict[float, list[Any]] = {}
        for record in same:
            for seed in record.seeds:
                found.setdefault(float(seed["variant"][option]), []).append(seed)
        curves.append(Curve(task, option, same, [_point(value, found[value]) for value in sorted(found)]))
    return curves


def _point(value: float, seeds: Sequence[Any]) -> Point:
    scores, last = ([seed[name] for seed in seeds if seed[name] is not None] for name in ("test", "test_last"))
    return Point(value, len(seeds), scores, last, sum(seed["diverged_step"] is not None for seed in seeds))


def blocks(records: Sequence[Record]) -> list[Block]:
    """The whole page."""
    curves = read_curves(records)
    page: list[Block] = [Heading("Ablation: the linear term and the matrices", 1), Paragraph(_introduction(curves))]
    page.append(Picture("ablation", to_svg(draw(curves)), _caption(curves)))
    for curve in curves:
        page += [Heading(_title(curve)), Paragraph(_finding(curve)), _table(curve), Paragraph(_origin(curve))]
    return page


def summary(records: Sequence[Record]) -> list[Block]:
    """Where each sweep is best, and what its ends are, in one table."""
    header = ["task", "varied", "best value", "test, mean", "first value", "test, mean", "last value", "test, mean"]
    rows = []
    for curve in read_curves(records):
        points = (curve.best() or curve.points[0], curve.points[0], curve.points[-1])
        cells = [text for p in points for text in (f"{p.value:g}", show_score(p.mean if p.scores else None, True))]
        note = "quick" if curve.quick else curve.differences
        rows.append([curve.task + (f" ({note})" if note else ""), SYMBOLS[curve.option], *cells])
    return [Table(header, rows, left=2)]


def _introduction(curves: Sequence[Curve]) -> str:
    text = (
        "Test accuracy of h⁺ = h + ε(αA h + tanh(W h + U x + b)) against α, and against the β of A and W, at the epoch "
        "that validation selected. All values and seeds of a sweep train side by side as one ensemble; equal seeds "
        "start from the same random numbers and see the same batches."
    )
    return " ".join([*_warnings(curves), text])


def _warnings(curves: Sequence[Curve]) -> list[str]:
    """What a reader has to know before he lays the numbers beside the paper's."""
    changed: dict[str, list[str]] = {}
    for curve in curves:
        if curve.differences:
            changed.setdefault(curve.differences, []).append(curve.task)
    told = [f"{' and '.join(dict.fromkeys(tasks))}: {text}." for text, tasks in changed.items()]
    return [_warning(curves), *told] if any(curve.quick for curve in curves) else told


def _warning(curves: Sequence[Curve]) -> str:
    settings = next(curve.records[0].settings for curve in curves if curve.quick)
    return (
        f"Quick version, not the paper's experiment: {settings['task']} (8 × 8 images), N = {settings['hidden_size']}, "
        f"{settings['epochs']} epochs."
    )


def _caption(curves: Sequence[Curve]) -> str:
    text = "Test accuracy against α and β: mean over seeds, with the range from the worst to the best seed."
    if any(point.diverged for curve in curves for point in curve.points):
        text += " A cross: some or all networks of that value diverged."
    return " ".join([text, *_warnings(curves)])


def _title(curve: Curve) -> str:
    return f"{curve.task}, {SYMBOLS[curve.option]}: {MEANING[curve.option]}" + (" (quick)" if curve.quick else "")


def _finding(curve: Curve) -> str:
    best = curve.best()
    if best is None:
        return "No network of this sweep has a score."
    symbol = SYMBOLS[curve.option]
    text = f"The mean is highest at {symbol} = {best.value:g} ({show_score(best.mean, True)})"
    ends = [point for point in (curve.points[0], curve.points[-1]) if point.scores and point is not best]
    text += "".join(f"; at {symbol} = {point.value:g} it is {show_score(point.mean, True)}" for point in ends) + "."
    if curve.option == "beta" and curve.task in ABLATION_BEST_BETA:
        text += f" The paper finds its peak at β = {' and '.join(map(str, ABLATION_BEST_BETA[curve.task]))}."
    if curve.option == "alpha" and not curve.quick:
        text += f" The paper's unit degenerates for α > {ABLATION_LARGEST_ALPHA}."
    return text


def _table(curve: Curve) -> Table:
    header = [SYMBOLS[curve.option], "networks", "test min", "mean", "max", "last epoch, mean", "diverged"]
    rows = []
    for point in curve.points:
        spread = point.spread if point.scores else (None,) * 3
        last = sum(point.last) / len(point.last) if point.last else None
        shown = [show_score(value, True) for value in (*spread, last)]
        rows.append([f"{point.value:g}", str(point.networks), *shown, str(point.diverged or "–")])
    return Table(header, rows, left=0)


def _origin(curve: Curve) -> str:
    first = curve.records[0]
    options = first.settings["unit_options"]
    fixed = ", ".join(f"{name} = {value}" for name, value in options.items() if name != curve.option)
    epochs = first.settings["epochs"]
    shorter = "" if curve.quick or epochs == EPOCHS else f" (not the paper's {EPOCHS})"
    return (
        f"N = {first.settings['hidden_size']}, {fixed}; {epochs} epochs{shorter}, seeds "
        f"{', '.join(map(str, first.settings['seeds']))}; {time_of(curve.records)} on "
        f"{first.environment.get('device', '?')}. Made by `{first.command}`."
    )


def draw(curves: Sequence[Curve]) -> Any:
    """One panel for each option: the mean as a line, all seeds within the band."""
    options = list(dict.fromkeys(curve.option for curve in curves))
    figure, axes = new_figure(len(options))
    for axis, option in zip(axes, options, strict=True):
        for place, curve in enumerate(curve for curve in curves if curve.option == option):
            _draw_curve(axis, curve)
            _draw_diverged(axis, curve, height=0.01 + 0.05 * place)
        axis.set(xlabel=f"{SYMBOLS[option]}, {MEANING[option]}", ylabel="test accuracy (%)")
    labels = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    columns = 1 + len(options)
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    if _warnings(curves):
        figure.suptitle("\n".join(_warnings(curves)), fontsize=9, color=GREY)
    return figure


def _draw_curve(axis: Any, curve: Curve) -> None:
    colour = COLOURS.get(curve.task, GREY)
    points = [point for point in curve.points if point.scores]
    values = [point.value for point in points]
    low, mean, high = ([100 * point.spread[place] for point in points] for place in range(3))
    seeds = max(point.networks for point in curve.points)
    axis.fill_between(values, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(values, mean, color=colour, marker="o", markersize=3.5, label=f"{curve.task} ({seeds} seeds)")
    for best in ABLATION_BEST_BETA.get(curve.task, ()) if curve.option == "beta" and not curve.quick else ():
        axis.axvline(best, color=colour, linewidth=0.8, linestyle=":", label=f"{curve.task}: paper's peak")


def _draw_diverged(axis: Any, curve: Curve, height: float) -> None:
    """A cross at every value of which networks diverged: on the curve, or near the bottom where no score is left."""
    colour = COLOURS.get(curve.task, GREY)
    cross = {"color": colour, "marker": "x", "markersize": 7, "linestyle": "none", "label": f"{curve.task}: diverged"}
    for point in (point for point in curve.points if point.diverged):
        if point.scores:
            axis.plot([point.value], [100 * point.mean], **cross)
        else:
            axis.plot([point.value], [height], transform=axis.get_xaxis_transform(), clip_on=False, **cross)
