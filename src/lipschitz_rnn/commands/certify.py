"""`lipschitz-rnn certify`: a proof of contraction for trained networks or for a pair of matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.threads import with_threads

NOT_CERTIFIED = 3


@with_threads
@guarded
@with_imports
def certify(
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="Run folder, or a .safetensors, .npz or .pt file with A and W."),
    ],
    seed: Annotated[
        int | None, typer.Option(help="Only networks of this seed. Default: all networks of the run.")
    ] = None,
    which: Annotated[
        Literal["best", "last"],
        typer.Option(help="best: the weights selected on validation data; last: the newest weights."),
    ] = "best",
    step_size: Annotated[
        str | None,
        typer.Option(help="A step size, or a range such as 0.01,0.1 for irregular samples. Default: the layer's."),
    ] = None,
    integrator: Annotated[str | None, typer.Option(help="euler, midpoint, heun or rk4.")] = None,
    nonlinearity: Annotated[str | None, typer.Option(help="tanh, relu, sigmoid or identity.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Certify the differential equation instead of the discrete map.")
    ] = False,
    precision: Annotated[
        str | None,
        typer.Option(help="Precision of A and W: float64, float32, high, medium, bfloat16 or float16."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Prove this rate and stop. Default: find the best rate.")] = None,
    solver: Annotated[str, typer.Option(help="auto, structured, clarabel or scs.")] = "auto",
    accuracy: Annotated[float, typer.Option(help="Relative accuracy of the best rate.")] = 1e-3,
    time_limit: Annotated[float, typer.Option(help="Search time in seconds for each pair of matrices.")] = 150.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificates as JSON.")] = False,
) -> None:
    """Prove that any two trajectories of a network under the same input approach each other.

    The certificate is for the discrete map that runs, with its step, integrator and precision; --continuous certifies
    the differential equation instead. A run on a file with irregular times is certified for all times between samples.

    Exit codes: 0 certified; 3 not certified, with the reason and what to try; 2 wrong usage, a damaged file, or a
    network that cannot be certified; 1 a missing file or run.

    [bold]Example[/]

      lipschitz-rnn certify runs/digits-lipschitz-n64
    """
    from lipschitz_rnn.stability import certify as prove

    asked: dict[str, Any] = {"integrator": integrator, "nonlinearity": nonlinearity, "rate": rate}
    asked |= {"step_size": _steps(step_size), "continuous": True if continuous else None, "precision": precision}
    asked |= {"solver": solver, "accuracy": accuracy, "time_limit": time_limit}
    with spinner("searching for a metric", quiet=as_json):
        items, spans = _targets(target, seed, which)
        if spans is not None and step_size is None and not continuous:
            asked["step_size"] = spans
        found = {name: prove(item, **asked) for name, item in items.items()}
    if as_json:
        typer.echo(json.dumps({name: certificate.to_dict() for name, certificate in found.items()}, indent=2))
    else:
        console = Console()
        for name, certificate in found.items():
            verdict = "[green]certified[/]" if certificate.holds else "[red]not certified[/]"
            console.print(f"{escape(name)}: {verdict}", highlight=False)
            console.print(certificate.sentence(), highlight=False, markup=False)
            if certificate.next_step:
                console.print(f"What to try: {certificate.next_step}.", highlight=False, markup=False)
    if not all(certificate.holds for certificate in found.values()):
        raise typer.Exit(NOT_CERTIFIED)


def _targets(target: Path, seed: int | None, which: str) -> tuple[dict[str, Any], tuple[float, float] | None]:
    """What to certify, by name: the networks of a run, or the matrices in a file; and the timespans of the run."""
    if not target.is_dir():
        if seed is not None:
            raise ValueError(f"seed is {seed}, but {target} is not a run folder, so it has no seeds; leave --seed out")
        return {target.name: target}, None
    from lipschitz_rnn.data.steps import possible_spans
    from lipschitz_rnn.training.runs import load_run

    run = load_run(target)
    settings = run.settings
    if seed is not None and seed not in settings.seeds:
        raise ValueError(f"seed is {seed}; {target} has the seeds {', '.join(map(str, settings.seeds))}")
    pairs = zip(settings.members, run.checkpoint(which), strict=True)
    items = {member.name: model for member, model in pairs if seed in (None, member.seed)}
    series = getattr(run.shapes, "series", None)
    return items, None if series is None else possible_spans(series["preprocessing"])


def _steps(text: str | None) -> float | tuple[float, float] | None:
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ValueError(f"step size is {text!r}; write one number, or a range such as 0.01,0.1")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
