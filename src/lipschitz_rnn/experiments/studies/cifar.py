"""Pixel-by-pixel CIFAR-10, in order and padded with noise: the paper's table."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.experiments.paper import CIFAR, Cell
from lipschitz_rnn.experiments.study import BASELINES, QUICK, Row, Study, cell_rows

_ADAM = {"optimiser": "adam", "schedule": "cosine", "warmup": 0.02, "clip": 1.0, "precision": "bfloat16"}
_WHY = "Adam with a cosine decay and gradients clipped at 1, because SGD at the printed rate of 0.1 diverges"
_RATES = {128: 0.003, 256: 0.002}
_OTHERS: dict[str, dict[str, Any]] = {
    "lstm": {"learning_rate": 0.001, "unit_options": {"forget_bias": 1.0, "fused": True}},
    "antisymmetric": {"learning_rate": 0.002, "unit_options": {"step_size": 0.03, "gamma": 0.001, "init_scale": 4.0}},
    "irnn": {"learning_rate": 0.001},
}


def _row(cell: Cell) -> dict[str, Any]:
    if cell.unit == "lipschitz":
        return {"changes": {**_ADAM, "learning_rate": _RATES[cell.hidden_size or 128]}, "why": _WHY}
    why = "trained like our unit, with a single setting that was not tuned"
    return {"group": BASELINES, "changes": {**_ADAM, **_OTHERS[cell.unit]}, "why": why}


def _printed(cell: Cell) -> dict[str, Any] | None:
    why = "as printed: SGD 0.1 with momentum, no clipping"
    return {"group": "printed", "why": why} if cell.unit == "lipschitz" else None


STUDY = Study(
    name="cifar",
    title="Pixel-by-pixel CIFAR-10",
    about=(
        "CIFAR-10 as 1,024 steps of one RGB pixel, or as 32 rows followed by 968 steps of noise. Numbers are test "
        "accuracies in percent at the epoch selected on 2,000 validation images. The paper prints its best seed."
    ),
    rows=(*cell_rows(CIFAR, _row), *cell_rows(CIFAR, _printed)),
    quick=tuple(
        Row("digits", unit, 16, changes={"epochs": 10}, group=QUICK, seeds=(0, 1), why="8 × 8 digits, not CIFAR-10")
        for unit in ("lipschitz", *_OTHERS)
    ),
    seeds=tuple(range(5)),
    groups={BASELINES: "Also LSTM, antisymmetric and incremental RNN.", "printed": "Also SGD as the paper prints it."},
    tables=(CIFAR,),
)
