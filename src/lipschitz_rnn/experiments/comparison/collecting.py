"""Collects finished runs into a matrix of rows (units) and columns (tasks), and computes its statistics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from lipschitz_rnn.experiments.comparison.labels import column_names, row_names
from lipschitz_rnn.experiments.comparison.statistics import (
    Correction,
    PairedTest,
    Ranking,
    Summary,
    adjust,
    mean_interval,
    paired_p,
    rank,
    summarise,
)
from lipschitz_rnn.experiments.results import (
    Record,
    describe_run,
    is_lost,
    read_record,
    read_records,
    result_of_diverged,
)
from lipschitz_rnn.experiments.same_data import require_one_content
from lipschitz_rnn.training.folder import RunError
from lipschitz_rnn.training.history import Run, find_runs, holds_runs

Split = Literal["test", "validation"]


@dataclass(frozen=True)
class Cell:
    """One row on one task: the score of every seed, None where there is none.

    A network that diverged has none, as on all other pages: it would be that of the weights before it did. `diverged`
    counts these, and those whose score is not finite.
    """

    row: str
    column: str
    metric: str
    percent: bool
    higher_is_better: bool
    scores: Mapping[int, float | None]
    parameters: int
    seconds: float  # of training, a network
    devices: tuple[str, ...]
    curves: tuple[tuple[float | None, ...], ...]
    sources: tuple[str, ...]
    diverged: int
    summary: Summary | None = None

    @property
    def missing(self) -> int:
        """Networks without a score, which the mean leaves out."""
        return sum(score is None for score in self.scores.values())


@dataclass(frozen=True)
class Pair:
    """A paired test of two rows on one task, over the seeds that both have; the difference is first − second."""

    column: str
    first: str
    second: str
    seeds: int
    difference: float
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Rows × columns of cells, in the order in which the runs were given."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    pairs: tuple[Pair, ...]
    ranking: Ranking | None
    ranked_over: str  # what the blocks of the ranking are, or why there is none
    split: Split
    test: PairedTest
    correction: Correction
    alpha: float
    left_out: tuple[str, ...] = field(default=())  # runs that are not complete

    def best(self, column: str) -> str | None:
        """The row with the best mean on a task."""
        found = [cell for (_, name), cell in self.cells.items() if name == column and cell.summary is not None]
        return self.best_first(found)[0].row if found else None

    def is_best(self, cell: Cell) -> bool:
        """Whether no row has a better mean on this task; several may be equal."""
        best = self.best(cell.column)
        return best is not None and cell.summary is not None and _mean(self.cells[best, cell.column]) == _mean(cell)

    @staticmethod
    def best_first(cells: Sequence[Cell]) -> list[Cell]:
        """Cells of one task by their means; those without a score last."""
        return sorted(cells, key=lambda cell: -math.inf if cell.summary is None else _mean(cell), reverse=True)


def compare(
    paths: Sequence[str | Path],
    *,
    by: Sequence[str] = (),
    split: Split = "test",
    test: PairedTest = "t",
    correction: Correction = "holm",
    alpha: float = 0.05,
) -> Comparison:
    """Compare run folders, folders that hold runs, or folders of JSON results.

    Args:
        by: settings and unit options that name a row, e.g. ("unit", "hidden_size"). By default the unit, and as few
            others as tell the runs apart.
        split: the scores to compare, at the epoch selected on validation data.
        test: a paired t-test over seeds, or Wilcoxon's signed-rank test, which needs at least 6 seeds to reach 0.05.
        correction: of all p-values together: holm, bh (false discovery rate) or none.
        alpha: the level of tests and of the critical difference.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; it must be between 0 and 1")
    if not paths:
        raise ValueError("no runs are given; name run folders, or folders that hold runs")
    records, left_out = _read([Path(path) for path in paths])
    return _compare(records, left_out, by, split, test, correction, alpha)


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Compare runs that have been read, as `compare` does by default."""
    return _compare(*_complete(runs), (), "test", "t", "holm", 0.05)


def _compare(
    records: Sequence[tuple[Record, str]],
    left_out: Sequence[str],
    by: Sequence[str],
    split: Split,
    test: PairedTest,
    correction: Correction,
    alpha: float,
) -> Comparison:
    if not records:
        raise RunError(f"no run is complete: {'; '.join(left_out)}; resume one first")
    columns = column_names([record.setup for record, _ in records])
    rows = row_names([record.setup for record, _ in records], columns, by)
    cells: dict[tuple[str, str], Cell] = {}
    for (record, source), row, column in zip(records, rows, columns, strict=True):
        new = _cell(record, source, row, column, split)
        cells[row, column] = _joined(cells[row, column], new) if (row, column) in cells else new
    cells = {key: dataclasses.replace(cell, summary=summarise(_known(cell))) for key, cell in cells.items()}
    names, over = tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(columns))
    pairs = _pairs(names, over, cells, test, correction)
    ranking, blocks = _ranking(names, over, cells, alpha)
    return Comparison(names, over, cells, pairs, ranking, blocks, split, test, correction, alpha, tuple(left_out))


def _read(paths: Sequence[Path]) -> tuple[list[tuple[Record, str]], list[str]]:
    """Complete runs as records, one per variant, each with where it is from; and the runs that are not complete.

    What is given twice counts once.
    """
    records: list[tuple[Record, str]] = []
    left_out: list[str] = []
    seen, taken, opened = list[Record](), set[Path](), list[Run]()
    for path in paths:
        if path.is_dir() and not holds_runs(path):
            own = [read_record(file) for file in sorted(path.glob("*.json"))] or read_records(path)
            new = [record for record in own if record not in seen]
            seen += new
            records += [(part, record.file) for record in new for part in _variants(record)]
            if own:
                continue
        runs = [run for run in find_runs([path]) if run.path.resolve() not in taken]
        taken |= {run.path.resolve() for run in runs}
        opened += runs
        found, unfinished = _complete(runs)
        records += found
        left_out += unfinished
    require_one_content(opened)
    return records, list(dict.fromkeys(left_out))


def _complete(runs: Sequence[Run]) -> tuple[list[tuple[Record, str]], list[str]]:
    """Complete runs as records, each with its share of the time of its folder, and the runs that are not complete."""
    networks = {run.path: 0 for run in runs}
    for run in runs:
        networks[run.path] += len(run.settings.seeds)
    records, left_out = [], []
    for run in runs:
        result = run.result or result_of_diverged(run)
        if result is None:
            left_out.append(f"{run.path} has {len(run.of_kind('validation'))} of {run.settings.epochs} epochs")
            continue
        record = describe_run(dataclasses.replace(run, result=result), "", run.title)
        share = len(run.settings.seeds) / networks[run.path]
        records.append((dataclasses.replace(record, seconds=share * record.seconds), str(run.path)))
    return records, list(dict.fromkeys(left_out))


def _variants(record: Record) -> list[Record]:
    settings = record.setup
    if not settings.variants:
        return [record]
    size, parts = len(settings.seeds), []
    for index, variant in enumerate(settings.variants):
        own = slice(index * size, (index + 1) * size)
        values = {**record.settings, **{k: v for k, v in settings.of_variant(variant).to_dict().items()
                                        if k in ("unit_options", "variants")}}  # fmt: skip
        curves = {name: members[own] for name, members in record.curves.items()}
        seconds = record.seconds / len(settings.variants)
        change: dict[str, Any] = {"settings": values, "seeds": record.seeds[own], "curves": curves}
        parts.append(dataclasses.replace(record, **change, seconds=seconds))
    return parts


def _cell(record: Record, source: str, row: str, column: str, split: Split) -> Cell:
    lost = {int(seed["seed"]) for seed in record.seeds if is_lost(seed)}
    scores = {int(seed["seed"]): None if int(seed["seed"]) in lost else _finite(seed[split]) for seed in record.seeds}
    diverged = sum(is_lost(seed) or (seed[split] is not None and _finite(seed[split]) is None) for seed in record.seeds)
    curves = tuple(tuple(curve) for curve in record.curves.get(f"validation_{record.metric}", ()))
    seconds = record.seconds / max(len(record.seeds), 1)
    device = str(record.environment.get("device") or "unknown")
    facts = (record.metric, record.percent, record.higher_is_better, scores, record.parameters, seconds)
    return Cell(row, column, *facts, (device,), curves, (source,), diverged)


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None


def _joined(one: Cell, other: Cell) -> Cell:
    """Two runs of one row and task: their seeds together. A seed that both have would count twice."""
    for seed in (seed for seed in other.scores if seed in one.scores):
        raise ValueError(
            f"seed {seed} of {one.row} on {one.column} is in {one.sources[0]} and in {other.sources[0]}; give one of "
            "them, or name the rows by a setting in which they differ (--by)"
        )
    total = one.seconds * len(one.scores) + other.seconds * len(other.scores)
    return dataclasses.replace(
        one,
        scores={**one.scores, **other.scores},
        parameters=max(one.parameters, other.parameters),
        seconds=total / (len(one.scores) + len(other.scores)),
        devices=tuple(dict.fromkeys((*one.devices, *other.devices))),
        curves=(*one.curves, *other.curves),
        sources=(*one.sources, *other.sources),
        diverged=one.diverged + other.diverged,
    )


def _known(cell: Cell) -> list[float]:
    return [score for score in cell.scores.values() if score is not None]


def _mean(cell: Cell) -> float:
    """Higher is better."""
    assert cell.summary is not None
    return cell.summary.mean if cell.higher_is_better else -cell.summary.mean


def _pairs(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], Cell],
    test: PairedTest,
    correction: Correction,
) -> tuple[Pair, ...]:
    """Every pair of rows on every task that both have with at least two common seeds."""
    pairs = []
    for column in columns:
        for first, second in combinations([row for row in rows if (row, column) in cells], 2):
            one, other = cells[first, column].scores, cells[second, column].scores
            both = [(a, b) for seed, a in one.items() if a is not None and (b := other.get(seed)) is not None]
            differences = [a - b for a, b in both]
            if len(differences) < 2:
                continue
            low, high = mean_interval(differences)
            mean = sum(differences) / len(differences)
            pairs.append(Pair(column, first, second, len(differences), mean, low, high, paired_p(differences, test)))
    corrected = adjust([pair.p for pair in pairs], correction)
    return tuple(dataclasses.replace(pair, adjusted=p) for pair, p in zip(pairs, corrected, strict=True))


def _ranking(
    rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Cell], alpha: float
) -> tuple[Ranking | None, str]:
    """Ranks over tasks; with only one task that all have, over its seeds, which compares training runs only."""
    scored = [row for row in rows if any(key[0] == row and cell.summary is not None for key, cell in cells.items())]
    if len(scored) < 3:
        count = "is 1" if len(scored) == 1 else f"are {len(scored)}"
        return None, f"no ranks: they need at least 3 rows with scores, and there {count}"
    full = [c for c in columns if all((key := (r, c)) in cells and cells[key].summary is not None for r in scored)]
    if len(full) > 1:
        scores = [[_mean(cells[row, column]) for row in scored] for column in full]
        return rank(scored, scores, alpha), f"{len(full)} tasks, by the mean over seeds"
    if not full:
        return None, "no ranks: there is no task on which all rows have a score"
    own = [cells[row, full[0]] for row in scored]
    sign = 1.0 if own[0].higher_is_better else -1.0
    seeds = [seed for seed in own[0].scores if all(cell.scores.get(seed) is not None for cell in own)]
    if len(seeds) < 2:
        return None, f"no ranks: on {full[0]}, all rows have fewer than two seeds in common"
    scores = [[sign * (cell.scores[seed] or 0.0) for cell in own] for seed in seeds]
    text = f"{len(seeds)} seeds of {full[0]}, which says nothing about other tasks"
    return rank(scored, scores, alpha), text
