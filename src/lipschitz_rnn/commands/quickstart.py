"""`lipschitz-rnn quickstart`: trained networks and a picture in a minute or two."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands.errors import CONTINUE, guarded
from lipschitz_rnn.commands.options import OUTPUT, AsJson
from lipschitz_rnn.commands.parsing import parse_seeds
from lipschitz_rnn.commands.progress import choose_watcher
from lipschitz_rnn.commands.threads import choose_threads_for_runs, with_threads
from lipschitz_rnn.experiments.quickstart import EPOCHS, quickstart_settings, run_quickstart, test_scores
from lipschitz_rnn.training import Interrupted, Result

NEXT = (
    ("lipschitz-rnn evaluate {folder}/lipschitz", "score it again from its checkpoint"),
    ("lipschitz-rnn report {folder} -o {folder}/report", "curves, tables and settings on one page"),
    ("lipschitz-rnn train digits --unit gru", "another unit (lipschitz-rnn units)"),
    ("lipschitz-rnn train ordered-mnist --device cuda", "the paper's first experiment"),
)


@guarded(interrupted=CONTINUE)
@with_threads
def quickstart(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Folder for the runs and the picture.", rich_help_panel=OUTPUT
        ),
    ] = Path("quickstart"),
    seeds: Annotated[
        str, typer.Option("--seeds", "-s", metavar="SEEDS", help="Seeds of both units, trained together.")
    ] = "0-4",
    epochs: Annotated[int, typer.Option("--epochs", "-e", min=1, metavar="N", help="Number of epochs.")] = EPOCHS,
    as_json: AsJson = False,
) -> None:
    """Train Lipschitz RNNs and LSTMs with about as many parameters on handwritten digits.

    Needs no download and no GPU, and takes a minute or two on a laptop. Several seeds of each unit train at once,
    so you can see how much the results vary. Run it again to show the results again, or to continue after Ctrl-C.
    """
    chosen = parse_seeds(seeds)
    choose_threads_for_runs(quickstart_settings(chosen, epochs))
    console = Console(stderr=True)
    names = {"lipschitz": "Lipschitz RNN", "lstm": "LSTM"}
    try:
        done = run_quickstart(out, chosen, epochs, lambda name: choose_watcher(console, names[name], quiet=as_json))
    except Interrupted as stopped:  # its own hint would resume one run, not the comparison
        raise Interrupted(stopped.number, stopped.saved, "the same command again") from None
    if as_json:
        facts: dict[str, Any] = {
            "lipschitz": done.lipschitz.to_dict(),
            "lstm": done.lstm.to_dict(),
            "picture": str(done.picture),
        }
        interval = done.difference()
        facts |= {"difference_95": None if interval is None else list(interval), "conclusion": done.conclusion()}
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table(title=f"Handwritten digits, one pixel per step, {epochs} epochs", title_justify="left")
    table.add_column("unit", no_wrap=True)
    for column in ("parameters", "seeds", "test accuracy", "seconds"):
        table.add_column(column, justify="right")
    for name, result in (("Lipschitz RNN", done.lipschitz), ("LSTM", done.lstm)):
        row = f"{result.parameters:,}", str(len(result.seeds)), _mean_and_spread(result), f"{result.seconds:.0f}"
        table.add_row(name, *row)
    page = Console()
    page.print(table)
    if len(chosen) > 1:
        page.print("± is the standard deviation over seeds.", highlight=False)
    page.print(done.conclusion(), highlight=False)
    page.print(f"Picture: {done.picture}", highlight=False, markup=False, soft_wrap=True)
    page.print("Next:")
    commands = [(command.format(folder=out), what) for command, what in NEXT]
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        page.print(f"  {command:<{width}}  {what}", highlight=False, markup=False, soft_wrap=True)


def _mean_and_spread(result: Result) -> str:
    values = [100.0 * score for score in test_scores(result)]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} %" if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f} %"
