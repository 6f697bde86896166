"""Pictures of a comparison: the critical-difference diagram, and the learning curves of all rows on a task."""

from __future__ import annotations

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import BLUE, RED, empty_figure, plain_label, transparent_svg
from lipschitz_rnn.experiments.comparison.collecting import Comparison
from lipschitz_rnn.experiments.comparison.statistics import Ranking
from lipschitz_rnn.experiments.pages.joint_curves import (
    MOST_CURVES,
    CurvePanel,
    joint_curves,
    percent_curves,
    which_of,
)

_LINE = 0.32  # inches a name
_LONGEST = 40  # characters of a name


def critical_difference(ranking: Ranking) -> Picture:
    """Mean ranks on a line, best on the left; a bar joins rows that do not differ significantly (Demšar, 2006)."""
    count, half = len(ranking.names), (len(ranking.names) + 1) // 2
    depth = half + 0.5 * len(ranking.groups) + 0.6
    figure, (axis,) = empty_figure(1, 7.2, 1.0 + _LINE * depth)
    axis.axis("off")
    axis.set(xlim=(0.2, count + 0.8), ylim=(-depth, 2.4))
    axis.plot([1, count], [0, 0], color="black", linewidth=1.2)
    for place in range(1, count + 1):
        axis.plot([place, place], [0, 0.25], color="black", linewidth=1.2)
        axis.text(place, 0.4, str(place), ha="center", va="bottom", fontsize=8)
    width = min(ranking.critical_difference, count - 1)
    axis.plot([1, 1 + width], [1.7, 1.7], color=RED, linewidth=2.0)
    cut = "" if width == ranking.critical_difference else " (wider than the line)"
    label = f"critical difference {ranking.critical_difference:.2f}{cut}"
    axis.text(1, 1.85, label, ha="left", va="bottom", fontsize=8, color=RED)
    rank_of = dict(zip(ranking.names, ranking.ranks, strict=True))
    for level, group in enumerate(ranking.groups, 1):
        ends = [rank_of[group[0]] - 0.05, rank_of[group[-1]] + 0.05]
        axis.plot(ends, [-0.5 * level] * 2, color=BLUE, linewidth=4.0, solid_capstyle="butt")
    below = -0.5 * len(ranking.groups) - 0.6
    for index, (name, value) in enumerate(rank_of.items()):
        left = index < half
        height = below - (index if left else count - 1 - index)
        end = 0.7 if left else count + 0.3
        axis.plot([value, value, end], [0, height, height], color="black", linewidth=0.8)
        shown = f"{_short(name)}  {value:.2f} " if left else f" {value:.2f}  {_short(name)}"
        axis.text(end, height, shown, ha="right" if left else "left", va="center", fontsize=8)
    caption = "Mean ranks, best on the left. A bar joins rows whose ranks differ by less than the critical difference."
    return Picture("ranks", transparent_svg(figure), caption)


def learning_curves(comparison: Comparison) -> list[Picture]:
    """The validation curves of all rows, one picture per task."""
    pictures = []
    for number, column in enumerate(comparison.columns, 1):
        found = [cell for (_, name), cell in comparison.cells.items() if name == column and any(cell.curves)]
        if not found:
            continue
        cells = comparison.best_first(found)[:MOST_CURVES]
        unit = " (%)" if cells[0].percent else ""
        curves = [(cell.row, percent_curves(cell.curves, cell.percent)) for cell in cells]
        caption = f"Validation curves on {column}: {which_of(len(cells), len(found), 'row')}."
        panel = CurvePanel(f"validation {cells[0].metric}{unit}", curves)
        pictures.append(joint_curves(f"curves-{number}", caption, [panel]))
    return pictures


def _short(name: str) -> str:
    return plain_label(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
