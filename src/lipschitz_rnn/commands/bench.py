"""`lipschitz-rnn bench`: speed, memory and accuracy beside PyTorch's own layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import fail, guarded

SIZES = "Sizes"
OUTPUT = "Output"
OUTPUT_OPTIONS = ("plot", "json_file", "markdown", "append")


@guarded
def bench(
    context: typer.Context,
    batch: Annotated[int, typer.Option("--batch", "-b", help="B, samples in a batch.", rich_help_panel=SIZES)] = 128,
    length: Annotated[int, typer.Option("--length", "-t", help="T, steps.", rich_help_panel=SIZES)] = 784,
    features: Annotated[int, typer.Option(help="p, features of the input.", rich_help_panel=SIZES)] = 1,
    hidden: Annotated[int, typer.Option("--hidden", "-n", help="N, hidden size.", rich_help_panel=SIZES)] = 128,
    networks: Annotated[int, typer.Option("--networks", "-s", help="S, networks at once.", rich_help_panel=SIZES)] = 1,
    integrator: Annotated[str, typer.Option(help="euler, midpoint, heun or rk4.", rich_help_panel=SIZES)] = "euler",
    readout: Annotated[
        Literal["last", "all"], typer.Option(help="A loss on the last state, or on all of them.", rich_help_panel=SIZES)
    ] = "last",
    batch_one: Annotated[
        bool,
        typer.Option("--batch-one", help="One sequence, forward only, with units that step.", rich_help_panel=SIZES),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads; PyTorch's own choice by default.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Timed calls of each kind; 21, or 3 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A rough answer: few repeats, nothing compiled.")] = False,
    compile_loop: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Whether torch.compile of the loop is measured too.")
    ] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which backend runs for these sizes, and why; measure nothing.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--scaling",
            metavar="PNG",
            help="Also vary T, B, N and S, and draw the times into this PNG.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Write JSON to a file, or print it with -.", rich_help_panel=OUTPUT
        ),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.", rich_help_panel=OUTPUT)] = None,
    append: Annotated[
        bool,
        typer.Option("--append", help="Add to the Markdown file: several runs on one page.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Measure the scan beside the plain loop, torch.compile and PyTorch's LSTM, GRU and RNN, in one run.

    Results are checked against float64 before anything is timed; a backend that fails the check gets no times, and the
    exit code is 1. The sizes are those of the paper's ordered MNIST unless given.

    Example: lipschitz-rnn bench --hidden 64 --no-compile
    """
    from lipschitz_rnn.benchmark import Effort, Workload, contestants_for, measure, scaling, tables
    from lipschitz_rnn.benchmark.explain import explain as explain_choice
    from lipschitz_rnn.training.parallel import choose_device

    if batch_one and (_given(context, "batch") or networks != 1 or plot is not None):
        raise ValueError("--batch-one is one sequence through one network; leave out --batch, --networks and --scaling")
    work = Workload(1 if batch_one else batch, length, features, hidden, networks, integrator, readout)
    place = choose_device(device)
    timed = repeats if repeats is not None else 3 if quick else 21
    effort = Effort(repeats=timed, rounds=1 if quick else 3, backward=not batch_one)
    _require_folders(plot, markdown, None if json_file in (None, "-") else Path(str(json_file)))
    if plot is not None:
        scaling.require_matplotlib()
    explanation = explain_choice(work, place)
    if explain:
        _write_json({"workload": work.to_dict(), "device": str(place), "explanation": explanation}, json_file)
        if json_file != "-":
            tables.print_explanation(Console(), work, place, explanation)
        return

    rows = contestants_for(place, compile_loop=compile_loop and not quick, streaming=batch_one)
    with _threads(threads), Console(stderr=True).status("preparing") as status:
        report = measure(work, place, rows, effort, status.update)
        swept = None if plot is None else scaling.sweep(work, place, effort, quick=quick, note=status.update)
    not_timed = [f"{row.key}: {row.reason}" for row in report.wrong]
    document: dict[str, Any] = {"command": _command(context), **report.to_dict(), "explanation": explanation}
    if json_file != "-":
        tables.print_report(Console(), report)
    if markdown is not None:
        with markdown.open("a" if append else "w", encoding="utf-8") as page:
            page.write(("\n" if page.tell() else "") + tables.to_markdown(report, _command(context)))
    if swept is not None and plot is not None:
        scaling.draw(swept, plot)
        document["scaling"] = scaling.sweep_to_dict(swept)
        not_timed += scaling.wrong_points(swept)
    _write_json(document, json_file)
    if not_timed:
        raise fail("; ".join(not_timed), 1)


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _command(context: typer.Context) -> str:
    """The command that makes these numbers again: options as given, without the names of output files."""
    words = ["lipschitz-rnn bench"]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if not _given(context, str(option.name)) or option.name in OUTPUT_OPTIONS:
            continue
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words.append(f"{option.opts[0]} {value}")
    return " ".join(words)


def _require_folders(*paths: Path | None) -> None:
    """Found out before minutes are spent on numbers that then have no place."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {path.absolute().parent}; create it first")


def _write_json(document: dict[str, Any], target: str | None) -> None:
    if target is None:
        return
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    if target == "-":
        typer.echo(text)
    else:
        Path(target).write_text(text + "\n", encoding="utf-8")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    import torch

    if count is not None and count < 1:
        raise ValueError(f"threads is {count}; it must be at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
