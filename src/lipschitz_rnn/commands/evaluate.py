"""`lipschitz-rnn evaluate`: scores of a run's networks, or of a pretrained network, on a split."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.model_files import require_whole
from lipschitz_rnn.commands.options import AsJson, DataDir, DeviceAsTrained, Offline, Which
from lipschitz_rnn.commands.progress import progress_bar
from lipschitz_rnn.commands.threads import choose_threads, with_threads
from lipschitz_rnn.documents.numbers import show_score, show_scores
from lipschitz_rnn.experiments.left_out import left_out_note, require_validated
from lipschitz_rnn.tasks import Split
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.units.lipschitz.pretrained import read_pretrained


@guarded
@with_threads
@with_imports
def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder, written by `train`.")] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained",
            metavar="NAME",
            help="Pretrained network instead of a run: its name, e.g. ordered-mnist-128, or a .safetensors file.",
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Part of the data to score on.")] = "test",
    which: Which = "best",
    device: DeviceAsTrained = None,
    data_dir: DataDir = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Score every trained network of a run on one split of the data.

    Also works while the run is still training. With --pretrained it scores a network that comes with the package.

    [bold]Examples[/]

      lipschitz-rnn evaluate runs/digits-lipschitz-n64 --split validation
      lipschitz-rnn evaluate --pretrained ordered-mnist-128
    """
    if (run is None) == (pretrained is None):
        given = "none is given" if run is None else f"{str(run)!r} and --pretrained {pretrained!r} are both given"
        raise ValueError(f"give either a run folder or --pretrained NAME; {given}")
    if pretrained is not None:
        require_whole(Path(pretrained))
    source = {"run": str(run)} if run is not None else {"pretrained": str(pretrained)}
    loaded = load_run(run if run is not None else read_pretrained(str(pretrained)))
    settings = loaded.settings
    choose_threads(len(settings.members), settings.eval_batch_size, settings.hidden_size)
    place: dict[str, Any] = {"device": device, "data_dir": data_dir, "offline": offline}
    with progress_bar(quiet=as_json) as show:
        metric, scores = loaded.evaluate(
            split, which, **place, progress=lambda done, total: show("scoring", done, total)
        )
    validated = loaded.validated(which)
    require_validated(loaded.name, validated)
    values, losses = (
        [value if counts and math.isfinite(value) else None for value, counts in zip(each, validated, strict=True)]
        for each in (scores.metric, scores.loss)
    )
    if as_json:
        seeds = [
            {"seed": member.seed, "variant": dict(member.variant), metric.name: value, "loss": loss}
            for member, value, loss in zip(settings.members, values, losses, strict=True)
        ]
        typer.echo(json.dumps(source | {"split": split, "which": which, "seeds": seeds}, indent=2))
        return
    table = Table()
    table.add_column("network", overflow="fold")
    for column in (f"{split} {metric.name}", "loss"):
        table.add_column(column, justify="right", no_wrap=True)
    for member, value, loss in zip(settings.members, values, losses, strict=True):
        table.add_row(escape(member.name), show_score(value, metric.percent), show_score(loss, False))
    console = Console()
    console.print(f"{settings.task} · {settings.unit} · {which} weights", highlight=False, markup=False)
    console.print(table)
    if note := left_out_note(settings.members, validated):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if len(values) > 1 and not settings.variants:
        console.print(f"mean {show_scores(values, metric.percent)}", highlight=False)
