"""`lipschitz-rnn export`: a trained model as one file, for Python, ONNX or PyTorch programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.parsing import require_writable
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.threads import with_threads

_ENDINGS = (".safetensors", ".onnx", ".pt2")


@guarded
@with_threads
@with_imports
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="Run folder of `train FILE`, or a .safetensors model file.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .onnx, .pt2 or .safetensors.")],
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="K", help="Only the network of this seed. Default: the mean of all.", show_default=False
        ),
    ] = None,
    variant: Annotated[
        int | None,
        typer.Option("--variant", metavar="K", help="Variant of a run that has several, from 0.", show_default=False),
    ] = None,
    step: Annotated[
        bool,
        typer.Option("--step", help="One step for live data: a sample and the state in, prediction and new state out."),
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", help="Take values in float64 instead of float32, e.g. with large offsets.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Check with series of this file too. Default: made series only.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a trained model as one file that takes raw values: scaling, times, missing values and head are inside.

    .onnx and .pt2: one program with the mean of all seeds, for any number of series of any length. The command runs
    it, compares it with PyTorch, and prints the largest difference. Above 1e-5 it writes nothing and ends with exit
    code 1. With --step the program takes one sample per call; its state starts with zeros.

    .safetensors: weights and everything else, for `predict` and for `lipschitz_rnn.data.load_model`.

    [bold]Examples[/]

      lipschitz-rnn export runs/machines machines.onnx
      lipschitz-rnn export runs/machines device.onnx --step --seed 0
      lipschitz-rnn export runs/machines machines.safetensors
    """
    from lipschitz_rnn.commands.model_files import open_models, spoken_warnings
    from lipschitz_rnn.data import export_model, save_model
    from lipschitz_rnn.data.rereading import read_for
    from lipschitz_rnn.data.saving import FILE_NAME

    if out.suffix not in _ENDINGS:
        raise ValueError(
            f"the output is {str(out)!r}; its name must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
        )
    require_writable(out)
    for read in (source, source / FILE_NAME):
        if out.exists() and read.is_file() and out.samefile(read):
            raise ValueError(f"{out} is the model to export; name another output")
    saved = open_models(source, seed, variant)
    console = Console()
    networks = "1 network" if len(saved.models) == 1 else f"{len(saved.models)} networks"
    if out.suffix == ".safetensors":
        for flag, given in (("--step", step), ("--float64", float64), ("--check", check is not None)):
            if given:
                raise ValueError(f"{flag} is for .onnx and .pt2; a .safetensors file holds the model as it is")
        save_model(out, saved.models, saved.extra)
        console.print(f"wrote {out}: {networks}", highlight=False, markup=False, soft_wrap=True)
        return
    series = None if check is None else read_for(saved, check, ignore_unknown=True)
    with spoken_warnings(), spinner("exporting and checking"):
        done = export_model(out, saved.models, step=step, float64=float64, series=series)
    what = f"the mean of {networks}" if len(saved.models) > 1 else networks
    console.print(f"wrote {out}: {what}", highlight=False, markup=False, soft_wrap=True)
    inputs = ", ".join(done.about["inputs"])
    console.print(f"inputs {inputs}; outputs {', '.join(done.about['outputs'])}", highlight=False, markup=False)
    if step:
        console.print(f"the state has {done.about['state_size']} numbers and starts with zeros", highlight=False)
    console.print(
        f"largest difference from PyTorch: {done.difference:.2g} over {done.compared:,} predictions", highlight=False
    )
