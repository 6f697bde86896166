"""`lipschitz-rnn evaluate`: scores of a run's networks on a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.experiments.runner import evaluate_run
from lipschitz_rnn.experiments.scores import show_score, show_scores
from lipschitz_rnn.tasks import Split


@guarded
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder, as `train` made it.")],
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = "test",
    which: Annotated[
        Literal["best", "last"], typer.Option(help="Weights selected on validation data, or the newest ones.")
    ] = "best",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; as trained by default.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never download.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Score the networks of a run: every seed, on one split, from its checkpoints.

    Works while the run goes on and after it.

    Example: lipschitz-rnn evaluate runs/digits-lipschitz-n64 --split validation
    """
    settings, metric, scores = evaluate_run(run, split, which, device=device, data_dir=data_dir, offline=offline)
    if as_json:
        seeds = [
            {"seed": seed, metric.name: value, "loss": loss}
            for seed, value, loss in zip(settings.seeds, scores.metric, scores.loss, strict=True)
        ]
        typer.echo(json.dumps({"run": str(run), "split": split, "which": which, "seeds": seeds}, indent=2))
        return
    table = Table(
        "seed", f"{split} {metric.name}", "loss", title=f"{settings.task} · {settings.unit} · {which} weights"
    )
    for seed, value, loss in zip(settings.seeds, scores.metric, scores.loss, strict=True):
        table.add_row(str(seed), show_score(value, metric.percent), f"{loss:.4g}")
    console = Console()
    console.print(table)
    if len(scores.metric) > 1:
        console.print(f"mean {show_scores(scores.metric, metric.percent)}", highlight=False)
