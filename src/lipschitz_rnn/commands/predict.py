"""`lipschitz-rnn predict`: predictions of a trained model for the series of a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.parsing import require_number, require_writable
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.threads import with_threads


@guarded
@with_threads
@with_imports
def predict(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="Run folder of `train FILE`, or a .safetensors model file.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Series to predict: .csv, .parquet, .npz or .ts, with the columns of the training file.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT", help="Table to write: .csv or .parquet.", show_default=False)
    ],
    series: Annotated[
        str | None,
        typer.Option(
            "--series",
            metavar="COLUMN",
            help="Column that names the series of a row. Default: as in training.",
            show_default=False,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="COLUMN", help="Column of times. Default: as in training.", show_default=False),
    ] = None,
    horizon: Annotated[
        int, typer.Option("--horizon", min=1, metavar="N", help="Forecasts: steps after the end of each series.")
    ] = 1,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Forecasts: time between the steps, in the unit of the time column (seconds for dates). Default: the "
            "typical gap of training.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="P",
            help="Numbers: add the columns lower and upper, between which the true number lies with this probability, "
            "e.g. 0.9.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="K", help="Only the network of this seed. Default: all.", show_default=False),
    ] = None,
    variant: Annotated[
        int | None,
        typer.Option("--variant", metavar="K", help="Variant of a run that has several, from 0.", show_default=False),
    ] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort the rows of each series by time.")] = False,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Texts that training did not have count as missing.")
    ] = False,
) -> None:
    """Predict the series of a file with a trained model, and write a table.

    Columns are found by their names; columns that the model does not need are ignored, and the target need not be
    there. Rows: classify and regress, one per series; sequence, one per sample; forecast, one per series and step.

    Classes: the prediction, and the probability of each class as the mean over the seeds. Numbers: the prediction is
    the mean over the seeds, and spread is their standard deviation. It shows how far the networks disagree, not how
    noisy the data are: that is what --interval is for. It takes the errors on the validation series, and so assumes
    that new series are like them.

    [bold]Examples[/]

      lipschitz-rnn predict runs/machines new.csv -o predictions.csv
      lipschitz-rnn predict model.safetensors new.csv -o next.csv --horizon 24
      lipschitz-rnn predict runs/wear new.csv -o wear.csv --interval 0.9
    """
    from lipschitz_rnn.commands.model_files import open_models, spoken_warnings
    from lipschitz_rnn.data.prediction_tables import prediction_table, require_table_name, write_table
    from lipschitz_rnn.data.rereading import read_for

    require_table_name(out)
    require_writable(out)
    require_number("--interval", interval, lambda p: 0 < p < 1, "give a probability between 0 and 1, e.g. 0.9")
    require_number("--every", every, lambda gap: 0 < gap < math.inf, "give a positive time")
    if out.exists() and out.samefile(file):
        raise ValueError(f"{out} is the file to predict; name another output")
    saved = open_models(source, seed, variant)
    if horizon > 1 and saved.target.kind != "forecast":
        raise ValueError(f"--horizon is {horizon}, but the task of {source} is {saved.target.kind}; leave it out")
    if every is not None and saved.target.kind != "forecast":
        raise ValueError(f"--every is {every:g}, but the task of {source} is {saved.target.kind}; leave it out")
    if interval is not None and saved.target.classes is not None:
        raise ValueError(f"--interval is {interval:g}, but {source} predicts classes with probabilities; leave it out")
    if interval is not None:
        saved.intervals.half_widths(interval, horizon)  # before the file is read: whether it can be had
    with spinner(f"reading {file.name}"):
        found = read_for(saved, file, series=series, time=time, sort=sort, ignore_unknown=ignore_unknown)
    reading = saved.extra.get("reading") or {}
    names = {"id_name": series or reading.get("series") or "id", "time_name": time or reading.get("time") or "time"}
    with spoken_warnings(), spinner("predicting"):
        table = prediction_table(saved, found, horizon=horizon, every=every, interval=interval, **names)
        write_table(out, table)
    networks = "1 network" if len(saved.models) == 1 else f"the mean of {len(saved.models)} networks"
    rows = len(next(iter(table.values())))
    console = Console()
    console.print(
        f"{saved.target.kind} {', '.join(saved.target.names)}: {rows:,} rows for {len(found):,} series, {networks}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    console.print(f"wrote {out}", highlight=False, markup=False, soft_wrap=True)
