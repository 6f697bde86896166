"""The paper's figures on stability: the eigenvalues of A and W over training, and three figures without training.

A smaller and a larger β train together, with all seeds, as one ensemble. The record holds the numbers of the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.studies.figures.drawings import measure_drawings
from lipschitz_rnn.experiments.studies.figures.page import tracks_and_drawings
from lipschitz_rnn.experiments.study import QUICK, Row, Study
from lipschitz_rnn.stability.studies.tracking import spectral_curves, spectral_probe
from lipschitz_rnn.training.history import read_run
from lipschitz_rnn.training.runs import load_run

_BETAS = {"variants": ({"beta": 0.65}, {"beta": 0.95})}  # the two panels of the paper's figure


class Spectra(Measures):
    """Largest real parts before training and after every epoch, and the numbers of the figures without training."""

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        return {"before_training": initial_spectra(folder), "drawings": measure_drawings()}

    def curves(self, folder: Path) -> Mapping[str, Sequence[Sequence[float | None]]]:
        return spectral_curves(read_run(folder).of_kind("probe"))


def initial_spectra(folder: Path) -> dict[str, list[float | None]]:
    """The largest real parts of A and W of every network before training, rebuilt from its seed."""
    run = load_run(folder)
    found = spectral_probe([run.initial(index) for index in range(len(run.settings.members))])
    probe = {name: [values[name] for values in found] for name in found[0]}
    return {name: [value for (value,) in members] for name, members in spectral_curves([probe]).items()}


STUDY = Study(
    name="figures",
    title="Stability: the eigenvalues of A and W",
    about=(
        "The paper's figures on stability: the eigenvalues of A and W during training, and three studies that need no "
        "training. The paper's Theorem 1 requires negative real parts of all eigenvalues of A, and in case (b) also of "
        "W. That alone is not sufficient; `lipschitz_rnn.stability.theorem1` checks the whole condition."
    ),
    rows=(Row("ordered-mnist", label="spectra", changes=_BETAS),),
    quick=(
        Row("digits", label="spectra", changes=_BETAS, group=QUICK, why="not the paper's task: 8 × 8 digits, N = 64"),
    ),
    options=("task",),
    sections=(tracks_and_drawings,),
    measures=Spectra(),
)
