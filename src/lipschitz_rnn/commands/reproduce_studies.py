"""`lipschitz-rnn reproduce ablation`, `reproduce robustness` and `reproduce figures`: last section and stability."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import RESUME, guarded
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
from lipschitz_rnn.commands.threads import suit_settings, threaded
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.training import RunError

QUICK = typer.Option("--quick", help="Small digits instead of MNIST: minutes on two CPU cores.")


@guarded(interrupted=RESUME)
@threaded
def ablation(
    out: Annotated[Path, Out] = Path("runs/ablation"),
    quick: Annotated[bool, QUICK] = False,
    seeds: TrainingSeeds = None,
    only: Only = None,
    epochs: Epochs = None,
    hidden_size: Annotated[
        int | None, typer.Option("--hidden-size", "-n", min=1, help="Hidden size N. Default: the paper's 128.")
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Networks to train at once. Default: all values and seeds of an option."),
    ] = None,
    resume: Resume = False,
    jobs: Jobs = 1,
    precision: Precision = None,
    results: Results = None,
    commit: Commit = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Plot accuracy against α (0 to 2) and β (0.5 to 1) on ordered and permuted MNIST.

    All values of an option train as one ensemble, with three seeds each. Writes ablation.md, ablation.png and one JSON
    file per run.

    [bold]Example[/]

      lipschitz-rnn reproduce ablation --quick -o ablation
    """
    from lipschitz_rnn.experiments import ablation_page
    from lipschitz_rnn.experiments.ablation import plan_ablation
    from lipschitz_rnn.experiments.campaign import Campaign
    from lipschitz_rnn.experiments.plans import write_page

    changes = asked_for(
        epochs=epochs, hidden_size=hidden_size, precision=precision, data_dir=data_dir, device=device, offline=offline
    )
    plans = plan_ablation(
        only or (), quick=quick, seeds=None if seeds is None else parse_seeds(seeds), at_once=at_once, changes=changes
    )
    if dry_run:
        _list([(plan.name, plan.settings.to_dict()) for plan in plans], as_json)
        return
    suit_settings([plan.settings for plan in plans])
    console = Console(stderr=as_json)
    campaign = Campaign(out, results or out / "results", resume, commit, jobs)
    records, failed = campaign.run(plans, watch_runs(jobs, quiet=as_json))
    if records:
        known = _known(campaign.results, records[0])
        written = write_page(ablation_page.blocks(known), out / "ablation.md")
        written.append(out / "ablation.png")
        ablation_page.draw(ablation_page.read_curves(known)).savefig(written[-1], dpi=150)
        _tell(console, [*written, *(campaign.results / record.file for record in records)], as_json)
    if failed:
        raise RunError(f"{len(failed)} of {len(plans)} runs failed: {', '.join(failed)}; continue with --resume")


