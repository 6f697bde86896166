"""How the cost grows with the length, the batch, the hidden size and the number of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lipschitz_rnn.benchmark.contestants import Contestant, contestants_for
from lipschitz_rnn.benchmark.measuring import Effort, Report, measure
from lipschitz_rnn.benchmark.precision import BFLOAT16, FLOAT32, TF32
from lipschitz_rnn.benchmark.workload import Workload

AXES = {
    "length": "steps T",
    "batch": "batch B",
    "hidden": "hidden size N",
    "networks": "networks S",
}
COLOURS = ("#8a8a8a", "#c8553d", "#e09f3e", "#2d6a9f", "#3a7d44", "#7b4b94")
ROWS = {"cuda": (BFLOAT16, TF32), "cpu": (FLOAT32,)}  # precisions that are drawn
NAMES = ("reference loop", "triton backend", "cpu backend", "nn.LSTM", "nn.RNN")

Sweep = dict[str, list[Report]]


def drawn_contestants(device: torch.device) -> list[Contestant]:
    """Only a few rows: a picture with all of them would be unreadable."""
    rows = contestants_for(device, compile_loop=False)
    wanted = [row for row in rows if row.name in NAMES and row.precision in ROWS[device.type]]
    peers_once = [row for row in wanted if row.ours or row.precision in (TF32, FLOAT32)]
    return [row for row in rows if row.name == "reference loop" or row in peers_once]


def values_around(work: Workload, axis: str, device: torch.device, *, quick: bool) -> list[int]:
    """Sizes of one axis around the workload's own; smaller ones on a CPU, larger ones too on a GPU."""
    factors: tuple[float, ...]
    if axis == "networks":
        factors = (1, 2) if quick else (1, 4, 12) if device.type == "cuda" else (1, 2, 4)
    elif quick:
        factors = (1 / 4, 1)
    else:
        factors = (1 / 16, 1 / 4, 1, 4) if device.type == "cuda" else (1 / 8, 1 / 4, 1 / 2, 1, 2)
    return sorted({max(1, round(getattr(work, axis) * factor)) for factor in factors})


def sweep(
    work: Workload,
    device: torch.device,
    contestants: Sequence[Contestant],
    effort: Effort,
    *,
    quick: bool,
    note: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """One report per size on each axis, the other sizes as in the workload; each is checked like any other."""
    effort = replace(effort, rounds=1, repeats=min(effort.repeats, 5), most_seconds=1.5, forward=False, replay=False)
    reports = Sweep()
    for axis in AXES:
        reports[axis] = []
        for value in values_around(work, axis, device, quick=quick):
            note(f"scaling: {AXES[axis]} = {value}")
            point: dict[str, Any] = {axis: value}
            reports[axis].append(measure(replace(work, **point), device, contestants, effort))
    return reports


def sweep_to_dict(reports: Sweep) -> dict[str, Any]:
    """Seconds of a training step by axis and contestant."""
    return {
        axis: {
            "values": [getattr(report.workload, axis) for report in points],
            "seconds": {
                row.key: [None if math.isnan(each) else each for each in _seconds(points, row.key)]
                for row in points[0].rows
            },
        }
        for axis, points in reports.items()
    }


def wrong_points(reports: Sweep) -> list[str]:
    points = [point for axis in reports.values() for point in axis]
    return [f"{row.key} at {point.workload.sizes()}: {row.reason}" for point in points for row in point.wrong]


def require_matplotlib() -> Any:
    try:
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError as error:
        raise ImportError(
            'the plot needs matplotlib, which is not installed; install it: pip install "lipschitz-rnn[experiments]"'
        ) from error
    return matplotlib


def draw(reports: Sweep, path: Path) -> None:
    """Top: time per step of the whole batch. Bottom: time per step and sample of one network."""
    matplotlib = require_matplotlib()
    figure = matplotlib.figure.Figure(figsize=(3.6 * len(reports), 6.0), layout="constrained")
    grid = figure.subplots(2, len(reports), squeeze=False, sharex="col", sharey="row")
    for (above, below), (axis, points) in zip(grid.T, reports.items(), strict=True):
        values = [getattr(report.workload, axis) for report in points]
        samples = [report.workload.batch * report.workload.networks for report in points]
        for row, colour in zip(points[0].rows, COLOURS, strict=False):
            style = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.6, "label": row.key}
            steps = [1e6 * s / r.workload.length for s, r in zip(_seconds(points, row.key), points, strict=True)]
            above.plot(values, steps, **style)
            below.plot(values, [step / count for step, count in zip(steps, samples, strict=True)], **style)
        for panel in (above, below):
            panel.set(xscale="log", yscale="log")
            panel.set_xticks(values, [str(value) for value in values])
            panel.set_xticks([], minor=True)
            for set_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
                set_formatter(_plain_numbers(matplotlib))
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.25, linewidth=0.6)
        below.set_xlabel(AXES[axis])
    grid[0, 0].set_ylabel("µs per step")
    grid[1, 0].set_ylabel("µs per step and sample")
    grid[0, 0].legend(frameon=False, fontsize=7)
    base = reports["networks"][0]  # where every other size is the workload's own
    figure.suptitle(f"Forward + backward around {base.workload.sizes()}; {base.environment['device']}", fontsize=10)
    figure.savefig(path, format="png", dpi=130)


def _plain_numbers(matplotlib: Any) -> Any:
    """Labels of a logarithmic axis as 0.6 and 20000 instead of 6e-01 and 2e+04, where there is room."""

    class PlainNumbers(matplotlib.ticker.LogFormatter):  # type: ignore[misc]
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    return PlainNumbers(minor_thresholds=(2.0, 0.5))


def _seconds(points: Sequence[Report], key: str) -> list[float]:
    """The time of a training step at each point; NaN, which leaves a gap in the line, if there is none."""
    found = []
    for report in points:
        times = next((row.main for row in report.rows if row.key == key), None)
        found.append(math.nan if times is None else times.median)
    return found
