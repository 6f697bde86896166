"""One table for the whole paper, for the README: every cell of our unit, and the best other unit that it prints."""

from __future__ import annotations

from collections.abc import Sequence

from lipschitz_rnn import tasks
from lipschitz_rnn.documents.blocks import Block, Paragraph, Table
from lipschitz_rnn.documents.numbers import show_score, spread
from lipschitz_rnn.experiments.pages.sections import count_seeds
from lipschitz_rnn.experiments.paper import CELLS, TITLES, Cell, find_cell
from lipschitz_rnn.experiments.results import Record

MARK = "paper"
_HEADER = ["task", "N", "integrator", "seeds", "best", "mean", "tuned, mean", "paper, best", "paper, best other"]


def whole_paper(records: Sequence[Record]) -> list[Block]:
    """A row for each cell of the Lipschitz unit; dashes where nothing is committed yet."""
    own, tuned = (_by_cell(records, kind) for kind in ("paper", "tuned"))
    rows = [_row(cell, own.get(cell.name), tuned.get(cell.name)) for cell in CELLS if cell.unit == "lipschitz"]
    missing = sum(row[3] == "–" for row in rows)
    text = (
        "The paper's tables, with our results for its unit: accuracy in percent on images (higher is better), mean "
        "squared error on TIMIT, bits and perplexity on Penn Treebank (lower is better). Scores are from the epoch "
        "selected on validation data. The paper prints its best seed; the last column is the best other unit that it "
        "quotes."
    )
    if any(record.diverged for record in own.values()):
        text += " Diverged seeds are counted and have no score: best and mean are over the others."
    if missing:
        text += f" {missing} of the {len(rows)} cells are not trained yet; TIMIT needs a licensed copy."
    return [Paragraph(text), Table(_HEADER, rows, left=1)]


def _by_cell(records: Sequence[Record], kind: str) -> dict[str, Record]:
    """The records of our unit that repeat a cell of the paper, by the cell's name."""
    found = {}
    for record in records:
        cell = find_cell(record.setup)
        if record.kind == kind and cell is not None and cell.unit == "lipschitz" and _comparable(record):
            found[cell.name] = record
    return found


def _comparable(record: Record) -> bool:
    contracting = record.setup.unit_options.get("stability") is not None
    return bool(record.scores()) and not record.setup.variants and not contracting


def _row(cell: Cell, record: Record | None, tuned: Record | None) -> list[str]:
    name = ", ".join([TITLES[cell.task], *(f"T = {value}" for value in cell.task_options.values())])
    place = [name, str(cell.hidden_size or "–"), {"euler": "Euler"}.get(str(cell.integrator), str(cell.integrator))]
    ours = ["–"] * 3
    if record is not None:
        ours = [count_seeds(record.seeds), _show(record, record.best()), _show(record, spread(record.scores())[1])]
    better = "–" if tuned is None else _show(tuned, spread(tuned.scores())[1])
    return [*place, *ours, better, str(cell.printed), _best_other(cell)]


def _show(record: Record, value: float | None) -> str:
    return show_score(value, record.percent).removesuffix(" %")


def _best_other(cell: Cell) -> str:
    """The best unit beside ours that the paper prints for the same task."""
    others = [
        other
        for other in CELLS
        if (other.table, other.task, other.task_options) == (cell.table, cell.task, cell.task_options)
        and other.unit != "lipschitz"
    ]
    best = max if tasks.info(cell.task).metric.higher_is_better else min
    chosen = best(others, key=lambda other: other.printed)
    return f"{chosen.printed} ({chosen.unit})"
