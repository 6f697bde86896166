"""`lipschitz-rnn robustness`: loss curvature, attacks and noise for the networks of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import fail, guarded
from lipschitz_rnn.commands.help import TidyCommand, TidyGroup
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.options import AsJson, DataDir, Offline, Plot, Seeds, Which
from lipschitz_rnn.commands.options import DeviceAsTrained as Device
from lipschitz_rnn.commands.parsing import parse_seeds, require_number, require_picture
from lipschitz_rnn.commands.progress import named, progress_bar
from lipschitz_rnn.commands.robustness_runs import distinct_names, document, open_run, parse_amounts
from lipschitz_rnn.commands.threads import MACHINE, with_threads
from lipschitz_rnn.tasks import Split

ATTACKS = ("pgd", "fgsm", "deepfool-l2", "deepfool-linf")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, written by `train`.")]
Variant = Annotated[
    int | None,
    typer.Option(min=0, help="Number of the variant, counted from 0, if the run has several.", show_default=False),
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Samples per batch; fewer need less memory.", rich_help_panel=MACHINE)
]
PartOfData = typer.Option(help="Part of the data to use.")
SomeSamples = typer.Option(min=1, help="Samples to draw, with seed 0. Default: all.", show_default=False)

robustness = typer.Typer(
    no_args_is_help=True,
    cls=TidyGroup,
    help="Measure loss curvature, adversarial attacks and noise for trained networks.",
)


@robustness.callback()
def measures() -> None:
    """Measure loss curvature, adversarial attacks and noise for trained networks."""


@robustness.command(cls=TidyCommand)
@guarded
@with_threads
@with_imports
def hessian(
    run: RunArgument,
    seeds: Seeds = None,
    variant: Variant = None,
    which: Which = "best",
    parameters: Annotated[
        Literal["all", "unit"],
        typer.Option(help="all, or unit: only those of the recurrent unit, as in the paper."),
    ] = "unit",
    split: Annotated[Split, PartOfData] = "train",
    samples: Annotated[int, typer.Option(min=1, help="Samples to draw, with seed 0.")] = 1000,
    probes: Annotated[int, typer.Option(min=2, help="Random vectors for estimating the trace.")] = 32,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Relative accuracy of the eigenvalues.")] = 1e-3,
    exact: Annotated[bool, typer.Option("--exact", help="Form the full Hessian (small networks only).")] = False,
    double: Annotated[bool, typer.Option("--float64", help="Compute in double precision.")] = False,
    batch_size: BatchSize = 1000,
    device: Device = None,
    data_dir: DataDir = None,
    offline: Offline = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Eigenvalues, trace, condition number and spectral density of the loss Hessian.

    The condition number is λ_max / |λ_min|, where λ_min is the most negative eigenvalue. --plot draws the density.

    [bold]Example[/]

      lipschitz-rnn robustness hessian runs/digits --samples 200
    """
    from lipschitz_rnn.robustness import draw_samples
    from lipschitz_rnn.robustness import hessian as measure
    from lipschitz_rnn.robustness.hessian_spectrum import NotConverged

    require_picture(plot)
    opened = open_run(run, which, seeds, variant, device, data_dir, offline)
    batch = draw_samples(opened.task, split, min(samples, opened.task.size(split)))
    found = {}
    try:
        with progress_bar(quiet=as_json) as progress:
            for seed, model in opened.models.items():
                found[seed] = measure(
                    model,
                    batch.inputs,
                    batch.targets,
                    loss=opened.task.loss,
                    parameters=parameters,
                    exact=exact,
                    tolerance=tolerance,
                    probes=probes,
                    dtype=torch.float64 if double else None,
                    lengths=batch.lengths,
                    timespans=batch.timespans,
                    batch_size=batch_size,
                    progress=named(progress, f"seed {seed}"),
                )
    except NotConverged as error:
        raise fail(str(error), 1) from None
    if plot is not None:
        from lipschitz_rnn.robustness.plots import draw_density

        draw_density({f"seed {seed}": result.density for seed, result in found.items()}).savefig(plot, dpi=150)
    if as_json:
        facts = document(opened, which, split, {seed: result.to_dict() for seed, result in found.items()})
        typer.echo(json.dumps(facts | {"of": parameters}, indent=2))
        return
    from lipschitz_rnn.commands.robustness_tables import print_hessians

    print_hessians(Console(), f"{opened.title} · Hessian of the {split} loss, {parameters} parameters", found)
    if plot is not None:
        Console().print(f"wrote {plot}", highlight=False, markup=False)


