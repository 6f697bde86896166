"""`lipschitz-rnn certify`: a proof of contraction for trained networks or matrices, and certified accuracy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.options import DataDir, DeviceAsTrained, Offline, Which
from lipschitz_rnn.commands.parsing import refuse_given, require_number
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.threads import with_threads
from lipschitz_rnn.tasks import Split
from lipschitz_rnn.training import RunError

if TYPE_CHECKING:
    from lipschitz_rnn.stability import Certificate, Progress

NOT_CERTIFIED = 3
RADIUS = "Certified accuracy (with --radius)"
WITH_RADIUS = (
    *("norm", "split", "samples", "attack_samples", "attack_steps", "restarts", "file", "plot"),
    *("device", "data_dir", "offline"),
)
WITHOUT_RADIUS = (
    *("step_size", "integrator", "nonlinearity", "continuous", "rate"),
    *("solver", "accuracy", "rounding"),
)


@with_threads
@guarded
@with_imports
def certify(
    context: typer.Context,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="Run folder, a model file, or a .safetensors, .npz or .pt file with A and W."
        ),
    ],
    seed: Annotated[
        int | None, typer.Option(help="Only networks of this seed. Default: all networks of the run.")
    ] = None,
    which: Which = "best",
    step_size: Annotated[
        str | None,
        typer.Option(help="A step size, or a range such as 0.01,0.1 for irregular samples. Default: the layer's."),
    ] = None,
    integrator: Annotated[str | None, typer.Option(help="euler, midpoint (or rk2), heun or rk4.")] = None,
    nonlinearity: Annotated[str | None, typer.Option(help="tanh, relu, sigmoid or identity.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Certify the differential equation instead of the discrete map.")
    ] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            help="What the network runs in: float64, highest (float32), high (TF32 or finer), medium, bfloat16 or "
            "float16; with --radius also exact. Default: what it would run in here."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Prove this rate and stop. Default: find the best rate.")] = None,
    solver: Annotated[str, typer.Option(help="auto, structured, clarabel or scs.")] = "auto",
    accuracy: Annotated[float, typer.Option(help="Relative accuracy of the best rate.")] = 1e-3,
    time_limit: Annotated[float, typer.Option(help="Search time in seconds for each pair of matrices.")] = 150.0,
    rounding: Annotated[
        float | None,
        typer.Option(
            help="Largest magnitude of an input of the layer, after scaling: bounds how far computed states are from "
            "exact ones, for any length."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificates as JSON.")] = False,
    radius: Annotated[
        list[str] | None,
        typer.Option(
            "--radius",
            "-r",
            metavar="NUMBERS",
            help="Certified accuracy: the part of the samples whose class is right and cannot change within this "
            "radius, e.g. 0.1,0.3. Pixels count from 0 to 1; other values in their own units.",
            show_default=False,
            rich_help_panel=RADIUS,
        ),
    ] = None,
    norm: Annotated[
        Literal["l2", "linf", "step"],
        typer.Option(
            help="Size of a change: l2 of all of it; linf of each value; step: l2 in every step.",
            rich_help_panel=RADIUS,
        ),
    ] = "l2",
    split: Annotated[Split, typer.Option(help="Part of the data.", rich_help_panel=RADIUS)] = "test",
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples to draw, with seed 0. Default: all.", show_default=False, rich_help_panel=RADIUS
        ),
    ] = None,
    attack_samples: Annotated[
        int,
        typer.Option(min=0, help="Attack this many of them by PGD and DeepFool; 0: none.", rich_help_panel=RADIUS),
    ] = 200,
    attack_steps: Annotated[int, typer.Option(min=1, help="Steps of PGD.", rich_help_panel=RADIUS)] = 40,
    restarts: Annotated[
        int, typer.Option(min=1, help="Starts of PGD, the first at the sample.", rich_help_panel=RADIUS)
    ] = 2,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Series with their classes, for a model file or a run of `train FILE`.",
            show_default=False,
            rich_help_panel=RADIUS,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the curve.", show_default=False, rich_help_panel=RADIUS),
    ] = None,
    device: DeviceAsTrained = None,
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Prove that any two trajectories of a network under the same input approach each other.

    The certificate is for the discrete map that runs, with its step, integrator and precision; --continuous certifies
    the differential equation instead. A run on a file with times is certified for all times between samples that its
    model takes, also if those of the file were regular.

    With --radius: certified accuracy of a classifier against the radius, beside the accuracy that PGD and DeepFool
    leave. Rounding of the network that runs is included, for the precision in force or the one that --precision names;
    docs/stability.md has the theorems.

    Exit codes: 0 certified; 3 not certified, with the reason and what to try, or no sample certified at any radius;
    2 wrong usage, or a network that cannot be certified; 1 a missing or damaged file or run.

    [bold]Examples[/]

      lipschitz-rnn certify runs/digits-lipschitz-n64
      lipschitz-rnn certify runs/contracting --radius 0.1,0.3 --plot radius.png
      lipschitz-rnn certify runs/contracting --radius 0.1 --precision high
    """
    require_number("--time-limit", time_limit, lambda x: x >= 0, "give the seconds of the search, at least 0")
    if radius:
        refuse_given(
            context, WITHOUT_RADIUS, "says nothing with --radius, which is about the network as it runs; leave it out"
        )
        if file is not None:
            refuse_given(
                context,
                ("which", "split", "data_dir", "offline"),
                "says nothing with --file, which has it all; leave it out",
            )
        from lipschitz_rnn.commands.certify_radius import RadiusOptions, parse_radii, report_radius

        options = RadiusOptions(
            radii=parse_radii(radius),
            norm=norm,
            precision=precision,
            split=split,
            samples=samples,
            attacked=attack_samples,
            steps=attack_steps,
            restarts=restarts,
            file=file,
            plot=plot,
            device=device,
            data_dir=data_dir,
            offline=offline,
            time_limit=time_limit,
        )
        if not report_radius(target, seed, which, options, as_json):
            raise typer.Exit(NOT_CERTIFIED)
        return
    refuse_given(context, WITH_RADIUS, "goes with --radius; add --radius 0.1, or leave it out")
    if continuous:
        refuse_given(context, ("step_size", "integrator"), "says nothing with --continuous; leave out one of the two")
    require_number("--rate", rate, lambda x: 0 < x < math.inf, "give a positive number, or leave it out for the best")
    require_number("--accuracy", accuracy, lambda x: 0 < x < 1, "give a number above 0 and below 1, e.g. 0.001")
    require_number("--rounding", rounding, lambda x: 0 <= x < math.inf, "give a finite number, at least 0")
    from lipschitz_rnn.stability import certify as prove
    from lipschitz_rnn.stability.proof.files import DamagedFileError

    asked: dict[str, Any] = {"integrator": integrator, "nonlinearity": nonlinearity, "rate": rate}
    asked |= {"step_size": _steps(step_size), "continuous": True if continuous else None, "precision": precision}
    asked |= {"solver": solver, "accuracy": accuracy, "time_limit": time_limit}
    with spinner("searching for a metric", quiet=as_json) as show:
        asked["progress"] = lambda progress: show(_line(progress))
        items = _targets(target, seed, which)
        try:
            found = {name: prove(item, **asked) for name, item in items.items()}
        except DamagedFileError as error:
            raise RunError(f"{error}; it is damaged: save it again, or get another copy") from error
        show("bounding the rounding")
        certified = {} if rounding is None else {name: one for name, one in found.items() if one.holds}
        bounds = {name: _rounding(items[name], one, rounding, precision) for name, one in certified.items()}
    if as_json:
        plain = {name: certificate.to_dict() for name, certificate in found.items()}
        for name, bound in bounds.items():
            plain[name]["rounding"] = bound
        typer.echo(json.dumps(plain, indent=2))
    else:
        console = Console()
        for name, certificate in found.items():
            verdict = "[green]certified[/]" if certificate.holds else "[red]not certified[/]"
            console.print(f"{escape(name)}: {verdict}", highlight=False)
            console.print(certificate.sentence(), highlight=False, markup=False)
            if note := _precision_note(certificate, precision):
                console.print(note, highlight=False, markup=False)
            if name in bounds:
                console.print(_rounding_sentence(bounds[name]), highlight=False, markup=False)
            if certificate.next_step:
                console.print(f"What to try: {certificate.next_step}.", highlight=False, markup=False)
    if not all(certificate.holds for certificate in found.values()):
        raise typer.Exit(NOT_CERTIFIED)


