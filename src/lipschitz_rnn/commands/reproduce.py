"""`lipschitz-rnn reproduce`: the paper's results, one command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.progress import choose_watcher

reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's studies again and write what came out.")


@reproduce.callback()
def studies() -> None:
    """Run the paper's studies again and write what came out."""


@reproduce.command()
@guarded
def figures(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures and the runs.")] = Path("figures"),
    task: Annotated[
        str, typer.Option(help="Task on which the eigenvalues are tracked; the paper's is ordered-mnist.")
    ] = "digits",
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of that training; the preset's by default.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never download.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written paths as JSON.")] = False,
) -> None:
    """Draw the stability studies: pendulum, eigenvalues against β, Lemma 2, eigenvalues over training.

    The last one trains two networks, β = 0.65 and 0.95, with the preset of the task: on the embedded digits in about a
    minute, with --task ordered-mnist on a GPU as in the paper. Interrupted, it goes on where it stopped.

    Example: lipschitz-rnn reproduce figures -o figures
    """
    from lipschitz_rnn.experiments.studies import reproduce_figures

    console = Console(stderr=as_json)
    changes: dict[str, Any] = {"device": device, "data_dir": data_dir, "offline": offline}
    changes |= {"epochs": epochs} if epochs is not None else {}
    written = reproduce_figures(out, task, changes, watch=lambda name: choose_watcher(console, name))
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in written.items()}, indent=2))
    else:
        for path in written.values():
            console.print(f"wrote {path}", highlight=False)