@guarded(interrupted=RESUME)
@threaded
def robustness(
    out: Annotated[Path, Out] = Path("runs/robustness"),
    quick: Annotated[bool, QUICK] = False,
    seeds: TrainingSeeds = None,
    only: Only = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", "-e", min=1, help="Number of epochs; each network is taken from one of them."),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(min=0.0, help="Training loss to compare at. Default: the lowest that all networks reach."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", min=0.0, help="Learning rate of SGD with momentum 0.9.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Test samples to attack. Default: all.")] = None,
    resume: Resume = False,
    jobs: Jobs = 1,
    precision: Precision = None,
    results: Results = None,
    commit: Commit = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Repeat the paper's robustness table and its figure on noise.

    A neural ODE, the antisymmetric and the Lipschitz unit (and, in the figure, a unitary unit) learn MNIST in 98 steps
    of 8 pixels by SGD with momentum, five seeds each, and are compared at about the same training loss. Writes
    robustness.md, robustness.png and one JSON file per unit. Units left out by --only can be added later with
    --resume. The unitary unit is slow and does not change the loss that the others are compared at.

    [bold]Example[/]

      lipschitz-rnn reproduce robustness --quick -o robustness
    """
    from lipschitz_rnn.experiments import robustness_page
    from lipschitz_rnn.experiments.plans import write_page
    from lipschitz_rnn.experiments.robustness_pictures import draw_noise
    from lipschitz_rnn.experiments.robustness_study import RobustnessCampaign, choose_method, plan_robustness

    changes = asked_for(epochs=epochs, learning_rate=learning_rate, precision=precision)
    changes |= asked_for(data_dir=data_dir, device=device, offline=offline)
    method = choose_method(quick, target_loss, samples)
    chosen = None if seeds is None else parse_seeds(seeds)
    plans = plan_robustness(only or (), quick=quick, seeds=chosen, method=method, changes=changes)
    if dry_run:
        _list([(plan.name, plan.settings.to_dict()) for plan in plans], as_json)
        return
    suit_settings([plan.settings for plan in plans])
    console = Console(stderr=as_json)
    campaign = RobustnessCampaign(out, results or out / "results", resume, commit, jobs, method)
    records, failed = campaign.run(plans, watch_runs(jobs, quiet=as_json))
    if records:
        known = _known(campaign.results, records[0])
        written = write_page(robustness_page.blocks(known), out / "robustness.md")
        written.append(out / "robustness.png")
        draw_noise(known).savefig(written[-1], dpi=150)
        _tell(console, [*written, *(campaign.results / record.file for record in records)], as_json)
    if failed:
        raise RunError(f"not trained or not measured: {'; '.join(failed)}; continue with --resume")


@guarded(interrupted=RESUME)
@threaded
def figures(
    out: Annotated[Path, Out] = Path("figures"),
    task: Annotated[str, typer.Option(help="Task to track eigenvalues on; the paper uses ordered-mnist.")] = "digits",
    seeds: TrainingSeeds = None,
    epochs: Epochs = None,
    resume: Resume = False,
    precision: Precision = None,
    results: Results = None,
    commit: Commit = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Draw the stability studies: pendulum, eigenvalues against β, Lemma 2, eigenvalues over training.

    The last one trains three seeds each of β = 0.65 and 0.95: on the built-in digits in about a minute, with --task
    ordered-mnist as in the paper. Writes four pictures, figures.md and one JSON file.

    [bold]Example[/]

      lipschitz-rnn reproduce figures -o figures
    """
    from lipschitz_rnn.experiments import figures_page
    from lipschitz_rnn.experiments.figures_drawings import DRAWINGS
    from lipschitz_rnn.experiments.figures_study import FiguresCampaign, plan_figures
    from lipschitz_rnn.experiments.figures_tracks import draw_training
    from lipschitz_rnn.experiments.plans import write_page

    changes = asked_for(epochs=epochs, precision=precision, data_dir=data_dir, device=device, offline=offline)
    plan = plan_figures(task, seeds=None if seeds is None else parse_seeds(seeds), changes=changes)
    if dry_run:
        _list([(plan.name, plan.settings.to_dict())], as_json)
        return
    suit_settings([plan.settings])
    console = Console(stderr=as_json)
    campaign = FiguresCampaign(out, results or out / "results", resume, commit)
    records, _ = campaign.run([plan], watch_runs(1, quiet=as_json))
    if not records:
        raise RunError(f"{plan.name} failed; continue with --resume")
    numbers = records[0].measures["drawings"]
    drawn = {drawing.name: drawing.draw(numbers[drawing.name]) for drawing in DRAWINGS}
    drawn["spectrum-over-training"] = draw_training(records[0])
    written = [out / f"{name}.png" for name in drawn]
    for path, figure in zip(written, drawn.values(), strict=True):
        figure.savefig(path, dpi=150)
    written += write_page(figures_page.blocks(records), out / "figures.md")
    _tell(console, [*written, campaign.results / records[0].file], as_json)


def _known(results: Path, record: Record) -> list[Record]:
    """All records of a study beside this one: a run that was asked for alone joins those before it on the page."""
    return [other for other in read_records(results, record.study) if other.kind == record.kind]


def _list(runs: list[tuple[str, dict[str, Any]]], as_json: bool) -> None:
    plain = [{"name": name, "settings": settings} for name, settings in runs]
    typer.echo(json.dumps(plain, indent=2) if as_json else "\n".join(name for name, _ in runs))


def _tell(console: Console, written: list[Path], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([str(path) for path in written], indent=2))
    else:
        for path in written:
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)
