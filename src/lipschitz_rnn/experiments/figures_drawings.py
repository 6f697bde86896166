"""The three figures of the paper's stability studies that need no training: what is drawn, and what one sees.

Their numbers are in no record. They are computed when they are drawn, in seconds, and are the same on every machine up
to the last bits; so a picture carries some of them, and those are compared within a tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lipschitz_rnn.experiments.figures import to_svg
from lipschitz_rnn.experiments.report.pages import ComputedPicture
from lipschitz_rnn.stability.figures import draw_lemma2, draw_pendulum, draw_spectrum_against_beta

_POINTS = 9  # of every line, spread over it: enough to know it by


@dataclass(frozen=True)
class Drawing:
    name: str
    title: str
    draw: Callable[[], Any]
    caption: str  # what is drawn
    seen: str  # what one sees, and what the paper says

    def picture(self) -> ComputedPicture:
        figure = self.draw()
        return ComputedPicture(f"figures-{self.name}", _shorten(to_svg(figure)), self.caption, drawn_numbers(figure))


def drawn_numbers(figure: Any) -> tuple[float, ...]:
    """Points of every line of a figure, x and y, to six digits."""
    numbers: list[float] = []
    for line in (line for axis in figure.axes for line in axis.lines):
        points = np.column_stack([np.asarray(values, dtype=np.float64) for values in line.get_data()])
        chosen = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
        numbers += [float(f"{value:.6g}") for value in points[chosen].ravel()]
    return tuple(numbers)


def _shorten(svg: bytes) -> bytes:
    """Paths to a hundredth of a point: a field of arrows is a third smaller."""
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"\d+\.\d{3,}", _hundredths, path[0]), svg)


def _hundredths(number: re.Match[bytes]) -> bytes:
    return b"%.2f" % float(number[0])


def _lemma2() -> Any:
    """With a mark at every measured point: those of a short logarithmic axis stand in each other's way."""
    figure = draw_lemma2()
    (axis,) = figure.axes
    distances = np.asarray(axis.lines[0].get_xdata(), dtype=np.float64)
    axis.set_xticks(distances, [f"{distance:.4g}" for distance in distances])
    axis.set_xticks([], minor=True)
    return figure


DRAWINGS = (
    Drawing(
        "pendulum",
        "A pendulum in two dimensions",
        draw_pendulum,
        "Vector fields ḣ = A h + tanh(W h + b) fitted to a pendulum, with three trajectories, and the equilibrium "
        "(star) with the largest real part of its Jacobian.",
        "Near the equilibrium one sees the paper's cases: β = 0.5 repels, β = 0.75 and 0.85 attract, β = 1 circles. "
        "Farther out one does not. The paper says that all trajectories of its stable models are attracted; here the "
        "two outer ones of β = 0.75 and 0.85 slowly leave, while all three of β = 0.5 tend to one circle. Except for "
        "β = 1 the sign depends on the start of the fit and on its length.",
    ),
    Drawing(
        "spectrum-against-beta",
        "Eigenvalues against β",
        draw_spectrum_against_beta,
        "Largest (red) and smallest (blue) real part of the eigenvalues of five random matrices against β, for N = 64 "
        "and 128 and γ = 0.001, with the bound of Proposition 1 for each (dashed).",
        "As in the paper the real parts shrink as β tends to one, to −γ there. The bound is the corrected one, about "
        "twice as wide as printed: for β ≤ 0.6 each of these matrices has eigenvalues outside the printed one.",
    ),
    Drawing(
        "lemma2",
        "Lemma 2: one step of gradient descent",
        _lemma2,
        "How far one step of gradient descent moves the eigenvalues of the symmetric parts of A and W, for N = 16, "
        "with the same M and data for every β.",
        "The paper proves that the change is of the order of (1 − β)². One sees that law for β ≥ 0.9; at β = 0.8 the "
        "change is about half as much again above it.",
    ),
)
