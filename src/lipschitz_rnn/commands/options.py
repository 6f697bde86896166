"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lipschitz_rnn.commands.parsing import parse_folder
from lipschitz_rnn.commands.threads import MACHINE
from lipschitz_rnn.training.settings import Precision as PrecisionName

# An option with a metavar also spells out its name: Typer 0.27 would derive the name from the metavar.
OUTPUT = "Output"

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON, without progress.", rich_help_panel=OUTPUT),
]
DeviceAsTrained = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:1. Default: the device of the run, if this machine has it.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:1.", rich_help_panel=MACHINE)
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Folder with data files. Default: LIPSCHITZ_RNN_DATA, else the cache.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Never download data.", rich_help_panel=MACHINE)]
Precision = Annotated[
    PrecisionName | None,
    typer.Option(
        help="Arithmetic: highest (default), high (TF32 or finer) or medium in float32; bfloat16; float64.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]
Which = Annotated[
    Literal["best", "last"],
    typer.Option(help="best: the weights selected on validation data; last: the newest weights."),
]
Out = typer.Option(
    "--out",
    "-o",
    metavar="FOLDER",
    help="Folder for runs, results, tables and figures.",
    rich_help_panel=OUTPUT,
    parser=parse_folder,
)
Resume = Annotated[bool, typer.Option("--resume", help="Continue an earlier call; finished runs are not repeated.")]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Number of runs to train in parallel, each in its own process.",
        rich_help_panel=MACHINE,
    ),
]
RunsAtOnce = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Runs at a time. Default: one per GPU, else 1; with ray, what the cluster has room for.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        "-e",
        min=1,
        metavar="N",
        help="Number of epochs; the learning-rate decay is rescaled to match.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        "--task",
        metavar="NAME",
        help="Only runs with this name, these whole parts of it, or this pattern, e.g. '*noise*'; repeat for more.",
        show_default=False,
    ),
]
TrainingSeeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        "-s",
        metavar="SEEDS",
        help="Seeds to train together, e.g. 0-4 or 0,2,5. Default: the study's.",
        show_default=False,
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="FOLDER",
        help="Folder for one JSON file per finished run. Default: OUT/results.",
        show_default=False,
        parser=parse_folder,
        rich_help_panel=OUTPUT,
    ),
]
Commit = Annotated[
    str | None,
    typer.Option(
        help="Commit to record if the package does not run from a checkout.", show_default=False, rich_help_panel=OUTPUT
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs and stop.", rich_help_panel=OUTPUT)]
EngineChoice = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="local: processes of this machine; ray: a Ray cluster.", rich_help_panel=MACHINE),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="ray: address of a cluster. Default: RAY_ADDRESS, else this machine.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus",
        min=0.0,
        metavar="NUMBER",
        help="ray: GPUs of a run; 0.5 lets two share one. Default: 1 if the cluster has any.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", "-s", metavar="SEEDS", help="Seeds to use, e.g. 0-3 or 0,2. Default: all.", show_default=False
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw into this PNG, PDF or SVG file.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
