"""`lipschitz-rnn evaluate`: scores of a run's networks, or of a trained network that comes along, on a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.experiments.pretrained import evaluate_pretrained
from lipschitz_rnn.experiments.runner import evaluate_run
from lipschitz_rnn.experiments.scores import show_score, show_scores
from lipschitz_rnn.tasks import Split


@guarded
def evaluate(
    run: Annotated[Path | None, typer.Argument(help="Run folder, as `train` made it.")] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(help="A trained network in place of a run: its name, as ordered-mnist-128, or a .safetensors."),
    ] = None,
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

    Works while the run goes on and after it. With --pretrained, the network that comes with the package.

    Examples: lipschitz-rnn evaluate runs/digits-lipschitz-n64 --split validation

    lipschitz-rnn evaluate --pretrained ordered-mnist-128
    """
    if (run is None) == (pretrained is None):
        raise ValueError("evaluate takes a run folder or --pretrained NAME, one of them")
    place = {"device": device, "data_dir": data_dir, "offline": offline}
    if run is not None:
        settings, metric, scores = evaluate_run(run, split, which, **place)  # type: ignore[arg-type]
        source: dict[str, str] = {"run": str(run)}
    else:
        if which == "last":
            raise ValueError("--which last needs a run folder; a trained network holds its selected weights only")
        settings, metric, scores = evaluate_pretrained(str(pretrained), split, **place)  # type: ignore[arg-type]
        source = {"pretrained": str(pretrained)}
    if as_json:
        seeds = [
            {"seed": member.seed, "variant": dict(member.variant), metric.name: value, "loss": loss}
            for member, value, loss in zip(settings.members, scores.metric, scores.loss, strict=True)
        ]
        typer.echo(json.dumps(source | {"split": split, "which": which, "seeds": seeds}, indent=2))
        return
    table = Table(
        "network", f"{split} {metric.name}", "loss", title=f"{settings.task} · {settings.unit} · {which} weights"
    )
    for member, value, loss in zip(settings.members, scores.metric, scores.loss, strict=True):
        table.add_row(member.name, show_score(value, metric.percent), f"{loss:.4g}")
    console = Console()
    console.print(table)
    if len(scores.metric) > 1 and not settings.variants:
        console.print(f"mean {show_scores(scores.metric, metric.percent)}", highlight=False)
