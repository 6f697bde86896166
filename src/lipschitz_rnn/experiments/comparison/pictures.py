"""Pictures of a comparison: the critical-difference diagram, and the learning curves of all rows on a task."""

from __future__ import annotations

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import BLUE, RED, draw_curves, empty_figure, new_figure, transparent_svg, whole_epochs
from lipschitz_rnn.experiments.comparison.collecting import Comparison
from lipschitz_rnn.experiments.comparison.statistics import Ranking

_LINE = 0.32  # inches a name
_LONGEST = 40  # characters of a name
_CURVES = 12  # most rows in one picture


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


def joint_curves(comparison: Comparison) -> list[Picture]:
    """The validation curves of all rows, one picture per task."""
    pictures = []
    for number, column in enumerate(comparison.columns, 1):
        cells = [cell for (_, name), cell in comparison.cells.items() if name == column and any(cell.curves)]
        if not cells:
            continue
        cells, all_cells = comparison.best_first(cells)[:_CURVES], cells
        figure, (axis,) = new_figure(1, width=7.2, height=3.8)
        for index, cell in enumerate(cells):  # ten colours, then the same ones dashed
            scale, longest = 100.0 if cell.percent else 1.0, max(map(len, cell.curves))
            curves = [
                [*(None if value is None else scale * value for value in curve), *[None] * (longest - len(curve))]
                for curve in cell.curves
            ]
            line = ("-", "--", ":")[index // 10 % 3]
            draw_curves(axis, range(1, longest + 1), curves, f"C{index % 10}", _short(cell.row), line)
        unit = " (%)" if cells[0].percent else ""
        axis.set(xlabel="epoch", ylabel=f"validation {cells[0].metric}{unit}")
        whole_epochs(axis)
        axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        some = f"the best {_CURVES} of {len(all_cells)} rows; " if len(all_cells) > _CURVES else ""
        caption = f"Validation curves on {column}: {some}thin lines are seeds, strong lines their mean."
        pictures.append(Picture(f"curves-{number}", transparent_svg(figure), caption))
    return pictures


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