def _targets(target: Path, seed: int | None, which: str) -> dict[str, Any]:
    """What to certify, by name: the networks of a run or a model file, or the matrices in a file."""
    from lipschitz_rnn.commands.model_files import open_models, require_whole
    from lipschitz_rnn.data.saving import holds_series_model
    from lipschitz_rnn.training.reading import is_there

    if target.is_file():
        require_whole(target)
    if target.suffix == ".safetensors" and target.is_file() and holds_series_model(target):
        saved = open_models(target, seed)
        seeds = saved.extra.get("seeds") or range(len(saved.models))
        return {f"seed {one}": model for one, model in zip(seeds, saved.models, strict=True)}
    if not is_there(target):
        raise FileNotFoundError(
            f"there is no {target}; give a run folder, a model file, or a .safetensors, .npz or .pt file with A and W"
        )
    if not target.is_dir():
        if seed is not None:
            raise ValueError(f"--seed is {seed}, but {target} is not a run folder and has no seeds; leave --seed out")
        return {target.name: target}
    from lipschitz_rnn.data.model import SeriesModel
    from lipschitz_rnn.training.runs import load_run

    run = load_run(target)
    settings = run.settings
    if seed is not None and seed not in settings.seeds:
        raise ValueError(f"--seed is {seed}; {target} has the seeds {', '.join(map(str, settings.seeds))}")
    pairs = zip(settings.members, run.checkpoint(which), strict=True)
    items = {member.name: model for member, model in pairs if seed in (None, member.seed)}
    series = getattr(run.shapes, "series", None)
    if series is None:
        return items
    # A model of series states its recurrence over all times between samples that it can meet.
    return {name: SeriesModel.from_record(model, series) for name, model in items.items()}


