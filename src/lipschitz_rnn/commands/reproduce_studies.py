"""`lipschitz-rnn reproduce ablation`, `reproduce robustness` and `reproduce figures`: last section and stability."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.parsing import asked_for, parse_seeds
from lipschitz_rnn.commands.progress import watch_runs
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.settings import Precision

SEEDS = typer.Option("--seeds", "-s", help="Seeds of every value or unit, trained together: 0-4, or 0,2,5.")
ONLY = typer.Option("--only", "--task", help="Runs by name, part or pattern; may be given again.")
RESUME = typer.Option("--resume", help="Go on where an earlier call was cut off; what is finished stays.")
JOBS = typer.Option("--jobs", "-j", min=1, help="Processes at a time: each trains one run, or measures one network.")
RESULTS = typer.Option(help="Folder for one JSON per finished run. (default: OUT/results)")
COMMIT = typer.Option(help="Commit to note where the package does not run from a checkout.")
PRECISION = typer.Option(help="float32 at highest (default), high (TF32) or medium; bfloat16; float64.")
DEVICE = typer.Option(help="auto, cpu, cuda or cuda:1.")
DATA = typer.Option(help="Folder with data files.")
OFFLINE = typer.Option("--offline", help="Never download.")
DRY_RUN = typer.Option("--dry-run", help="List the runs, and stop.")
AS_JSON = typer.Option("--json", help="Print the written paths as JSON.")


@guarded
def ablation(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, results, table and figure.")] = Path(
        "runs/ablation"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small digits in place of MNIST: minutes on two CPU cores.")
    ] = False,
    seeds: Annotated[str | None, SEEDS] = None,
    only: Annotated[list[str] | None, ONLY] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs; the decay moves along.")] = None,
    hidden_size: Annotated[
        int | None, typer.Option("--hidden-size", "-n", min=1, help="N; the paper's is 128.")
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Networks that train at once; by default all values and seeds of an option."),
    ] = None,
    resume: Annotated[bool, RESUME] = False,
    jobs: Annotated[int, JOBS] = 1,
    precision: Annotated[Precision | None, PRECISION] = None,
    results: Annotated[Path | None, RESULTS] = None,
    commit: Annotated[str | None, COMMIT] = None,
    device: Annotated[str, DEVICE] = "auto",
    data_dir: Annotated[str | None, DATA] = None,
    offline: Annotated[bool, OFFLINE] = False,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Draw accuracy against α (0 to 2) and against β (0.5 to 1) for ordered and permuted MNIST, as in the paper.

    All values of an option train side by side as one ensemble, three seeds each. Writes ablation.md, ablation.png and
    one JSON for each run.

    Example: lipschitz-rnn reproduce ablation --quick -o ablation
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
    if quick:
        torch.set_num_threads(1)  # networks this small only wait for each other on more
    console = Console(stderr=as_json)
    campaign = Campaign(out, results or out / "results", resume, commit, jobs)
    records, failed = campaign.run(plans, watch_runs(console, jobs))
    if records:
        known = _known(campaign.results, records[0])
        written = write_page(ablation_page.blocks(known), out / "ablation.md")
        written.append(out / "ablation.png")
        ablation_page.draw(ablation_page.read_curves(known)).savefig(written[-1], dpi=150)
        _tell(console, [*written, *(campaign.results / record.file for record in records)], as_json)
    if failed:
        raise RunError(f"{len(failed)} of {len(plans)} runs failed: {', '.join(failed)}; go on with --resume")


@guarded
def robustness(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, results, table and figure.")] = Path(
        "runs/robustness"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small digits in place of MNIST: minutes on two CPU cores.")
    ] = False,
    seeds: Annotated[str | None, SEEDS] = None,
    only: Annotated[list[str] | None, ONLY] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", "-e", min=1, help="Epochs of every network; one of them is taken of each.")
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(min=0.0, help="Training loss to compare at. (default: the lowest that all networks came down to)"),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", min=0.0, help="Of SGD with momentum 0.9, for all units.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Test samples that are attacked; all of them by default.")
    ] = None,
    resume: Annotated[bool, RESUME] = False,
    jobs: Annotated[int, JOBS] = 1,
    precision: Annotated[Precision | None, PRECISION] = None,
    results: Annotated[Path | None, RESULTS] = None,
    commit: Annotated[str | None, COMMIT] = None,
    device: Annotated[str, DEVICE] = "auto",
    data_dir: Annotated[str | None, DATA] = None,
    offline: Annotated[bool, OFFLINE] = False,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Attack, shake and measure the paper's units: its third table and its figure on noise.

    Neural ODE, antisymmetric, Lipschitz and, in the figure, unitary unit learn MNIST in 98 steps of 8 pixels by SGD
    with momentum, five seeds each, and are compared at about the same training loss. Writes robustness.md,
    robustness.png and one JSON for each unit. A unit that --only left out joins the others later with --resume; the
    unitary one, which is slow and not in the table, does not change the loss that they are compared at.

    Example: lipschitz-rnn reproduce robustness --quick -o robustness
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
    if quick:
        torch.set_num_threads(1)  # networks this small only wait for each other on more
    console = Console(stderr=as_json)
    campaign = RobustnessCampaign(out, results or out / "results", resume, commit, jobs, method)
    records, failed = campaign.run(plans, watch_runs(console, jobs))
    if records:
        known = _known(campaign.results, records[0])
        written = write_page(robustness_page.blocks(known), out / "robustness.md")
        written.append(out / "robustness.png")
        draw_noise(known).savefig(written[-1], dpi=150)
        _tell(console, [*written, *(campaign.results / record.file for record in records)], as_json)
    if failed:
        raise RunError(f"not trained or not measured: {'; '.join(failed)}; go on with --resume")


@guarded
def figures(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for pictures, page, run and results.")] = Path(
        "figures"
    ),
    task: Annotated[
        str, typer.Option(help="Task on which the eigenvalues are tracked; the paper's is ordered-mnist.")
    ] = "digits",
    seeds: Annotated[str | None, SEEDS] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs; the decay moves along.")] = None,
    resume: Annotated[bool, RESUME] = False,
    precision: Annotated[Precision | None, PRECISION] = None,
    results: Annotated[Path | None, RESULTS] = None,
    commit: Annotated[str | None, COMMIT] = None,
    device: Annotated[str, DEVICE] = "auto",
    data_dir: Annotated[str | None, DATA] = None,
    offline: Annotated[bool, OFFLINE] = False,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Draw the stability studies: pendulum, eigenvalues against β, Lemma 2, eigenvalues over training.

    The last one trains three seeds of β = 0.65 and of 0.95 side by side, with the preset of the task: on the embedded
    digits in about a minute, with --task ordered-mnist on a GPU as in the paper. Writes four pictures, figures.md and
    one JSON.

    Example: lipschitz-rnn reproduce figures -o figures
    """
    from lipschitz_rnn.experiments import figures_page
    from lipschitz_rnn.experiments.figures_drawings import DRAWINGS
    from lipschitz_rnn.experiments.figures_study import DEFAULT_TASK, FiguresCampaign, plan_figures
    from lipschitz_rnn.experiments.figures_tracks import draw_training
    from lipschitz_rnn.experiments.plans import write_page

    changes = asked_for(epochs=epochs, precision=precision, data_dir=data_dir, device=device, offline=offline)
    plan = plan_figures(task, seeds=None if seeds is None else parse_seeds(seeds), changes=changes)
    if dry_run:
        _list([(plan.name, plan.settings.to_dict())], as_json)
        return
    if task == DEFAULT_TASK:
        torch.set_num_threads(1)  # networks this small only wait for each other on more
    console = Console(stderr=as_json)
    campaign = FiguresCampaign(out, results or out / "results", resume, commit)
    records, _ = campaign.run([plan], watch_runs(console, jobs=1))
    if not records:
        raise RunError(f"{plan.name} failed; go on with --resume")
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
