"""`lipschitz-rnn bench`: speed, memory and accuracy compared with PyTorch's own layers."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from lipschitz_rnn.commands.errors import fail, guarded
from lipschitz_rnn.commands.options import OUTPUT, Device
from lipschitz_rnn.commands.parsing import refuse_given, require_writable, was_given
from lipschitz_rnn.commands.progress import progress_bar
from lipschitz_rnn.commands.threads import available_memory, with_threads

if TYPE_CHECKING:
    import torch

    from lipschitz_rnn.benchmark import Workload

SIZES = "Sizes"
METHOD = "Method"
SIZE_OPTIONS = ("batch", "length", "features", "hidden", "networks", "integrator", "readout", "batch_one")
OUTPUT_OPTIONS = ("plot", "growth_plot", "json_file", "markdown", "append")

OF_THE_TABLES = ("plot", "markdown", "same_thread", "only", "compile_loop")
IGNORED = {  # by the options that change what is done, those that play no part then
    "explain": (*OF_THE_TABLES, "growth_plot", "parallel", "repeats", "quick"),
    "growth_plot": (*OF_THE_TABLES, "parallel", "repeats", "batch_one"),
    "parallel": (*OF_THE_TABLES, "features", "networks", "readout", "batch_one"),
    "weights": ("hidden", "integrator"),
    "batch_one": ("batch", "networks", "plot"),
}


@guarded
@with_threads
def bench(
    context: typer.Context,
    batch: Annotated[int, typer.Option("--batch", "-b", help="Batch size B.", rich_help_panel=SIZES)] = 128,
    length: Annotated[int, typer.Option("--length", "-t", help="Sequence length T.", rich_help_panel=SIZES)] = 784,
    features: Annotated[int, typer.Option(help="Input size p.", rich_help_panel=SIZES)] = 1,
    hidden: Annotated[int, typer.Option("--hidden", "-n", help="Hidden size N.", rich_help_panel=SIZES)] = 128,
    networks: Annotated[
        int, typer.Option("--networks", "-s", help="Number of networks S, run as one ensemble.", rich_help_panel=SIZES)
    ] = 1,
    integrator: Annotated[
        str,
        typer.Option(
            "--integrator", metavar="NAME", help="euler, midpoint (or rk2), heun or rk4.", rich_help_panel=SIZES
        ),
    ] = "euler",
    readout: Annotated[
        Literal["last", "all"],
        typer.Option(help="Whether the loss reads the last state or all states.", rich_help_panel=SIZES),
    ] = "last",
    batch_one: Annotated[
        bool,
        typer.Option(
            "--batch-one", help="One sequence, forward only, including cells and streams.", rich_help_panel=SIZES
        ),
    ] = False,
    device: Device = "auto",
    repeats: Annotated[
        int | None,
        typer.Option(
            max=100_000,
            help="Timed calls of each kind; at most 5 with --parallel. Default: 21, or 3 with --quick.",
            show_default=False,
            rich_help_panel=METHOD,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rough result: few repeats, nothing compiled.", rich_help_panel=METHOD)
    ] = False,
    compile_loop: Annotated[
        bool,
        typer.Option("--compile/--no-compile", help="Also measure torch.compile of the loop.", rich_help_panel=METHOD),
    ] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=r"Only rows with this in their name, e.g. 'nn.RNN \[float16]'; repeat for more.",
            show_default=False,
            rich_help_panel=METHOD,
        ),
    ] = None,
    same_thread: Annotated[
        bool,
        typer.Option(
            "--same-thread",
            help="On a GPU: run backward passes in the calling thread, not in autograd's own.",
            rich_help_panel=METHOD,
        ),
    ] = False,
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            help="Only compare contracting layers sequentially and in parallel over time.",
            rich_help_panel=METHOD,
        ),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE|RUN", help="With --parallel: this trained layer, not fresh ones.", rich_help_panel=METHOD
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Explain which backend runs for these sizes, and stop.", rich_help_panel=METHOD),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--scaling",
            metavar="FILE",
            help="Also vary T, B, N and S, and draw the times into this PNG file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    growth_plot: Annotated[
        Path | None,
        typer.Option(
            "--growth",
            metavar="FILE",
            help="Only measure how the cost grows with N, T and S (on a GPU to 2,048, a million, 64); draw it as SVG.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write JSON to this file; - prints it.", rich_help_panel=OUTPUT),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown.", rich_help_panel=OUTPUT),
    ] = None,
    append: Annotated[
        bool,
        typer.Option("--append", help="Append to the Markdown file instead of replacing it.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Compare speed with a plain loop, torch.compile and PyTorch's LSTM, GRU and RNN.

    Every result is compared with float64 before anything is timed. If one differs by more than rounding explains, it
    is not timed and the exit code is 1. The default sizes are those of the paper's ordered MNIST; on a CPU two small
    ones follow, a training step with N = 32 and one sequence forward.

    [bold]Example[/]

      lipschitz-rnn bench --hidden 64 --no-compile
    """
    from lipschitz_rnn.benchmark import Effort, Workload, contestants_for, measure, scaling, tables
    from lipschitz_rnn.benchmark.contestants import choose
    from lipschitz_rnn.benchmark.explain import explain as explain_choice
    from lipschitz_rnn.benchmark.workload import ONE_SEQUENCE, SMALL
    from lipschitz_rnn.training.parallel import choose_device

    _refuse_ignored(context)
    work = Workload(1 if batch_one else batch, length, features, hidden, networks, integrator, readout)
    place = choose_device(device)
    if not explain:
        _require_memory(work, place)
    timed = repeats if repeats is not None else 3 if quick else 21
    effort = Effort(repeats=timed, rounds=1 if quick else 3, backward=not batch_one, same_thread=same_thread)
    if same_thread and place.type != "cuda":
        raise ValueError(f"--same-thread is about GPUs; on {place} backward passes run in the calling thread anyway")
    require_writable(plot, growth_plot, markdown, None if json_file in (None, "-") else Path(str(json_file)))
    if plot is not None:
        scaling.require_matplotlib()
    for name, path, kind in (("--scaling", plot, ".png"), ("--growth", growth_plot, ".svg")):
        if path is not None and path.suffix.lower() != kind:
            raise ValueError(f"{name} is {str(path)!r}; it draws into a {kind} file, so name one")
    if append and markdown is None:
        raise ValueError("--append is about the file of --markdown; pass both, or neither")
    if weights is not None and not parallel:
        raise ValueError(f"--weights is {weights!r}, but it chooses the layer of --parallel; pass both, or neither")
    if weights is not None:
        from lipschitz_rnn.commands.model_files import require_whole

        require_whole(Path(weights))
    explanation = explain_choice(work, place)
    if explain:
        _write_json({"workload": work.to_dict(), "device": str(place), "explanation": explanation}, json_file)
        if json_file != "-":
            tables.print_explanation(Console(), work, place, explanation)
        return
    if growth_plot is not None:
        _draw_growth(work, place, growth_plot, json_file, quick, _command(context))
        return
    if parallel:
        sized = was_given(context, "length") or was_given(context, "batch")
        command = _command(context)
        _bench_parallel(work if sized else None, work, place, timed, quick, weights, json_file, command)
        return

    drawn = [] if plot is None else choose(scaling.drawn_contestants(place), only or ())
    sized = any(was_given(context, name) for name in SIZE_OPTIONS)
    works = [work] if sized or place.type != "cpu" else [work, SMALL, ONE_SEQUENCE]
    with progress_bar(quiet=json_file == "-") as show:
        # The number of steps is unknown; the bar shows the current stage and its time.
        reports = []
        for size in works:
            alone = batch_one or size == ONE_SEQUENCE
            rows = contestants_for(place, compile_loop=compile_loop and not quick and size is work, streaming=alone)
            own = replace(effort, backward=not alone)
            reports.append(measure(size, place, choose(rows, only or ()), own, lambda text: show(text, 0, None)))
        report, swept = reports[0], None
        if plot is not None:
            swept = scaling.sweep(work, place, drawn, effort, quick=quick, note=lambda text: show(text, 0, None))
    not_timed = [f"{row.key}: {row.reason}" for each in reports for row in each.wrong]
    document: dict[str, Any] = {"command": _command(context), **report.to_dict(), "explanation": explanation}
    document |= {"small_sizes": [each.to_dict() for each in reports[1:]]} if reports[1:] else {}
    for each in reports if json_file != "-" else []:
        tables.print_report(Console(), each)
    if markdown is not None:
        with markdown.open("a" if append else "w", encoding="utf-8") as page:
            for each in reports:
                page.write(("\n" if page.tell() else "") + tables.to_markdown(each, _command(context)))
    if swept is not None and plot is not None:
        scaling.draw(swept, plot)
        document["scaling"] = scaling.sweep_to_dict(swept)
        not_timed += scaling.wrong_points(swept)
    _write_json(document, json_file)
    if not_timed:
        raise fail("; ".join(not_timed), 1)