def _rounding(item: Any, certificate: Certificate, limit: float | None, precision: str | None) -> dict[str, Any]:
    """Bounds on the distance between computed and exact states for all inputs up to a limit; None where infinite."""
    from lipschitz_rnn.stability import PeakBound, rounding_bound
    from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN

    if isinstance(item, Path):
        kind = certificate.precision if certificate.precision != "exact" else "float32"
        bound = rounding_bound(certificate, input_bound=limit, precision=precision or kind)
    else:
        layers = [module for module in item.modules() if isinstance(module, LipschitzRNN)]
        if len(layers) != 1:
            raise ValueError(
                f"--rounding was given, but this network has {len(layers)} LipschitzRNN; rounding is bounded for one"
            )
        kind = certificate.precision
        bound = rounding_bound(layers[0], input_bound=limit, certificate=certificate, precision=precision)
    assert isinstance(bound, PeakBound)  # as an input bound was given
    largest = float(max(bound.coordinates))
    numbers = {"state": bound.state, "added": bound.added, "peak": bound.peak, "coordinate": largest}
    finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
    steps = (certificate.parts or (certificate,))[0].step_range
    about = {"input_bound": limit, "of_layer": not isinstance(item, Path), "precision": precision or kind}
    return {**about, "steps": steps, **finite}


def _rounding_sentence(bound: dict[str, Any]) -> str:
    inputs = "inputs of the layer, after any scaling," if bound["of_layer"] else "inputs"
    setting = f"For {inputs} of at most {bound['input_bound']:g} and computation in {bound['precision']}"
    shortest, longest = bound["steps"]
    steps = f" with steps from {shortest:g} to {longest:g}" if shortest < longest else ""
    if bound["coordinate"] is None:
        return f"{setting}, nothing bounds the rounding: a step rounds more than the contraction takes away."
    return (
        f"{setting}, no coordinate of a computed state is further than {bound['coordinate']:.3g} from that of exact "
        f"arithmetic, however long the sequence{steps}; a step adds at most {bound['added']:.3g} in the metric's norm."
    )


def _precision_note(certificate: Certificate, asked: str | None) -> str:
    """What to say if layers keep their matrices in another precision than the one asked for."""
    from lipschitz_rnn.stability.proof.precision import as_precision

    parts = certificate.parts or (certificate,)
    name = None if asked is None else as_precision(asked).name
    if name is None or all(part.precision == name for part in parts):
        return ""
    kept = " and ".join(dict.fromkeys(part.precision for part in parts if part.precision != name))
    return f"This is about matrices in {kept}, not {asked}: this layer keeps them so, whatever runs around it."


def _line(progress: Progress) -> str:
    """How far a search is, for a terminal."""
    part = f"{progress.name}: " if progress.name else ""
    rate = f", rate {progress.rate:.4g}" if math.isfinite(progress.rate) else ""
    bound = f", at most {progress.upper_bound:.4g}" if math.isfinite(progress.upper_bound) else ""
    return f"{part}{progress.stage}{rate}{bound}"


def _steps(text: str | None) -> float | tuple[float, float] | None:
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ValueError(f"--step-size is {text!r}; write one number, or a range such as 0.01,0.1")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
