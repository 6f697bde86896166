"""`lipschitz-rnn reproduce`: the paper's results, one command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands.errors import RESUME, guarded
from lipschitz_rnn.commands.help import TidyCommand, TidyGroup
from lipschitz_rnn.commands.options import (
    AsJson,
    Commit,
    DataDir,
    Device,
    DryRun,
    Epochs,
    Jobs,
    Offline,
    Only,
    Out,
    Precision,
    Results,
    Resume,
    TrainingSeeds,
)
from lipschitz_rnn.commands.parsing import asked_for, parse_seeds
from lipschitz_rnn.commands.progress import watch_runs
from lipschitz_rnn.commands.reproduce_studies import ablation, figures, robustness
from lipschitz_rnn.commands.threads import suit_settings, threaded
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.scores import show_duration, show_score, spread
from lipschitz_rnn.training import RunError

reproduce = typer.Typer(
    no_args_is_help=True, cls=TidyGroup, help="Repeat the paper's studies and write tables and figures."
)


@reproduce.callback()
def studies() -> None:
    """Repeat the paper's studies and write tables and figures."""


@reproduce.command(cls=TidyCommand)
@guarded(interrupted=RESUME)
@threaded
def mnist(
    out: Annotated[Path, Out] = Path("runs/mnist"),
    seeds: TrainingSeeds = None,
    only: Only = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also LSTM, antisymmetric, expRNN and coRNN, trained the same way.")
    ] = False,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Also the settings that were chosen on validation data.")
    ] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="Also the candidates for those settings.")] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Also precision, decay and scaling, each changed alone at N = 128.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small digits instead of MNIST: minutes on a CPU, to see it run.")
    ] = False,
    resume: Resume = False,
    jobs: Jobs = 1,
    epochs: Epochs = None,
    precision: Precision = None,
    results: Results = None,
    commit: Commit = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train the networks of the paper's MNIST table: ordered and permuted, N = 64 and 128, Euler and midpoint.

    Each cell of the table is one run folder: all seeds as one ensemble, with the paper's settings. When a cell is
    finished, its scores and curves go to OUT/results, and the weights with the best validation score to
    OUT/pretrained. After an interruption, the same command with --resume continues.

    [bold]Examples[/]

      lipschitz-rnn reproduce mnist --quick -o runs/quick
      lipschitz-rnn reproduce mnist --device cuda --resume
      lipschitz-rnn reproduce mnist --only permuted-mnist --only lstm -s 0-4
    """
    from lipschitz_rnn.experiments.campaign import Campaign
    from lipschitz_rnn.experiments.mnist import plan_mnist

    changes = asked_for(epochs=epochs, precision=precision, device=device, data_dir=data_dir, offline=offline)
    plans = plan_mnist(
        only or (),
        baselines=baselines,
        tuned=tuned,
        sweep=sweep,
        checks=checks,
        quick=quick,
        seeds=None if seeds is None else parse_seeds(seeds),
        changes=changes,
    )
    if dry_run:
        cells = [{"name": plan.name, "command": plan.command, "settings": plan.settings.to_dict()} for plan in plans]
        typer.echo(json.dumps(cells, indent=2) if as_json else "\n".join(plan.name for plan in plans))
        return
    suit_settings([plan.settings for plan in plans])
    console = Console(stderr=as_json)
    campaign = Campaign(out, results or out / "results", resume, commit, jobs)
    records, failed = campaign.run(plans, watch_runs(jobs, quiet=as_json))
    if as_json:
        typer.echo(json.dumps([_scores(record) for record in records], indent=2))
    else:
        _print_scores(console, records)
        console.print(f"results: {campaign.results}", highlight=False, soft_wrap=True)
    if failed:
        raise RunError(f"{len(failed)} of {len(plans)} cells failed: {', '.join(failed)}; continue with --resume")


def _scores(record: Record) -> dict[str, Any]:
    return {"name": record.name, "seconds": record.seconds, "seeds": record.seeds, "metric": record.metric}


def _print_scores(console: Console, records: list[Record]) -> None:
    """Mean, minimum and maximum of the test split where validation chose, and the mean at the last epoch."""
    table = Table(title="test, at the epoch chosen on validation data", title_justify="left")
    table.add_column("cell", overflow="fold")
    for column in ("seeds", "min", "mean", "max", "last", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for record in records:
        values = (*spread(record.scores()), spread(record.scores("test_last"))[1])
        shown = [show_score(value, record.percent).removesuffix(" %") for value in values]
        table.add_row(record.name, str(len(record.seeds)), *shown, show_duration(record.seconds))
    console.print(table)


for study in (figures, ablation, robustness):
    reproduce.command(cls=TidyCommand)(study)
