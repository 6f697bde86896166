"""`lipschitz-rnn compare`: runs side by side, with statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.options import AsJson
from lipschitz_rnn.commands.parsing import require_folder, writing_to
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.experiments.comparison import compare as compare_runs
from lipschitz_rnn.experiments.comparison import write_comparison
from lipschitz_rnn.experiments.comparison.collecting import Comparison
from lipschitz_rnn.experiments.comparison.writing import equals_p, matrix, to_dict


@guarded
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, folders that hold runs, or folders of JSON results."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write to.", rich_help_panel="Output"),
    ] = Path("comparison"),
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="SETTING",
            help="Name rows by this setting or unit option; repeat for more. Default: the unit, and what else differs.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        Literal["test", "validation"],
        typer.Option(help="Compare test or validation scores, at the selected epoch."),
    ] = "test",
    test: Annotated[
        Literal["t", "wilcoxon"],
        typer.Option(help="Paired test over seeds: t, or wilcoxon, which needs 6 seeds to reach 0.05."),
    ] = "t",
    correction: Annotated[
        Literal["holm", "bh", "none"],
        typer.Option(help="Correction for many tests: holm, bh (false discovery rate) or none."),
    ] = "holm",
    alpha: Annotated[float, typer.Option(help="Level of the tests and of the critical difference.")] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Compare runs: units by tasks, with intervals, paired tests, ranks, cost and learning curves.

    Rows are units, columns are tasks. Runs that differ only in their seeds are one cell; a run with variants counts as
    one run per variant. Unfinished runs are left out. It writes comparison.md, .html, .tex (booktabs), .csv and .json.

    [bold]Examples[/]

      lipschitz-rnn compare runs -o comparison
      lipschitz-rnn compare runs/a runs/b --by unit --by learning_rate
      lipschitz-rnn compare results/mnist --test wilcoxon --json
    """
    require_folder(out)
    with spinner("comparing", quiet=as_json):
        found = compare_runs(runs, by=by or (), split=split, test=test, correction=correction, alpha=alpha)
        with writing_to(out):
            written = write_comparison(found, out)
    if as_json:
        paths = {kind: str(path) for kind, path in written.items()}
        typer.echo(json.dumps({**to_dict(found), "written": paths}, indent=2))
        return
    _print(found)
    typer.echo("\n".join(f"wrote {path}" for path in written.values()))


def _print(found: Comparison) -> None:
    """The matrix, or one line per row and task where it is too wide, and the differences that are significant."""
    block, console = matrix(found), Console()
    wide = max(len(row[0]) for row in block.rows) + 17 * len(found.columns) > console.width
    header, rows = block.header, block.rows
    if wide:
        header = ["row", "task", "score"]
        rows = [[r[0], t, c] for i, t in enumerate(block.header[1:], 1) for r in block.rows if (c := r[i]) != "–"]
    table = Table(title=f"{found.split}, mean ± standard deviation over seeds", title_justify="left")
    for index, title in enumerate(header):
        number = index == 2 if wide else index > 0
        table.add_column(escape(title), justify="right" if number else "left", overflow="fold", no_wrap=wide and number)
    for row in rows:
        table.add_row(*(f"[bold]{escape(c.strip('*'))}[/]" if c.startswith("**") else escape(c) for c in row))
    console.print(table)
    clear = [pair for pair in found.pairs if pair.adjusted is not None and pair.adjusted < found.alpha]
    console.print(f"{len(clear)} of {len(found.pairs)} differences have p < {found.alpha:g}, corrected by "
                  f"{found.correction}", highlight=False)  # fmt: skip
    for pair in sorted(clear, key=lambda pair: pair.adjusted or 0.0)[:10]:
        better = found.cells[pair.first, pair.column].higher_is_better == (pair.difference > 0)
        first, second = (pair.first, pair.second) if better else (pair.second, pair.first)
        text = f"  {pair.column}: {first} beats {second}, p {equals_p(pair.adjusted)}"
        console.print(text, highlight=False, markup=False)
    if found.ranking is None:
        console.print(found.ranked_over, highlight=False, markup=False)
    for run in found.left_out:
        console.print(f"left out: {run}", highlight=False, markup=False, soft_wrap=True)
