"""Pictures of the robustness study: accuracy under noise, and against the size of DeepFool's perturbations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.experiments.figures import BLUE, GREEN, GREY, RED, new_figure
from lipschitz_rnn.experiments.results import Record

NAMES = {"neural-ode": "neural ODE", "antisymmetric": "antisymmetric", "lipschitz": "Lipschitz", "urnn": "unitary"}
COLOURS = {"neural-ode": GREY, "antisymmetric": BLUE, "lipschitz": RED, "urnn": GREEN}


def warning(record: Record) -> str:
    """What a quick study says of itself, in text and pictures."""
    settings = record.settings
    return (
        f"Quick version, not the paper's experiment: {settings['task']} (8 × 8 images in eight rows), "
        f"N = {settings['hidden_size']}."
    )


def draw_noise(records: Sequence[Record]) -> Any:
    """One panel for each kind of noise, as in the paper's figure."""
    kinds = list(records[0].measures["networks"][0]["noise"])
    figure, axes = new_figure(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for record in records:
            curves = [network["noise"][kind] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["amounts"], [curve["accuracy"] for curve in curves])
        axis.set(xlabel="amount of noise", title=f"{kind.replace('-', ' ')} noise")
    return _finished(figure, axes, records)


def draw_distances(records: Sequence[Record]) -> Any:
    """One panel for each norm: what is left when DeepFool may change an image so much."""
    figure, axes = new_figure(2)
    for axis, norm, symbol in zip(axes, ("l2", "linf"), ("l2", "l∞"), strict=True):
        for record in records:
            curves = [network[f"deepfool-{norm}"]["within"] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["radii"], [curve["accuracy"] for curve in curves])
        axis.axvline(records[0].measures["method"][f"radius_{norm}"], color=GREY, linewidth=0.9, linestyle="--")
        axis.set(xlabel=f"largest perturbation in {symbol}", title=f"DeepFool, {symbol}")
    return _finished(figure, axes, records)


def _draw(axis: Any, record: Record, places: Sequence[float], curves: Sequence[Sequence[float]]) -> None:
    """The mean over networks as a line, all of them within the band."""
    columns = [[100 * value for value in column] for column in zip(*curves, strict=True)]
    unit = record.settings["unit"]
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axis.fill_between(places, low, high, color=COLOURS[unit], alpha=0.18, linewidth=0)
    means = [statistics.fmean(column) for column in columns]
    axis.plot(places, means, color=COLOURS[unit], marker="o", markersize=3.5, label=NAMES[unit])


def _finished(figure: Any, axes: Sequence[Any], records: Sequence[Record]) -> Any:
    for axis in axes:
        axis.set_ylabel("test accuracy (%)")
        axis.legend(frameon=False, fontsize=8)
    if records[0].kind == "quick":
        figure.suptitle(warning(records[0]), fontsize=9, color=GREY)
    return figure