@robustness.command(cls=TidyCommand)
@guarded
@with_threads
@with_imports
def attack(
    run: RunArgument,
    attacks: Annotated[
        str,
        typer.Option(
            "--attacks", "-a", metavar="NAMES", help=f"Attacks to run, comma-separated: {', '.join(ATTACKS)}."
        ),
    ] = "pgd,deepfool-l2,deepfool-linf",
    seeds: Seeds = None,
    variant: Variant = None,
    which: Which = "best",
    steps: Annotated[int, typer.Option(min=1, help="Iterations of pgd and DeepFool.")] = 7,
    step_size: Annotated[float, typer.Option(help="Step size of pgd, as a fraction of the pixel range.")] = 0.01,
    radius: Annotated[
        float | None,
        typer.Option(help="Largest perturbation. Default: steps × step size; none for DeepFool.", show_default=False),
    ] = None,
    random_start: Annotated[
        bool, typer.Option("--random-start", help="Start pgd at a random point of its ball.")
    ] = False,
    split: Annotated[Split, PartOfData] = "test",
    samples: Annotated[int | None, SomeSamples] = None,
    batch_size: BatchSize = 500,
    device: Device = None,
    data_dir: DataDir = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Accuracy under white-box attacks, and the mean size of the perturbations.

    pgd in l∞ and DeepFool in l2 and l∞ as in the paper, and one-step fgsm. Sizes are fractions of the valid range,
    averaged over successful attacks; --json also has them over all attacks.

    [bold]Example[/]

      lipschitz-rnn robustness attack runs/digits -a pgd --radius 0.05
    """
    from lipschitz_rnn.robustness import draw_samples, valid_range

    for flag, size in (("--radius", radius), ("--step-size", step_size)):
        require_number(flag, size, lambda x: 0 < x < math.inf, "give a positive number")
    chosen = tuple(dict.fromkeys(name.strip() for name in attacks.split(",")))
    unknown = [name for name in chosen if name not in ATTACKS]
    if unknown:
        raise ValueError(f"--attacks names {unknown[0]!r}; choose among {', '.join(ATTACKS)}")
    opened = open_run(run, which, seeds, variant, device, data_dir, offline)
    total = opened.task.size(split)
    batch = draw_samples(opened.task, split, None if samples is None else min(samples, total))
    shared: dict[str, Any] = {"bounds": valid_range(opened.task), "batch_size": batch_size}
    shared |= {"lengths": batch.lengths, "timespans": batch.timespans}
    found: dict[str, dict[int, Any]] = {}
    with progress_bar(quiet=as_json) as progress, opened.precision():
        for name in chosen:
            method = _attack(name, steps, step_size, radius, random_start)
            found[name] = {
                seed: method(model, batch.inputs, batch.targets, progress=named(progress, f"seed {seed}"), **shared)
                for seed, model in opened.models.items()
            }
    if as_json:
        per_seed = {seed: {"attacks": [found[name][seed].to_dict() for name in found]} for seed in opened.models}
        typer.echo(json.dumps(document(opened, which, split, per_seed), indent=2))
        return
    from lipschitz_rnn.commands.robustness_tables import print_attacks

    console = Console()
    console.print(f"{opened.title} · {split} split, {batch.inputs.shape[1]:,} samples\n", highlight=False, markup=False)
    for results in found.values():
        print_attacks(console, results)


def _attack(name: str, steps: int, step_size: float, radius: float | None, random_start: bool) -> Callable[..., Any]:
    """The named attack with its settings: a function of model, inputs, targets and the common arguments."""
    from functools import partial

    from lipschitz_rnn.robustness import deepfool, fgsm, pgd

    if name == "fgsm":
        return partial(fgsm, radius=steps * step_size if radius is None else radius)
    if name != "pgd":
        return partial(deepfool, norm="l2" if name == "deepfool-l2" else "linf", steps=steps, radius=radius)

    def same_start_for_every_network(*arguments: Any, **options: Any) -> Any:
        options |= {"random_start": random_start, "generator": torch.Generator().manual_seed(0)}
        return pgd(*arguments, steps=steps, step_size=step_size, radius=radius, **options)

    return same_start_for_every_network


@robustness.command(cls=TidyCommand)
@guarded
@with_threads
@with_imports
def noise(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders to compare.")],
    kind: Annotated[
        Literal["white", "salt-and-pepper", "both"], typer.Option("--kind", "-k", help="Kind of noise.")
    ] = "both",
    amounts: Annotated[
        str | None,
        typer.Option(
            "--amounts",
            metavar="NUMBERS",
            help="Standard deviations of white noise, or fractions of replaced pixels, e.g. 0,0.1,0.2.",
            show_default=False,
        ),
    ] = None,
    noise_seeds: Annotated[
        str, typer.Option("--noise-seeds", metavar="SEEDS", help="Seeds of the noise, e.g. 0-2.")
    ] = "0-2",
    clip: Annotated[bool, typer.Option("--clip", help="Clip noisy pixels to the valid range.")] = False,
    seeds: Seeds = None,
    variant: Variant = None,
    which: Which = "best",
    split: Annotated[Split, PartOfData] = "test",
    samples: Annotated[int | None, SomeSamples] = None,
    batch_size: BatchSize = 1000,
    device: Device = None,
    data_dir: DataDir = None,
    offline: Offline = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy against the amount of white or salt-and-pepper noise, for one or more runs.

    All networks see the same noise. --plot draws all runs into one picture.

    [bold]Example[/]

      lipschitz-rnn robustness noise runs/lipschitz runs/lstm --plot noise.png
    """
    from lipschitz_rnn.robustness import noise_curve
    from lipschitz_rnn.robustness.noise import KINDS

    require_picture(plot)
    sizes, chosen = parse_amounts(amounts), KINDS if kind == "both" else (kind,)
    for amount in sizes or ():
        require_number("--amounts", amount, lambda x: 0 <= x < math.inf, "give finite numbers, at least 0")
        if "salt-and-pepper" in chosen:
            require_number("--amounts", amount, lambda x: x <= 1, "for salt-and-pepper, give fractions of at most 1")
    opened = {
        label: open_run(run, which, seeds, variant, device, data_dir, offline)
        for label, run in zip(distinct_names(runs), runs, strict=True)
    }
    curves: dict[str, dict[int, list[Any]]] = {label: {} for label in opened}
    with progress_bar(quiet=as_json) as progress:
        for label, each in opened.items():
            for seed, model in each.models.items():
                with each.precision():
                    curves[label][seed] = [
                        noise_curve(
                            model,
                            each.task,
                            sizes,
                            parse_seeds(noise_seeds, "--noise-seeds"),
                            kind=each_kind,
                            split=split,
                            samples=None if samples is None else min(samples, each.task.size(split)),
                            clip=clip,
                            batch_size=batch_size,
                            progress=named(progress, f"{label}, seed {seed}"),
                        )
                        for each_kind in chosen
                    ]
    if plot is not None:
        from lipschitz_rnn.robustness.plots import draw_noise

        flat = {label: [curve for own in of_seed.values() for curve in own] for label, of_seed in curves.items()}
        draw_noise(flat).savefig(plot, dpi=150)
    if as_json:
        documents = [
            document(
                each, which, split, {s: {"curves": [c.to_dict() for c in own]} for s, own in curves[label].items()}
            )
            for label, each in opened.items()
        ]
        typer.echo(json.dumps({"runs": documents}, indent=2))
        return
    from lipschitz_rnn.commands.robustness_tables import print_noise

    console = Console()
    for number, each_kind in enumerate(chosen):
        print_noise(
            console, each_kind, {label: [own[number] for own in each.values()] for label, each in curves.items()}
        )
    if plot is not None:
        console.print(f"wrote {plot}", highlight=False, markup=False)
