"""`lipschitz-rnn quickstart`: a trained network and a picture within a minute or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.progress import choose_watcher
from lipschitz_rnn.experiments.quickstart import run_quickstart
from lipschitz_rnn.experiments.scores import show_score

NEXT = (
    ("lipschitz-rnn evaluate {folder}/lipschitz", "score it again from its checkpoint"),
    ("lipschitz-rnn report {folder} -o {folder}/report", "curves, tables and settings as a page"),
    ("lipschitz-rnn train digits --seeds 0-4", "five seeds at once"),
    ("lipschitz-rnn train digits --unit gru", "another unit (lipschitz-rnn units)"),
    ("lipschitz-rnn train ordered-mnist --device cuda", "the paper's first experiment"),
)


@guarded
def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs and the picture.")] = Path("quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of both networks.")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer or more epochs than the preset's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train a Lipschitz RNN on handwritten digits, beside an LSTM of its size, and draw what it learned.

    Needs no download and no GPU; about a minute on a laptop. Run again, it shows what is there, or goes on where it
    was interrupted.
    """
    torch.set_num_threads(1)  # networks this small only wait for each other on more
    console = Console(stderr=True)
    names = {"lipschitz": "Lipschitz RNN", "lstm": "LSTM"}
    done = run_quickstart(out, seed, epochs, lambda name: choose_watcher(console, names[name]))
    if as_json:
        facts = {"lipschitz": done.lipschitz.to_dict(), "lstm": done.lstm.to_dict(), "picture": str(done.picture)}
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table("unit", title="Handwritten digits, one pixel a step", title_justify="left")
    for column in ("parameters", "test accuracy", "epoch selected on validation", "seconds"):
        table.add_column(column, justify="right")
    for name, result in (("Lipschitz RNN", done.lipschitz), ("LSTM", done.lstm)):
        best = result.seeds[0]
        epoch = "–" if best.selected_epoch is None else str(best.selected_epoch + 1)
        table.add_row(name, f"{result.parameters:,}", show_score(best.test, True), epoch, f"{result.seconds:.0f}")
    page = Console()
    page.print(table)
    page.print(f"Picture: {done.picture}", highlight=False, soft_wrap=True)
    page.print("Next:")
    commands = [(command.format(folder=out), what) for command, what in NEXT]
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        page.print(f"  {command:<{width}}  {what}", highlight=False, soft_wrap=True)
