"""Pictures of the robustness study: accuracy under noise, and against the size of DeepFool's perturbations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipschitz_rnn.drawing import BLUE, GREEN, GREY, RED, draw_band, new_figure
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import QUICK

LOOKS = {
    "neural-ode": ("neural ODE", GREY), "antisymmetric": ("antisymmetric", BLUE), "lipschitz": ("Lipschitz", RED),
    "urnn": ("unitary", GREEN),
}  # fmt: skip


def unit_name(record: Record) -> str:
    return LOOKS[record.setup.unit][0]


def draw_noise(records: Sequence[Record]) -> Any:
    """One panel for each kind of noise, as in the paper's figure."""
    kinds = list(records[0].measures["networks"][0]["noise"])
    figure, axes = new_figure(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for record in records:
            curves = [network["noise"][kind] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["amounts"], curves)
        axis.set(xlabel="amount of noise", title=f"{kind.replace('-', ' ')} noise")
    return _finished(figure, axes, records)


def draw_distances(records: Sequence[Record]) -> Any:
    """One panel for each norm: what is left when DeepFool may change an image so much."""
    figure, axes = new_figure(2)
    for axis, norm, symbol in zip(axes, ("l2", "linf"), ("l2", "l∞"), strict=True):
        for record in records:
            curves = [network[f"deepfool-{norm}"]["within"] for network in record.measures["networks"]]
            _draw(axis, record, curves[0]["radii"], curves)
        axis.axvline(records[0].measures["method"][f"radius_{norm}"], color=GREY, linewidth=0.9, linestyle="--")
        axis.set(xlabel=f"largest perturbation in {symbol}", title=f"DeepFool, {symbol}")
    return _finished(figure, axes, records)


def _draw(axis: Any, record: Record, places: Sequence[float], curves: Sequence[Any]) -> None:
    """The mean over networks as a line, all of them within the band."""
    columns = [[100 * value for value in column] for column in zip(*(c["accuracy"] for c in curves), strict=True)]
    name, colour = LOOKS[record.setup.unit]
    draw_band(axis, places, columns, colour, name, mark="o")


def _finished(figure: Any, axes: Sequence[Any], records: Sequence[Record]) -> Any:
    for axis in axes:
        axis.set_ylabel("test accuracy (%)")
        axis.legend(frameon=False, fontsize=8)
    if records[0].kind == QUICK:
        figure.suptitle(f"Quick version, {records[0].why}", fontsize=9, color=GREY)
    return figure
