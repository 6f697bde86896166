"""`lipschitz-rnn certify --radius`: certified accuracy of trained networks, beside what attacks reach."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from lipschitz_rnn.commands.model_files import open_models
from lipschitz_rnn.commands.parsing import require_picture
from lipschitz_rnn.commands.progress import named, progress_bar
from lipschitz_rnn.data.model import SeriesModel
from lipschitz_rnn.data.reading import read
from lipschitz_rnn.data.rereading import read_for
from lipschitz_rnn.data.saving import SavedModels
from lipschitz_rnn.data.series import SeriesSet
from lipschitz_rnn.data.spelling import position_in
from lipschitz_rnn.data.target import prepare_target
from lipschitz_rnn.experiments.certified import CertifiedCurve, Norm, Samples, certified_curve
from lipschitz_rnn.stability import NoCertificate
from lipschitz_rnn.stability.proof.precision import as_precision
from lipschitz_rnn.tasks import Split
from lipschitz_rnn.training.parallel import choose_device, device_of_run
from lipschitz_rnn.training.runs import load_run


@dataclass(frozen=True)
class RadiusOptions:
    """What `--radius` and the options that go with it ask for."""

    radii: tuple[float, ...]
    norm: Norm = "l2"
    precision: str | None = None
    split: Split = "test"
    samples: int | None = None
    attacked: int = 200
    steps: int = 40
    restarts: int = 2
    file: Path | None = None
    plot: Path | None = None
    device: str | None = None
    data_dir: str | None = None
    offline: bool = False
    time_limit: float = 150.0


def parse_radii(items: list[str]) -> tuple[float, ...]:
    """ "0.1" or "0.1,0.3", any number of times."""
    try:
        radii = tuple(float(part) for item in items for part in item.split(","))
    except ValueError:
        radii = ()
    if not radii or not all(radius > 0 and math.isfinite(radius) for radius in radii):
        raise ValueError(f"--radius is {', '.join(items)!r}; write positive numbers, e.g. --radius 0.1 or 0.1,0.3")
    return tuple(sorted(set(radii)))


def report_radius(target: Path, seed: int | None, which: str, options: RadiusOptions, as_json: bool) -> bool:
    """Print the certified accuracy of all networks; returns whether every one has some at some radius."""
    require_picture(options.plot)
    if options.precision is not None:
        as_precision(options.precision)  # refused before anything is loaded
    models, samples = _opened(target, seed, which, options)
    count, attacked = _attackable(samples, options.attacked)
    found: dict[str, CertifiedCurve] = {}
    refused: dict[str, NoCertificate] = {}
    with progress_bar(quiet=as_json) as progress:
        for name, model in models.items():
            try:
                found[name] = certified_curve(
                    model,
                    samples,
                    options.radii,
                    options.norm,
                    attacked=count,
                    steps=options.steps,
                    restarts=options.restarts,
                    precision=options.precision,
                    time_limit=options.time_limit,
                    progress=named(progress, name),
                )
            except NoCertificate as error:
                refused[name] = error
    if options.plot is not None and found:
        from lipschitz_rnn.experiments.certified_plots import draw_certified

        draw_certified(found).savefig(options.plot, dpi=150)
    if as_json:
        typer.echo(json.dumps(_document(target, which, options, found, refused), indent=2))
    else:
        _print(found, refused, options, attacked)
    return bool(found) and not refused and all(any(curve.certified) for curve in found.values())


def _opened(target: Path, seed: int | None, which: str, options: RadiusOptions) -> tuple[dict[str, nn.Module], Samples]:
    """The networks by name, and their samples on the same device."""
    if options.file is not None:
        saved = open_models(target, seed)
        seeds = saved.extra.get("seeds") or range(len(saved.models))
        series = _labelled(saved, options.file)
        place = choose_device(options.device or "auto")
        models: dict[str, nn.Module] = {f"seed {s}": m.to(place) for s, m in zip(seeds, saved.models, strict=True)}
        return models, _of_series(saved.models[0], series, np.arange(len(series)), options.samples, place)
    if target.is_file():
        raise ValueError(f"{target} is a file, which comes without data; add --file FILE with series and their classes")
    run = load_run(target)
    place = device_of_run(options.device, run.settings.device)
    if seed is not None and seed not in run.settings.seeds:
        raise ValueError(f"--seed is {seed}; {target} has the seeds {', '.join(map(str, run.settings.seeds))}")
    pairs = zip(run.settings.members, run.checkpoint(which), strict=True)
    networks = {member.name: network for member, network in pairs if seed in (None, member.seed)}
    task = run.load_task(data_dir=options.data_dir, offline=options.offline)
    record = getattr(run.shapes, "series", None)
    if record is None:
        placed = {name: network.to(place) for name, network in networks.items()}
        return placed, Samples.of_task(task.to(place), options.split, options.samples)
    # A file of one's own: raw values, so that radii are in their units.
    own = {name: SeriesModel.from_record(network, record).to(place) for name, network in networks.items()}
    chosen = task.windows[options.split].series  # type: ignore[attr-defined]
    first = next(iter(own.values()))
    return dict(own), _of_series(first, task.series, chosen, options.samples, place)  # type: ignore[attr-defined]


def _labelled(saved: SavedModels, file: Path) -> SeriesSet:
    """The series of a file with their classes, in the order of the model's."""
    if saved.target.classes is None or saved.target.readout != "last":
        raise ValueError(f"{saved.name} is for {saved.target.kind}; a radius is certified for classifiers of series")
    series = read_for(saved, file)
    reading = saved.extra.get("reading") or {}
    columns: dict[str, Any] = {}
    if file.suffix.lower() in (".csv", ".parquet"):
        columns = {name: reading.get(name) for name in ("series", "time")}
        columns |= {"target": saved.target.names[0], "features": saved.preprocessing.fitted.columns}
    goals = prepare_target(read(file, **columns), "classify")
    assert goals.targets is not None
    assert goals.classes is not None
    known = {text: place for place, text in enumerate(saved.target.classes)}
    places = [position_in(known, text, label=True) for text in goals.classes]
    codes = [-1 if code < 0 or places[code] is None else places[code] for code in goals.targets]
    return replace(series, targets=np.array(codes), target_level="series", classes=saved.target.classes)


