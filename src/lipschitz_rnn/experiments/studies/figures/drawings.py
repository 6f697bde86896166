"""The three figures of the paper's stability studies that need no training: numbers, picture and caption.

The numbers are computed once and kept in the record, like everything else on a page: computing them takes seconds, and
their last digits depend on the machine. results/figures/notes.md discusses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lipschitz_rnn.documents.blocks import Picture
from lipschitz_rnn.drawing import compact_svg
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.studies.paper import (
    PENDULUM_SETTINGS,
    FittedPendulum,
    Lemma2,
    SpectrumAgainstBeta,
    fit_pendulum,
    measure_lemma2,
    spectrum_against_beta,
)  # fmt: skip
from lipschitz_rnn.stability.studies.plots import SPECTRUM_SIZES, draw_lemma2, draw_pendulum, draw_spectrum_against_beta

Numbers = Any  # what JSON holds: mappings, lists, numbers


def measure_drawings() -> dict[str, Numbers]:
    """The numbers of every drawing, by its name, as plain values."""
    return {
        "pendulum": [_plain(fit_pendulum(beta, gamma)) for beta, gamma in PENDULUM_SETTINGS],
        "spectrum-against-beta": {str(size): _plain(spectrum_against_beta(size)) for size in SPECTRUM_SIZES},
        "lemma2": _plain(measure_lemma2()),
    }


def _plain(study: Any) -> Numbers:
    """The fields of a study, rounded to five digits, more than a picture can show."""
    fields = ((item.name, np.asarray(getattr(study, item.name))) for item in dataclasses.fields(study))
    return {name: np.vectorize(lambda value: float(f"{value:.5g}"))(values).tolist() for name, values in fields}


def _read(kind: Callable[..., Any], numbers: Numbers) -> Any:
    return kind(**{name: np.array(value) if isinstance(value, list) else value for name, value in numbers.items()})


class _SketchedPendulum(FittedPendulum):
    """With coarser trajectories, enough for a picture."""

    def trajectory(self, start: Sequence[float], time: float = 30.0, step: float = 0.05) -> Matrix:
        return super().trajectory(start, time, step)


class Drawing(NamedTuple):
    title: str
    draw: Callable[[Numbers], Any]
    caption: str

    def picture(self, name: str, numbers: Numbers) -> Picture:
        return Picture(f"figures-{name}", compact_svg(self.draw(numbers)), self.caption)


DRAWINGS = {
    "pendulum": Drawing(
        "A pendulum in two dimensions",
        lambda numbers: draw_pendulum([_read(_SketchedPendulum, fit) for fit in numbers]),
        "Vector fields ḣ = A h + tanh(W h + b) fitted to a pendulum, with three trajectories, and the equilibrium "
        "(star) with the largest real part of its Jacobian.",
    ),
    "spectrum-against-beta": Drawing(
        "Eigenvalues against β",
        lambda numbers: draw_spectrum_against_beta(
            {int(size): _read(SpectrumAgainstBeta, one) for size, one in numbers.items()}
        ),
        "Largest (red) and smallest (blue) real part of the eigenvalues of five random matrices against β, for N = 64 "
        "and 128 and γ = 0.001, with the bound of Proposition 1 for each (dashed).",
    ),
    "lemma2": Drawing(
        "Lemma 2: one step of gradient descent",
        lambda numbers: draw_lemma2(_read(Lemma2, numbers)),
        "How far one step of gradient descent moves the eigenvalues of the symmetric parts of A and W, for N = 16, "
        "with the same M and data for every β.",
    ),
}