def _refuse_ignored(context: typer.Context) -> None:
    """Raise for an option that another one leaves without effect: it would stand in the recorded command."""
    names = {option.name: option.opts[0] for option in context.command.params}
    for mode, ignored in IGNORED.items():
        if context.params[mode] not in (None, False):
            why = f"cannot be used with {names[mode]}, which would ignore it; leave one of them out"
            refuse_given(context, ignored, why)
    if context.params["quick"] and context.params["compile_loop"]:
        why = "cannot be used with --quick, which compiles nothing; leave one of them out"
        refuse_given(context, ["compile_loop"], why)


def _draw_growth(
    work: Workload, device: torch.device, plot: Path, json_file: str | None, quick: bool, command: str
) -> None:
    """Measure, draw and record the growth; exit with 1 if a point of ours is wrong."""
    from lipschitz_rnn.benchmark.growth import AXES, draw_growth, growth_to_dict, measure_growth
    from lipschitz_rnn.drawing import new_figure, to_svg

    new_figure(1)  # fails now, not after the measurement, if it cannot be drawn
    with progress_bar(quiet=json_file == "-") as show:
        lines = measure_growth(work, device, quick=quick, note=lambda text: show(text, 0, None))
    document = {"command": f"{command} --growth {plot.name}", **growth_to_dict(lines, device)}
    plot.write_bytes(to_svg(draw_growth(lines, f"Forward + backward; {document['environment']['device']}")))
    _write_json(document, json_file)
    for line in lines if json_file != "-" else []:
        for key, seconds in line.seconds.items():
            steepest = line.steepest(key)
            steep = (
                "" if steepest is None else f"; steepest from {steepest[0]} to {steepest[1]}: power {steepest[2]:.2f}"
            )
            typer.echo(f"{AXES[line.axis]}, {key}: " + ", ".join(f"{1e3 * s:.3g}" for s in seconds) + f" ms{steep}")
        for text in line.notes:
            typer.echo(text)
    wrong = [text for line in lines for text in line.wrong]
    if wrong:
        raise fail("; ".join(wrong), 1)


