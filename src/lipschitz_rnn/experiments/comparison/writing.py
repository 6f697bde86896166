"""A comparison as files: a page with figures, a LaTeX table, CSV and JSON with every number."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Table
from lipschitz_rnn.documents.files import write_files, write_page
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.documents.numbers import counted, show_duration, show_score
from lipschitz_rnn.experiments.comparison.collecting import Cell, Comparison, Pair
from lipschitz_rnn.experiments.comparison.latex import to_latex
from lipschitz_rnn.experiments.comparison.pictures import critical_difference, learning_curves

TITLE = "Comparison"
_TESTS = {"t": "a paired t-test", "wilcoxon": "Wilcoxon's signed-rank test"}
_CORRECTIONS = {
    "holm": "corrected for multiple comparisons by Holm's method",
    "bh": "corrected by Benjamini and Hochberg's false discovery rate",
    "none": "not corrected for multiple comparisons",
}


def write_comparison(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """Write comparison.md (with figures/), .html, .tex, .csv and .json into `folder`; returns their paths by kind."""
    page = blocks(comparison)
    written = {kind: folder / f"comparison.{kind}" for kind in ("md", "html", "tex", "csv", "json")}
    write_page(page, written["md"])
    write_files(
        {
            written["html"]: to_html(TITLE, page).encode(),
            written["tex"]: to_latex(comparison).encode(),
            written["csv"]: to_csv(comparison).encode(),
            written["json"]: (json.dumps(to_dict(comparison), indent=1, ensure_ascii=False) + "\n").encode(),
        }
    )
    return written


def blocks(comparison: Comparison) -> list[Block]:
    """The page."""
    networks = sum(len(cell.scores) for cell in comparison.cells.values())
    introduction = (
        f"{counted(len(comparison.rows), 'row')}, {counted(len(comparison.columns), 'task')}, "
        f"{counted(networks, 'trained network')}. Scores are of the "
        f"{comparison.split} split at the epoch selected on validation data: mean ± standard deviation over seeds; the "
        "best mean of each task is bold."
    )
    page: list[Block] = [Heading(TITLE, 1), Paragraph(introduction), matrix(comparison)]
    if comparison.left_out:
        page.append(Paragraph(f"Left out, because they are not complete: {'; '.join(comparison.left_out)}."))
    page += [Heading("Scores and cost"), Paragraph(_about_cost(comparison)), _details(comparison)]
    page += [Heading("Differences"), *pair_blocks(comparison)]
    page += [Heading("Ranks"), *_rank_blocks(comparison)]
    curves = learning_curves(comparison)
    return [*page, Heading("Learning curves"), *curves] if curves else page


def matrix(comparison: Comparison) -> Table:
    """Rows × tasks: mean ± standard deviation."""
    rows = []
    for row in comparison.rows:
        shown = []
        for column in comparison.columns:
            cell = comparison.cells.get((row, column))
            text = _score(cell)
            shown.append(f"**{text}**" if cell is not None and comparison.is_best(cell) else text)
        rows.append([row, *shown])
    return Table(["unit", *(_column_title(comparison, column) for column in comparison.columns)], rows)


def _column_title(comparison: Comparison, column: str) -> str:
    cell = next(cell for (_, name), cell in comparison.cells.items() if name == column)
    return f"{column} ({cell.metric})"


def _score(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if cell.summary is None:
        return "diverged" if cell.diverged else "–"
    mean, deviation = cell.summary.mean, cell.summary.deviation
    if deviation is None:
        text = show_score(mean, cell.percent)
    elif cell.percent:
        text = f"{100 * mean:.2f} ± {100 * deviation:.2f} %"
    else:
        text = f"{mean:.4g} ± {deviation:.2g}"
    return f"{text} ({cell.missing} of {len(cell.scores)} diverged)" if cell.missing else text


def _about_cost(comparison: Comparison) -> str:
    devices = dict.fromkeys(device for cell in comparison.cells.values() for device in cell.devices)
    text = (
        "The interval is Student's 95 % interval for the mean. Time is of training, divided by the networks of a run, "
    )
    text += f"which train together. Hardware: {'; '.join(devices)}."
    return text if len(devices) == 1 else f"{text} Times on different hardware cannot be compared."


def _details(comparison: Comparison) -> Table:
    header = ["task", "row", "seeds", "mean", "95 % interval", "min", "max", "diverged", "parameters"]
    header.append("time per network")
    rows = []
    for column in comparison.columns:
        for cell in (cell for (_, name), cell in comparison.cells.items() if name == column):
            found = cell.summary
            facts = [
                str(cell.diverged),
                f"{cell.parameters:,}" if cell.parameters else "–",
                show_duration(cell.seconds),
            ]
            if found is None:
                rows.append([column, cell.row, str(len(cell.scores)), "–", "–", "–", "–", *facts])
                continue
            interval = "–" if found.low is None else f"{_plain(found.low, cell)} to {_signed(found.high, cell)}"
            values = [show_score(value, cell.percent) for value in (found.mean, found.smallest, found.largest)]
            rows.append([column, cell.row, str(len(cell.scores)), values[0], interval, *values[1:], *facts])
    return Table(header, rows, left=2)


def _plain(value: float | None, cell: Cell) -> str:
    """With a minus sign, and without the unit, which follows the second number of an interval."""
    return _signed(value, cell).removesuffix(" %")


def _signed(value: float | None, cell: Cell) -> str:
    return show_score(value, cell.percent).replace("-", "−")


def _in_points(value: float | None, cell: Cell) -> str:
    """A difference of percentages is in points."""
    return _signed(value, cell).replace(" %", " points")


def pair_blocks(comparison: Comparison) -> list[Paragraph | Table]:
    """Every paired test, with what it is."""
    if not comparison.pairs:
        return [Paragraph("No two rows have two seeds in common on a task: nothing to test.")]
    significant = sum(pair.adjusted is not None and pair.adjusted < comparison.alpha for pair in comparison.pairs)
    text = (
        f"Differences over the seeds that two rows have in common, with Student's 95 % interval; p-values of "
        f"{_TESTS[comparison.test]}, {_CORRECTIONS[comparison.correction]}. {significant} of {len(comparison.pairs)} "
        f"are below {comparison.alpha:g}. A – stands for differences that are all equal, which cannot be tested."
    )
    header = ["task", "first", "second", "seeds", "first − second", "95 % interval", "p", "p, corrected"]
    rows = [_pair_row(comparison, pair) for pair in comparison.pairs]
    return [Paragraph(text), Table(header, rows, left=3)]


def _pair_row(comparison: Comparison, pair: Pair) -> list[str]:
    cell = comparison.cells[pair.first, pair.column]
    interval = f"{_plain(pair.low, cell)} to {_in_points(pair.high, cell)}"
    shown = [show_p(pair.p), show_p(pair.adjusted)]
    if pair.adjusted is not None and pair.adjusted < comparison.alpha:
        shown[1] = f"**{shown[1]}**"
    difference = _in_points(pair.difference, cell)
    return [pair.column, pair.first, pair.second, str(pair.seeds), difference, interval, *shown]


def show_p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def equals_p(value: float | None) -> str:
    """For a sentence: "= 0.02" or "< 0.0001"."""
    shown = show_p(value)
    return shown if shown.startswith("<") else f"= {shown}"


def _rank_blocks(comparison: Comparison) -> list[Block]:
    ranking = comparison.ranking
    if ranking is None:
        return [Paragraph(comparison.ranked_over[0].upper() + comparison.ranked_over[1:] + ".")]
    text = (
        f"Mean ranks over {comparison.ranked_over}; 1 is best. Friedman's test: χ² = {ranking.statistic:.3g}, p "
        f"{equals_p(ranking.p)}. Nemenyi's critical difference at {comparison.alpha:g} is "
        f"{ranking.critical_difference:.3g}: rows joined by a bar differ by less."
    )
    rows = [[name, f"{value:.2f}"] for name, value in zip(ranking.names, ranking.ranks, strict=True)]
    return [Paragraph(text), Table(["row", "mean rank"], rows), critical_difference(ranking)]


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """All numbers as plain values."""
    cells = []
    for cell in comparison.cells.values():
        values = {item.name: getattr(cell, item.name) for item in dataclasses.fields(cell) if item.name != "curves"}
        values["summary"] = None if cell.summary is None else dataclasses.asdict(cell.summary)
        values["scores"] = {str(seed): score for seed, score in cell.scores.items()}
        cells.append(values)
    simple = ("rows", "columns", "ranked_over", "split", "test", "correction", "alpha", "left_out")
    return {
        **{name: getattr(comparison, name) for name in simple},
        "cells": cells,
        "pairs": [dataclasses.asdict(pair) for pair in comparison.pairs],
        "ranking": None if comparison.ranking is None else dataclasses.asdict(comparison.ranking),
    }


def to_csv(comparison: Comparison) -> str:
    """One line per row and task."""
    names = ("count", "mean", "deviation", "low", "high", "smallest", "largest")
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["task", "row", "metric", *names, "diverged", "parameters", "seconds_a_network"])
    for cell in comparison.cells.values():
        numbers = [None if cell.summary is None else getattr(cell.summary, name) for name in names]
        shown = ["" if number is None else number for number in numbers]
        size = cell.parameters or ""  # not known if no network got as far as a result
        lines.writerow([cell.column, cell.row, cell.metric, *shown, cell.diverged, size, cell.seconds])
    return file.getvalue()
