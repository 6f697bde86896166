"""Opens somebody's own network for the page: a run folder, a model file, or a pretrained network by its name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipschitz_rnn import data
from lipschitz_rnn.explorer.records import Images, lipschitz_layer, network_record
from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training.errors import RunError
from lipschitz_rnn.training.runs import LoadedRun, load_run
from lipschitz_rnn.units.lipschitz.pretrained import available

SCANLINE_TASKS = ("digits", "ordered-mnist")  # one pixel per step, in the order in which a page draws them
EXAMPLES = 10


def open_networks(
    source: Path, *, seed: int | None = None, layer: int = 0, time_limit: float = 20.0
) -> list[dict[str, Any]]:
    """One record for the page: the network of the given seed, or of the first one."""
    name = source.name or str(source)
    run, model, seeds = _open(source, seed)
    found = lipschitz_layer(model, name)
    if not 0 <= layer < found.num_layers:
        last = found.num_layers - 1
        raise ValueError(f"--layer is {layer}; {name} has {f'the layers 0 to {last}' if last else 'only layer 0'}")
    alone = found.num_layers == 1 and found.num_directions == 1
    head = getattr(model, "head", None)
    head = head if alone and isinstance(head, nn.Linear) and getattr(model, "readout", "last") == "last" else None
    about = f"seed {seeds}" + ("" if alone else f", layer {layer} of {found.num_layers}, shown without its head")
    images = None if run is None or head is None else _images(run)
    record = network_record(
        name, found.cell(layer), head=head if images else None, images=images, about=about, time_limit=time_limit
    )
    return [record]


def _open(source: Path, seed: int | None) -> tuple[LoadedRun | None, nn.Module, int]:
    """The run if it is one, the network, and its seed."""
    is_pretrained = str(source) in available()
    if not is_pretrained and not source.exists():
        raise RunError(
            f"there is no {source}; give a run folder, a .safetensors model, or one of {', '.join(available())}"
        )
    if not is_pretrained and _is_series_model(source):
        saved = data.load_model(source)
        seeds = list(saved.extra.get("seeds") or range(len(saved.models)))
        return None, saved.models[_place(seeds, seed, source)], seeds[_place(seeds, seed, source)]
    run = load_run(source)
    members = run.settings.members
    seeds = [member.seed for member in members]
    place = _place(seeds, seed, source)
    return run, run.networks[place], seeds[place]


def _is_series_model(source: Path) -> bool:
    if source.is_dir():
        return (source / data.saving.FILE_NAME).is_file()
    if source.suffix != ".safetensors":
        raise ValueError(f"{source} is neither a run folder nor a .safetensors model; give one of these")
    try:
        load_run(source)
    except ValueError as error:
        return "load_model" in str(error)  # the message of `read_pretrained` for such a file
    return False


def _place(seeds: list[int], seed: int | None, source: Path) -> int:
    if seed is not None and seed not in seeds:
        raise ValueError(f"--seed is {seed}; {source} has the seeds {', '.join(map(str, dict.fromkeys(seeds)))}")
    return 0 if seed is None else seeds.index(seed)


def _images(run: LoadedRun) -> Images | None:
    """Of a task that reads images pixel by pixel; examples only where its data is on this machine."""
    shapes = run.shapes
    if run.settings.task not in SCANLINE_TASKS or shapes.input_size != 1 or shapes.readout != "last":
        return None
    try:
        task = run.load_task(offline=True)
    except (DataError, ImportError, RunError):
        return Images({"digits": 8, "ordered-mnist": 28}[run.settings.task], [])
    batch = task.batch("test", torch.arange(200))
    side = math.isqrt(task.sequence_length)
    examples = []
    for label in range(EXAMPLES):
        of_class = (batch.targets == label).nonzero()
        if len(of_class):
            pixels = batch.inputs[:, int(of_class[0]), 0].tolist()
            examples.append({"label": label, "pixels": [round(value, 4) for value in pixels]})
    return Images(side, examples, f"test images of {run.settings.task}")