def _bench_parallel(
    sized: Workload | None,
    work: Workload,
    device: torch.device,
    repeats: int,
    quick: bool,
    weights: str | None,
    json_file: str | None,
    command: str,
) -> None:
    """Sequential against parallel over time; exit with 1 if a difference is larger than its bound."""
    from lipschitz_rnn.benchmark.time_parallel import Size, measure_parallel, to_document, to_table, usual_sizes

    sizes = usual_sizes(device)
    if sized is not None:
        sizes = [Size(sized.length, sized.batch, training) for training in (False, True)]
    options = {"hidden": work.hidden, "integrator": work.integrator, "repeats": min(repeats, 5), "weights": weights}
    with progress_bar(quiet=json_file == "-") as show:
        rates = (1.0,) if quick else (0.01, 1.0)
        rows = measure_parallel(sizes, device, rates=rates, note=lambda text: show(text, 0, None), **options)  # type: ignore[arg-type]
    _write_json({"command": command, **to_document(rows, device)}, json_file)
    if json_file != "-":
        Console().print(to_table(rows, device))
    wrong = [row.wrong for row in rows if row.wrong]
    if wrong:
        raise fail("; ".join(wrong), 1)


def _command(context: typer.Context) -> str:
    """The command that reproduces these numbers: options as given, without output files."""
    from lipschitz_rnn.ops.lipschitz.cores.machine import CPU_NAME

    chosen = os.environ.get(CPU_NAME)  # it changes the numbers
    words = [f"{CPU_NAME}={shlex.quote(chosen)}"] if chosen else []
    words.append("lipschitz-rnn bench")
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if not was_given(context, str(option.name)) or option.name in OUTPUT_OPTIONS:
            continue
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            several = value if isinstance(value, list | tuple) else [value]
            words += [f"{option.opts[0]} {shlex.quote(str(each))}" for each in several]
    return " ".join(words)


def _require_memory(work: Workload, device: torch.device) -> None:
    """Raise for sizes that do not fit into memory: a process killed for memory reports nothing."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    states = work.length * work.batch * (work.features + work.hidden)
    needed = 8 * work.networks * (6 * work.hidden**2 + states)  # in float64, for checking the results
    if free is not None and needed > free:
        memory = f"at least {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        raise ValueError(f"{work.sizes()} needs {memory}; choose smaller sizes")


def _write_json(document: dict[str, Any], target: str | None) -> None:
    if target is None:
        return
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    if target == "-":
        typer.echo(text)
    else:
        Path(target).write_text(text + "\n", encoding="utf-8")
