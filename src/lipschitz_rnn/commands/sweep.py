"""`lipschitz-rnn sweep`: many configurations from one file."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn.commands import options
from lipschitz_rnn.commands.errors import CONTINUE, guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.parsing import require_small_file
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.sweep_board import choose_board
from lipschitz_rnn.commands.threads import choose_threads_for_runs, usable_cores, with_threads
from lipschitz_rnn.documents.numbers import show_duration, show_score, show_scores
from lipschitz_rnn.experiments.engines import make_engine
from lipschitz_rnn.experiments.engines.base import slots_here
from lipschitz_rnn.experiments.sweeps import Sweep, read_sweep, run_sweep
from lipschitz_rnn.experiments.sweeps.cost import estimate, show_runs
from lipschitz_rnn.experiments.sweeps.page import write_sweep_page
from lipschitz_rnn.experiments.sweeps.running import Outcome, check_sweep
from lipschitz_rnn.experiments.sweeps.space import show_point
from lipschitz_rnn.training import RunError

_SHOWN = 10  # trials


@guarded(interrupted=CONTINUE)
@with_threads
@with_imports
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the sweep; see docs/sweeps.md.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder of the sweep; a second call goes on. Default: runs/FILE.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    engine: options.EngineChoice = "local",
    jobs: options.RunsAtOnce = None,
    address: options.Address = None,
    gpus: options.Gpus = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check the file, list the runs, estimate their cost, and stop.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Train many configurations, choose on validation data, and test the winner once.

    The file names what is fixed, what varies, and how to search: a grid, random or Bayesian search, with or without
    pruning. Configurations that can share an ensemble train as one run. Every run has an ordinary run folder. Stop with
    Ctrl-C; the same command goes on, and repeats nothing.

    [bold]Examples[/]

      lipschitz-rnn sweep beta.toml --dry-run
      lipschitz-rnn sweep beta.toml -o runs/beta --jobs 2
      lipschitz-rnn sweep beta.toml -o /shared/beta --engine ray --address auto
    """
    require_small_file(file, "a TOML file of a sweep")
    found = read_sweep(file)
    folder = out or Path("runs") / file.stem
    place = {"device": device, "data_dir": data_dir, "offline": offline}
    place = {
        name: value for name, value in place.items() if name not in found.settings or value not in (None, False, "auto")
    }
    with spinner("checking", quiet=as_json):
        trials = check_sweep(found, folder, **place)
    choose_threads_for_runs([trial.settings for trial in trials])
    chosen = trials[0].settings.device
    slots = slots_here(jobs, chosen)
    if dry_run:
        _print_plan(found, as_json, slots, place)
        return
    threads = max(1, min(torch.get_num_threads(), usable_cores() // slots)) if engine == "local" else 1
    with make_engine(engine, jobs, threads=threads, address=address, gpus=gpus, device=chosen) as runner:
        outcome = run_sweep(found, folder, engine=runner, board=choose_board(as_json), threads=threads, **place)
    with spinner("writing the page", quiet=as_json):
        pages = write_sweep_page(found, outcome, folder)
    _print_outcome(dataclasses.replace(outcome, written=(*outcome.written, *pages)), as_json)
    if outcome.failed:
        first = outcome.failed[0]
        raise RunError(
            f"{len(outcome.failed)} of {len(outcome.trials)} trials failed, the first "
            f"({show_point(first.trial.point)}) with: {first.error}; the same command tries them again"
        )


def _print_plan(found: Sweep, as_json: bool, jobs: int, place: dict[str, Any]) -> None:
    with spinner("measuring a few steps of each kind of run", quiet=as_json):
        cost, runs = estimate(found, **place)
    if as_json:
        facts = dataclasses.asdict(cost) | {
            "plan": [{"name": job.name, "points": [t.point for t in job.trials], "settings": job.settings.to_dict()}
                     for job in (runs if found.method == "grid" else runs[:2])],
            "drawn": found.method != "grid",
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    for line in show_runs(found, runs):
        typer.echo(line)
    at_most = ", at most, without pruning" if found.pruning != "none" else ""
    typer.echo(f"{cost.trials} trials in {cost.runs} runs, {cost.networks} networks, {cost.epochs:,} epochs, "
               f"{cost.steps:,} steps{at_most}")  # fmt: skip
    if cost.seconds is None:
        typer.echo("the time could not be measured: the data are not here, or the runs do not fit")
        return
    about = f"{cost.measured} of {cost.kinds} kinds of runs measured" if cost.measured < cost.kinds else "measured here"
    typer.echo(f"about {show_duration(cost.seconds)} of training one after another, "
               f"{show_duration(cost.seconds / jobs)} with {jobs} at a time ({about})")  # fmt: skip


def _print_outcome(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        typer.echo(outcome.written[1].read_text(encoding="utf-8").rstrip())
        return
    console = Console()
    winners = outcome.winners
    percent, higher = (winners[0].percent, winners[0].higher_is_better) if winners else (False, True)
    ranked = [each for each in outcome.trials if each.score is not None]
    ranked.sort(key=lambda each: (each.score or 0.0) * (-1 if higher else 1))
    table = Table(title=f"best of {len(outcome.trials)} trials, on validation data", title_justify="left")
    for column in ("trial", "configuration"):
        table.add_column(column, overflow="fold")
    for column in ("validation", "epochs", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in ranked[:_SHOWN]:
        facts = (show_score(each.score, percent), str(each.epochs), show_duration(each.seconds))
        table.add_row(str(each.trial.number), escape(show_point(each.trial.point)), *facts)
    console.print(table)
    others = {state: sum(each.state == state for each in outcome.trials) for state in ("diverged", "pruned", "failed")}
    told = ", ".join(f"{count} {state}" for state, count in others.items() if count)
    if told:
        console.print(f"{told} trials", highlight=False)
    for winner, tests in zip(winners, outcome.tests, strict=True):
        group = ", ".join(f"{value}" for value in winner.group.values())
        run = os.path.relpath(winner.best.folder)
        console.print(
            f"{group}: {show_point(winner.best.trial.point)}; validation {winner.metric} "
            f"{show_score(winner.best.score, winner.percent)}, test {show_scores(tests, winner.percent)}; run {run}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    for path in outcome.written:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
