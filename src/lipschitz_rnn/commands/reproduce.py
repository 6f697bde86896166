"""`lipschitz-rnn reproduce`: the paper's results, one command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.parsing import asked_for, parse_seeds
from lipschitz_rnn.commands.progress import watch_runs
from lipschitz_rnn.commands.reproduce_studies import ablation, figures, robustness
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.scores import show_duration, show_score, spread
from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.settings import Precision

reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's studies again and write what came out.")


@reproduce.callback()
def studies() -> None:
    """Run the paper's studies again and write what came out."""


@reproduce.command()
@guarded
def mnist(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs, one in each cell's name.")] = Path(
        "runs/mnist"
    ),
    seeds: Annotated[
        str | None, typer.Option("--seeds", "-s", help="Seeds of every cell, trained together. (default: 0-11)")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Cells by name, part or pattern: permuted-mnist, 128/euler, lstm; may be given again."),
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also LSTM, antisymmetric, expRNN and coRNN, trained the same way.")
    ] = False,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Also the settings that a sweep chose on validation data.")
    ] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also the candidates for those settings, with seeds of their own.")
    ] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Also precision, decay and scaling, each changed alone at N = 128.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small digits in place of MNIST, minutes on a CPU: to see it run.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier call was cut off; finished cells stay.")
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", min=1, help="Cells at a time, each a process. A GPU serves them in turns unless MPS runs."
        ),
    ] = 1,
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs; the decay moves along.")] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="float32 at highest (default), high (TF32) or medium; bfloat16; float64.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder for one JSON per finished cell. (default: OUT/results)")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="Commit to note where the package does not run from a checkout.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never download.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells that would run, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Train the networks of the paper's first table: ordered and permuted MNIST, N = 64 and 128, Euler and midpoint.

    Every cell is a run folder with all seeds as one ensemble and the paper's settings. A finished cell is exported at
    once: scores and curves to OUT/results, the weights that validation likes best to OUT/pretrained. Cut off, the same
    command with --resume goes on.

    [bold]Examples[/]

      lipschitz-rnn reproduce mnist --quick -o runs/quick

      lipschitz-rnn reproduce mnist --device cuda --resume

      lipschitz-rnn reproduce mnist --only ordered-mnist/lipschitz/128/euler --only lstm --seeds 0-4
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
    console = Console(stderr=as_json)
    campaign = Campaign(out, results or out / "results", resume, commit, jobs)
    records, failed = campaign.run(plans, watch_runs(console, jobs))
    if as_json:
        typer.echo(json.dumps([_scores(record) for record in records], indent=2))
    else:
        _print_scores(console, records)
        console.print(f"results: {campaign.results}", highlight=False, soft_wrap=True)
    if failed:
        raise RunError(f"{len(failed)} of {len(plans)} cells failed: {', '.join(failed)}; go on with --resume")


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


reproduce.command()(figures)
reproduce.command()(ablation)
reproduce.command()(robustness)
