"""TIMIT, predicting the next frame of a spectrogram: the paper's table on speech. `--quick` uses free recordings."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.experiments.paper import TIMIT, Cell
from lipschitz_rnn.experiments.study import BASELINES, QUICK, Row, Study, cell_rows

_STEP = {"unit_options": {"step_size": 0.3}}


def _row(cell: Cell) -> dict[str, Any]:
    why = "the printed N, trained like our unit: Adam 0.001, gradients clipped at 1; a single setting, not tuned"
    return {} if cell.unit == "lipschitz" else {"group": BASELINES, "why": why}


def _smaller(cell: Cell) -> dict[str, Any] | None:
    why = "a step of 0.3: at the printed 0.9 the state of a new network grows by half in every Euler step"
    return {"group": "smaller", "changes": _STEP, "why": why} if cell.unit == "lipschitz" else None


STUDY = Study(
    name="speech",
    title="Speech: the next frame of TIMIT",
    about=(
        "TIMIT at 8 kHz: log-magnitudes of 129 frequencies; the network predicts the next frame from those before it. "
        "Mean squared error over the valid frames, lower is better. TIMIT must be licensed: put your copy into the "
        "data folder. --quick trains on free recordings instead: a sample of TIMIT and spoken digits."
    ),
    rows=(*cell_rows(TIMIT, _row), *cell_rows(TIMIT, _smaller)),
    quick=tuple(
        Row(
            task,
            unit,
            32,
            changes={"epochs": 5},
            group=QUICK,
            seeds=(0, 1),
            why="free recordings, small networks and few epochs, not TIMIT",
        )
        for task in ("timit-sample", "spoken-digits")
        for unit in ("lipschitz", "lstm")
    ),
    groups={BASELINES: "Also the other units of the table.", "smaller": "Also our unit with a step of 0.3."},
    tables=(TIMIT,),
)
