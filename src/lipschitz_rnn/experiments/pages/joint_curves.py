"""Learning curves of many configurations in one picture, for reports, comparisons and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import (
    GREY,
    draw_curves,
    new_figure,
    plain_label,
    plain_log_ticks,
    read_panels,
    transparent_svg,
    whole_epochs,
)  # fmt: skip

MOST_CURVES = 12  # in one picture
_LONGEST = 90  # characters of a name
_LINE = 0.19  # inches of a line of the legend
Curves = Sequence[Sequence[float | None]]  # of every seed, one value an epoch


@dataclass(frozen=True)
class CurvePanel:
    """One pair of axes. `curves`: the seeds of every configuration, by name; `mark`: a height and what is there."""

    title: str
    curves: Sequence[tuple[str, Curves]]
    logarithmic: bool = False
    mark: tuple[float, str] | None = None


def joint_curves(name: str, caption: str, panels: Sequence[CurvePanel]) -> Picture:
    """Panels beside each other, with one legend below: thin lines are seeds, strong lines their mean."""
    names = list(dict.fromkeys(label for panel in panels for label, _ in panel.curves))
    columns = 2 if len(names) > 1 and max(map(len, names)) <= _LONGEST // 2 - 5 else 1
    lines = -(-len(names) // columns)
    figure, axes = new_figure(len(panels), 7.2 if len(panels) == 1 else 4.6, 3.4 + _LINE * lines)
    for axis, panel in zip(axes, panels, strict=True):
        for label, curves in panel.curves:
            number, longest = names.index(label), max(map(len, curves), default=0)
            filled = [[*curve, *[None] * (longest - len(curve))] for curve in curves]  # unfinished runs are shorter
            line = ("-", "--", ":")[number // 10 % 3]  # ten colours, then the same ones dashed
            draw_curves(axis, range(1, longest + 1), filled, f"C{number % 10}", _short(label), line)
        if panel.mark is not None:
            axis.axhline(panel.mark[0], color=GREY, linestyle="--", linewidth=1.0, label=panel.mark[1])
        axis.set(xlabel="epoch", ylabel=panel.title)
        if panel.logarithmic and any(v is not None and v > 0 for _, each in panel.curves for c in each for v in c):
            axis.set_yscale("log")
            plain_log_ticks(axis)
        whole_epochs(axis)
    handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=8
    )  # fmt: skip
    if any(len(curves) > 1 for panel in panels for _, curves in panel.curves):
        caption += " Thin lines are seeds, strong lines their mean."
    return Picture(name, transparent_svg(figure), caption, read_panels(figure))


def percent_curves(curves: Curves, percent: bool) -> list[list[float | None]]:
    """In percent if the metric is a fraction."""
    scale = 100.0 if percent else 1.0
    return [[None if value is None else scale * value for value in curve] for curve in curves]


def which_of(count: int, total: int, noun: str) -> str:
    """For a caption: how many of them are shown, e.g. "the best 12 of 24 trials"."""
    if count < total:
        return f"the best {count} of {total} {noun}s"
    return {1: f"one {noun}", 2: f"both {noun}s"}.get(total, f"all {total} {noun}s")


def _short(name: str) -> str:
    return plain_label(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
