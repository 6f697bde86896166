"""Pictures: figures with one look, curves over seeds, and SVG that is the same every time.

The one place where matplotlib is imported for a picture, when one is drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_READINGS = 400  # points of a curve that a page can show
HALF_HEIGHT = 0.32  # of a row of dots
RED, BLUE, GREY, GREEN, PURPLE = "#c8553d", "#2d6a9f", "#8a8a8a", "#3a7d44", "#7d5ba6"
PALETTE = (BLUE, GREEN, RED, PURPLE, "#c79a1e", "#3aa5a0", "#c76ba3", "#7a5c43")  # without grey, which is the paper's
_LEGEND_LINE = 0.19  # inches a line of a legend


def empty_figure(panels: int, width: float, height: float, across: int | None = None) -> tuple[Figure, Any]:
    """A figure of ``panels`` axes, ``across`` in a row, each ``width`` by ``height`` inches; and the axes, an array."""
    try:
        # Figures made without pyplot need no display and are freed like any other object.
        from matplotlib.figure import Figure as MatplotlibFigure
    except ImportError as error:
        raise ImportError(
            'pictures need matplotlib, which is not installed; install it by: pip install "lipschitz-rnn[experiments]"'
        ) from error
    columns = min(panels, across or panels)
    rows = -(-panels // columns)
    figure = MatplotlibFigure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def new_figure(
    panels: int, width: float = 4.6, height: float = 3.4, across: int | None = None
) -> tuple[Any, list[Any]]:
    """A figure in the style of all pages, without touching matplotlib's global state."""
    figure, found = empty_figure(panels, width, height, across)
    axes = list(found)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def to_svg(figure: Any) -> bytes:
    """The same figure gives the same bytes: no date, and names inside that follow from what is drawn."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "lipschitz-rnn"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def compact_svg(figure: Any) -> bytes:
    """Paths are cut to a hundredth of a point: a field of arrows is a third smaller then."""
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"\d+\.\d{3,}", _hundredths, path[0]), to_svg(figure))


def _hundredths(number: re.Match[bytes]) -> bytes:
    return b"%.2f" % float(number[0])


def transparent_svg(figure: Any) -> bytes:
    """Without a background, so that the page's own shows through, in a dark one too."""
    figure.patch.set_alpha(0.0)
    for axis in figure.axes:
        axis.patch.set_alpha(0.0)
    return to_svg(figure)


@dataclass(frozen=True)
class Panel:
    """What can be read off one pair of axes. Places are shares of the picture's width and height, from the top left.

    box: left, top, right and bottom of the axes.
    curves: for each, its name, its colour, and points (place across, place down, x, y).
    """

    box: tuple[float, float, float, float]
    label: str
    curves: Sequence[tuple[str, str, Sequence[tuple[float, float, float, float]]]]


def read_panels(figure: Any) -> list[Panel]:
    """The labelled curves of a figure that has been drawn, as they stand in the picture."""
    from matplotlib.colors import to_hex

    width, height = figure.bbox.size
    panels = []
    for axis in figure.axes:
        # A line across the axes, such as the paper's number, has another transform and no points of its own.
        lines = [line for line in axis.get_lines() if not str(line.get_label()).startswith("_")]
        lines = [line for line in lines if line.get_transform() is axis.transData]
        most = max((len(line.get_xdata()) for line in lines), default=0)
        stride = max(1, -(-most // _MOST_READINGS))  # a run of 0 epochs has curves without points
        curves = []
        for line in lines:
            values = np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])
            values = values[::stride]
            values = values[np.isfinite(values).all(axis=1)]
            places = axis.transData.transform(values) / (width, height)
            points = [(_short(a), _short(1 - b), float(x), float(y))
                      for (a, b), (x, y) in zip(places, values, strict=True)]  # fmt: skip
            curves.append((str(line.get_label()).replace(r"\$", "$"), str(to_hex(line.get_color())), points))
        left, bottom, right, top = (float(value) for value in axis.get_position().extents)
        box = (_short(left), _short(1 - top), _short(right), _short(1 - bottom))
        panels += [Panel(box, axis.get_xlabel(), curves)] if any(points for *_, points in curves) else []
    return panels


