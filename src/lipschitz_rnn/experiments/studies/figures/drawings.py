"""The three figures of the paper's stability studies that need no training: numbers, picture, and what one sees.

The numbers are computed once and kept in the record, like everything else that a page shows: it takes seconds to find
them, and another machine finds other last digits.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import to_svg
from lipschitz_rnn.stability.figures import (
    SPECTRUM_SIZES,
    draw_lemma2,
    draw_pendulum,
    draw_spectrum_against_beta,
)
from lipschitz_rnn.stability.rounding import Matrix
from lipschitz_rnn.stability.studies import (
    PENDULUM_SETTINGS,
    Lemma2,
    Pendulum,
    SpectrumAgainstBeta,
    fit_pendulum,
    measure_lemma2,
    spectrum_against_beta,
)

Numbers = Any  # what JSON holds: mappings, lists, numbers
Study = TypeVar("Study")


def measure_drawings() -> dict[str, Numbers]:
    """What the drawings show, by their names, in plain numbers."""
    return {
        "pendulum": [_plain(fit_pendulum(beta, gamma)) for beta, gamma in PENDULUM_SETTINGS],
        "spectrum-against-beta": {str(size): _plain(spectrum_against_beta(size)) for size in SPECTRUM_SIZES},
        "lemma2": _plain(measure_lemma2()),
    }


def _plain(study: Any) -> Numbers:
    """The fields of a study; five digits are more than can be seen."""
    fields = ((item.name, np.asarray(getattr(study, item.name))) for item in dataclasses.fields(study))
    return {name: np.vectorize(lambda value: float(f"{value:.5g}"))(values).tolist() for name, values in fields}


def _read(kind: Callable[..., Study], numbers: Mapping[str, Numbers]) -> Study:
    return kind(**{name: np.array(value) if isinstance(value, list) else value for name, value in numbers.items()})


class _SketchedPendulum(Pendulum):
    """Its trajectories are as fine as a picture needs them."""

    def trajectory(self, start: Sequence[float], time: float = 30.0, step: float = 0.05) -> Matrix:
        return super().trajectory(start, time, step)


def _pendulum(numbers: Numbers) -> Any:
    return draw_pendulum([_read(_SketchedPendulum, fit) for fit in numbers])


def _spectrum_against_beta(numbers: Numbers) -> Any:
    return draw_spectrum_against_beta({int(size): _read(SpectrumAgainstBeta, one) for size, one in numbers.items()})


def _lemma2(numbers: Numbers) -> Any:
    return draw_lemma2(_read(Lemma2, numbers))


@dataclass(frozen=True)
class Drawing:
    name: str
    title: str
    draw: Callable[[Numbers], Any]
    caption: str  # what is drawn
    seen: str  # what one sees, and what the paper says

    def picture(self, numbers: Numbers) -> Picture:
        return Picture(f"figures-{self.name}", _shorten(to_svg(self.draw(numbers))), self.caption)


def _shorten(svg: bytes) -> bytes:
    """Paths to a hundredth of a point: a field of arrows is a third smaller."""
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"\d+\.\d{3,}", _hundredths, path[0]), svg)


def _hundredths(number: re.Match[bytes]) -> bytes:
    return b"%.2f" % float(number[0])


DRAWINGS = (
    Drawing(
        "pendulum",
        "A pendulum in two dimensions",
        _pendulum,
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
        _spectrum_against_beta,
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
