"""Speech, predicting the next frame of a spectrogram: the paper's table on TIMIT, and the same on free recordings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipschitz_rnn.experiments.campaign import Measures, Plan
from lipschitz_rnn.experiments.pages import sections
from lipschitz_rnn.experiments.paper import TIMIT, Cell
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.experiments.studies.speech.example import predicted_example, repeating_error
from lipschitz_rnn.experiments.studies.speech.page import examples, free_recordings
from lipschitz_rnn.experiments.study import BASELINES, QUICK, Row, Study, cell_rows
from lipschitz_rnn.training.runs import load_run

FREE = ("spoken-digits", "timit-sample")
_STEP = {"unit_options": {"step_size": 0.3}}
_WHY_STEP = "a step of 0.3: at the printed 0.9 the state of a new network grows by half in every Euler step"
_OTHER_SEEDS = (0, 1, 2)
# Options of the other units: with their defaults they learn more slowly on the validation split of timit-sample.
_OTHERS: dict[str, dict[str, Any]] = {
    "srlstm": {"unit_options": {"restart": 5, "step_size": 0.3}},
    "exprnn": {"unit_options": {"relative_rate": 0.1}},
    "scornn": {"unit_options": {"relative_rate": 0.1}},
}


class Examples(Measures):
    """The error of repeating the last frame; for our unit also one utterance of the test split and its prediction."""

    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        task = load_task(plan.settings)
        found: dict[str, Any] = {"repeating": round(repeating_error(task), 5)}
        if plan.settings.unit == "lipschitz" and (folder / "result.json").exists():
            found["example"] = predicted_example(load_run(folder), task)
        return found


def _weights(cell: Cell, task: str = "timit") -> str:
    """File name of the weights: 197,505 numbers at N = 256, so 0.8 MB."""
    return f"{task}-{cell.hidden_size}" + ("" if cell.integrator == "euler" else f"-{cell.integrator}")


def _row(cell: Cell) -> dict[str, Any]:
    why = "the printed N, trained like our unit: Adam 0.001, gradients clipped at 1; a single setting, not tuned"
    return {"group": "timit", **({"weights": _weights(cell)} if cell.unit == "lipschitz" else {"why": why})}


def _smaller(cell: Cell) -> dict[str, Any] | None:
    if cell.unit != "lipschitz":
        return None
    return {"group": "smaller", "changes": _STEP, "why": _WHY_STEP, "weights": f"{_weights(cell)}-smaller"}


def _free(task: str) -> tuple[Row, ...]:
    """The table's units at the table's sizes, so with about as many parameters as there."""

    def choose(cell: Cell) -> dict[str, Any]:
        if cell.unit == "lipschitz":
            return {"task": task, "why": "free recordings, not TIMIT", "weights": _weights(cell, task)}
        changes = _OTHERS.get(cell.unit, {})
        better = "options better than the defaults on validation data of timit-sample"
        why = f"the N of the paper's table; {better if changes else 'a single setting, not tuned'}"
        return {"task": task, "group": BASELINES, "changes": changes, "why": why, "seeds": _OTHER_SEEDS}

    return cell_rows(TIMIT, choose)


STUDY = Study(
    name="speech",
    title="Speech: the next frame of a spectrogram",
    about=(
        "Recordings at 8 kHz: log-magnitudes of 129 frequencies; the network predicts the next frame from those before "
        "it. Mean squared error over the valid frames, lower is better. The paper's corpus, TIMIT, must be licensed: "
        "put your copy into the data folder and add `--timit`. The other runs use free recordings: spoken digits, and "
        "a sample of TIMIT with 16 of its 630 speakers."
    ),
    rows=(*(row for task in FREE for row in _free(task)), *cell_rows(TIMIT, _row), *cell_rows(TIMIT, _smaller)),
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
        for task in FREE
        for unit in ("lipschitz", "lstm")
    ),
    seeds=tuple(range(10)),
    groups={
        BASELINES: "Also the other units of the table, on free recordings.",
        "timit": "Also all units of the table on TIMIT, from your own copy.",
        "smaller": "Also our unit on TIMIT with a step of 0.3.",
    },
    tables=(TIMIT,),
    sections=(
        sections.commands, free_recordings, sections.cells, examples, sections.units, sections.seeds,
        sections.learning, sections.settings, sections.runs,
    ),
    measures=Examples(),
)  # fmt: skip