def _of_series(model: SeriesModel, series: SeriesSet, chosen: Any, count: int | None, place: torch.device) -> Samples:
    if count is not None and count < len(chosen):
        drawn = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:count]
        chosen = np.asarray(chosen)[drawn.sort().values.numpy()]
    values, times, lengths = series.padded(chosen)
    fitted = model.preprocessing.fitted
    assert series.targets is not None
    targets = torch.from_numpy(np.ascontiguousarray(series.targets[np.asarray(chosen)]))
    inside = torch.arange(values.shape[1]) < lengths.unsqueeze(-1)
    whole = bool(values[inside].isfinite().all()) and not fitted.categories
    return Samples(
        inputs=values.nan_to_num(0.0).to(place) if whole else values.to(place),
        targets=targets.to(place),
        lengths=lengths.to(place),
        times=None if times is None or fitted.gap is None else times.to(place),
        batch_first=True,
        attackable=whole,
    )


def _attackable(samples: Samples, wanted: int) -> tuple[int, str]:
    """How many samples to attack, and what to say about it."""
    if wanted == 0:
        return 0, "attacks: none (--attack-samples 0)"
    if not samples.attackable:
        return 0, "attacks: none, since the samples have missing values or categories"
    try:
        from lipschitz_rnn.robustness.attacks.runner import require_foolbox

        require_foolbox()
    except ImportError as error:
        return 0, f"attacks: none ({error})"
    count = min(wanted, len(samples.targets))
    return count, f"attacks on {count:,} of {len(samples.targets):,} samples: what they leave right, an upper bound"


def _document(
    target: Path,
    which: str,
    options: RadiusOptions,
    found: Mapping[str, CertifiedCurve],
    refused: Mapping[str, NoCertificate],
) -> dict[str, Any]:
    networks: list[dict[str, Any]] = [
        {"network": name, "certified": True, "statement": curve.statement(), **curve.to_dict()}
        for name, curve in found.items()
    ]
    for name, error in refused.items():
        certificate = error.certificate
        facts = {"cause": certificate.cause, "reason": certificate.reason, "next_step": certificate.next_step}
        networks.append({"network": name, "certified": False, **facts})
    asked = {"norm": options.norm, "radii": list(options.radii), "steps": options.steps, "restarts": options.restarts}
    split = None if options.file is not None else options.split
    return {"source": str(target), "which": which, "split": split, **asked, "networks": networks}


def _print(
    found: Mapping[str, CertifiedCurve], refused: Mapping[str, NoCertificate], options: RadiusOptions, attacked: str
) -> None:
    console = Console()
    for name, curve in found.items():
        console.print(
            f"{escape(name)}: {curve.samples:,} samples, clean accuracy {100 * curve.clean:.2f} %, "
            f"norm {options.norm}, bound {curve.found.method}, computed in {curve.found.arithmetic}",
            highlight=False,
        )
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        some = 0 < curve.attacked_samples < curve.samples  # then the same samples are shown beside the attacks
        columns = ["radius", "certified", *(["of attacked"] if some else [])]
        columns += [f"under {attack}" for attack in curve.attacked]
        for column in columns:
            table.add_column(column, justify="right")
        for at, (radius, certified) in enumerate(zip(curve.radii, curve.certified, strict=True)):
            shares = [certified, *([curve.certified_of_attacked[at]] if some else [])]
            shares += [values[at] for values in curve.attacked.values()]
            table.add_row(f"{radius:g}", *(f"{100 * share:.2f} %" for share in shares))
        console.print(table)
        if curve.contradictions:
            console.print(
                f"[red]{curve.contradictions} samples were fooled within their radius:[/] this must not happen; please "
                "report it with the run",
                highlight=False,
            )
    for name, error in refused.items():
        console.print(f"{escape(name)}: [red]not certified[/]", highlight=False)
        console.print(str(error), highlight=False, markup=False)
    for sentence in dict.fromkeys(curve.statement() for curve in found.values()):
        console.print(sentence, highlight=False, markup=False)
    if found:
        console.print(attacked, highlight=False, markup=False)
    largest = max((float(curve.found.radius.max()) for curve in found.values() if not any(curve.certified)), default=-1)
    if largest >= 0:
        console.print(
            f"Nothing is certified at these radii: the largest one of any sample is {largest:.3g}. What to try: ask "
            "for less; or train for a radius, with --unit contracting -u bounded_gain=true --train-radius 0.1 "
            "--robust-ramp 0.8.",
            highlight=False,
            markup=False,
        )
    if options.plot is not None and found:
        console.print(f"wrote {options.plot}", highlight=False, markup=False)