def _short(place: float) -> float:
    return round(float(place), 5)


def plain_label(text: str) -> str:
    """A name from elsewhere: its dollar signs are no mathematics."""
    return text.replace("$", r"\$")


def whole_epochs(axis: Any) -> None:
    """Ticks at whole epochs only."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def percent_limit(axis: Any) -> None:
    """No room above 100 %, where no score can be, but for half the thickness of a line."""
    low, high = axis.get_ylim()
    axis.set_ylim(low, min(high, 100.0 + 0.006 * (100.0 - low)))


def look_of(number: int) -> dict[str, str]:
    """Colour and line style of a curve among many: all colours solid, then dashed, then dotted."""
    lines = ("-", "--", ":")
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": lines[number // len(PALETTE) % len(lines)]}


def legend_below(figure: Any) -> None:
    """One legend for all axes, below them, where it hides no curve; the figure grows by its height."""
    handles = {
        label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if not handles:
        return
    width, height = figure.get_size_inches()
    columns = min(len(handles), max(1, int(width / (0.6 + 0.065 * max(map(len, handles))))))
    figure.set_figheight(height + _LEGEND_LINE * -(-len(handles) // columns))
    look = {"frameon": False, "fontsize": 8}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, **look)


def draw_curves(
    axis: Any,
    epochs: Sequence[float],
    curves: Sequence[Sequence[float | None]],
    colour: str,
    label: str,
    line: str = "-",
) -> None:
    """Every seed as a thin line, and their mean as a strong one."""
    values = [[float("nan") if value is None else value for value in curve] for curve in curves]
    mark = "o" if len(epochs) == 1 else ""
    if len(values) > 1:
        for curve in values:
            axis.plot(epochs, curve, color=colour, alpha=0.25, linewidth=0.8, linestyle=line, marker=mark)
    means = [mean_of([curve[i] for curve in values]) for i in range(len(epochs))]
    axis.plot(epochs, means, color=colour, linewidth=1.8, linestyle=line, label=label, marker=mark)


def draw_band(
    axis: Any, places: Sequence[float], columns: Sequence[Sequence[float]], colour: str, label: str, mark: str = ""
) -> None:
    """The mean of every column as a line, within the range from its smallest to its largest value."""
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axis.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    means = [mean_of(column) for column in columns]
    axis.plot(places, means, color=colour, linewidth=1.5, marker=mark, markersize=3.5, label=label)


def draw_bar(axis: Any, row: int, value: float, colour: str) -> None:
    """A short line across a row of dots, e.g. their mean."""
    axis.plot([value] * 2, [row - HALF_HEIGHT, row + HALF_HEIGHT], color=colour, linewidth=1.4)


def mean_of(values: Sequence[float]) -> float:
    """Of the values that are numbers; NaN where there is none."""
    finite = [value for value in values if value == value]
    return sum(finite) / len(finite) if finite else float("nan")


def draw_dots(axis: Any, row: int, values: Sequence[float], colour: str) -> None:
    """One dot a seed, beside each other, so that equal scores stay visible."""
    places = [row + HALF_HEIGHT * (index / max(len(values) - 1, 1) - 0.5) for index in range(len(values))]
    axis.scatter(sorted(values), places, s=16, color=colour, alpha=0.8, linewidths=0, zorder=3)


def plain_log_ticks(axis: Any) -> None:
    """Plain decimals on logarithmic axes of less than two powers of ten, where matplotlib labels one tick or none."""
    for one, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        low, high = sorted(limits)
        if one.get_scale() == "log" and high < 100 * low:
            ticks = log_ticks((low, high))
            one.set_ticks(ticks, [np.format_float_positional(tick, trim="-") for tick in ticks])
            one.set_ticks([], minor=True)


def log_ticks(limits: tuple[float, float]) -> list[float]:
    """Round numbers, more of them where less than a power of ten is shown."""
    from matplotlib.ticker import MaxNLocator

    low, high = limits
    digits = (1, 2, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [value for power in powers for digit in digits if low <= (value := float(f"{digit}e{power}")) <= high]
    even = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)  # in a narrow range a logarithm is nearly linear
    return ticks if len(ticks) > 2 else [float(f"{value:.12g}") for value in even if low <= value <= high]
