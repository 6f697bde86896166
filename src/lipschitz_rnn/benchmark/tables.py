"""A report as tables: for a terminal, and as Markdown for a page of documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as TerminalTable

from lipschitz_rnn.benchmark.measuring import Report, Row
from lipschitz_rnn.benchmark.timing import Times
from lipschitz_rnn.benchmark.workload import Workload
from lipschitz_rnn.documents.blocks import Heading, Paragraph, Table

MISSING = "–"
WORDS = 2  # columns that hold words
UNLIMITED = 1000  # columns of characters
TITLE_WIDTH = 7  # of a column; longer titles take several lines, so that a CPU's tables fit into 80 columns
COARSENESS = {"float32": 0, "tf32": 1, "float16": 1, "bfloat16": 2}  # by the bits that operands keep

PEERS = {
    "reference loop": "loop",
    "nn.LSTM": "LSTM",
    "nn.GRU": "GRU",
    "nn.RNN": "RNN",
    "nn.LSTMCell": "LSTMCell",
    "torch.compile": "compile",
}


def time_table(report: Report) -> Table:
    backward, gpu = report.effort.backward, report.device.type == "cuda"
    header = ["", "precision", "forward, ms", *(["fwd + bwd, ms"] if backward else []), "±", "µs a step"]
    header += ["host, µs", "GPU alone, ms"] if gpu else []
    header += ["memory, MB"]
    rows = []
    for row in report.rows:
        cells = [row.name, row.precision, _ms(row.forward), *([_ms(row.training)] if backward else [])]
        cells += [MISSING if row.main is None else f"{row.main.spread:.0%}", _per_step(row, report)]
        if gpu:
            cells += [_host(row), _ms(row.training_replayed if backward else row.forward_replayed)]
        rows.append([*cells, MISSING if row.memory is None else f"{row.memory / 1e6:,.1f}"])
    return Table(header, rows, left=WORDS)


def comparison_table(report: Report) -> Table:
    """Errors, and how many times faster each row is than each peer that is at least as precise."""
    peers = [name for name in PEERS if any(row.name == name and row.main for row in report.rows)]
    errors = ["error", *(["of gradients"] if report.effort.backward else [])]
    header = ["", "precision", *errors, *(f"× {PEERS[name]}" for name in peers)]
    rows = []
    for row in report.rows:
        cells = [_error(None if row.errors is None else row.errors.states)]
        if report.effort.backward:
            cells.append(_error(None if row.errors is None else row.errors.gradients))
        cells += [_ratio(row, _peer(report.rows, name, row)) for name in peers]
        rows.append([row.name, row.precision, *cells])
    return Table(header, rows, left=WORDS)


def captions(report: Report) -> list[str]:
    """What a reader must know to read the tables; the same text in a terminal and in Markdown."""
    gpu, effort = report.device.type == "cuda", report.effort
    called = "medians of repeated calls after a warm-up, as called from Python"
    if gpu:
        called += ": CUDA events around calls that follow each other without a pause"
    first = [
        f"Times are {called}; ± is half the distance between the quartiles.",
        "Backward is the gradient of every weight from a loss on "
        + ("every state." if report.workload.readout == "all" else "the last state.")
        if effort.backward
        else "Forward only, without gradients.",
    ]
    if effort.same_thread:
        first.append("Backward passes ran in the calling thread, not in autograd's own.")
    if gpu:
        what = "forward and backward" if effort.backward else "the forward pass"
        first.append(
            f"Host: the time until Python has submitted {what}, which includes waiting where the GPU's queue is full. "
            f"GPU alone: {what} replayed from a CUDA graph, without Python and without launches."
        )
    first.append(
        "Memory is the most that a call needs beyond its inputs and weights"
        + ("." if gpu else ", from the growth of the resident set (Linux), so small sizes say little.")
    )
    if not gpu and any(row.ours and row.main for row in report.rows):
        first.append(f"The cpu backend, which the layer uses, ran on {report.environment['cpu_backend']}.")
    largest = ", and of the gradients of all weights the largest" if effort.backward else ""
    second = [
        f"Errors are relative to float64, of the state that is furthest off{largest}, and were checked before anything "
        "was timed: rounding must explain them.",
        "× is how many times faster a row is than that peer at its fastest precision no coarser than the row's.",
    ]
    if report.workload.networks > 1:
        second.append(
            f"PyTorch's layers, and LipschitzRNN as a module, run the {report.workload.networks} networks one after "
            "another; the backends take them in one call."
        )
    return [" ".join(first), " ".join(second)]


def footnotes(report: Report) -> list[str]:
    lines = [f"{row.key}: {row.reason}." for row in report.rows if row.reason]
    return lines + [f"{row.key}: {note}." for row in report.rows for note in row.notes]


def heading(report: Report) -> str:
    environment = report.environment
    versions = f"PyTorch {environment['torch']}"
    if report.device.type == "cuda":
        versions += f", CUDA {environment['cuda']}"
    threads = "" if report.device.type == "cuda" else f", {environment['threads']} thread(s)"
    return f"{environment['device']}{threads}, {versions}: {report.workload.sizes()}"


def print_report(console: Console, report: Report) -> None:
    precisions = {row.precision for row in report.rows}
    same = f", {precisions.pop()}" if len(precisions) == 1 else ""  # said once instead of in every row
    console.print(f"[bold]{heading(report)}{same}[/]", highlight=False)
    for table, caption in zip((time_table(report), comparison_table(report)), captions(report), strict=True):
        _print_whole(console, _for_terminal(table, report.rows, without="precision" if same else None))
        console.print(caption, style="dim", highlight=False, markup=False)
    for line in footnotes(report):
        console.print(line, highlight=False, markup=False)


def _print_whole(console: Console, table: TerminalTable) -> None:
    """In as many columns as it needs: rows that take several lines, and cells that are cut, cannot be compared."""
    before = console.width
    console.width = max(before, Measurement.get(console, console.options.update(max_width=UNLIMITED), table).maximum)
    console.print(table)
    console.width = before


def print_explanation(console: Console, work: Workload, device: torch.device, answers: list[dict[str, Any]]) -> None:
    console.print(f"[bold]{device}: {work.sizes()}[/]", highlight=False)
    for answer in answers:
        console.print(f"{answer['dtype']}: {answer['backend']}, {answer['reason']}", highlight=False, markup=False)
        for name, obstacle in answer["obstacles"].items():
            why = "would run too, if asked for by name" if obstacle is None else f"cannot: {obstacle}"
            console.print(f"    {name} {why}", style="dim", highlight=False, markup=False)


def to_markdown(report: Report, command: str) -> str:
    environment = report.environment
    made_by = f"Made by `{command}`, lipschitz-rnn {environment['lipschitz_rnn']}"
    name, changed, _ = (environment["commit"] or "").partition("-changed")
    made_by += f", commit {name[:12]}" if name else ""
    made_by += " with changes" if changed else ""
    parts: list[Any] = [Heading(heading(report))]
    for table, caption in zip((time_table(report), comparison_table(report)), captions(report), strict=True):
        parts += [table, Paragraph(caption)]
    parts += [Paragraph(line) for line in footnotes(report)]
    parts.append(Paragraph(f"{made_by}, Python {environment['python']}."))
    return "\n\n".join(part.markdown() for part in parts) + "\n"


def _for_terminal(table: Table, found: Sequence[Row], without: str | None) -> TerminalTable:
    shown = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    kept = [index for index, title in enumerate(table.header) if title != without]
    for index in kept:
        title = table.header[index].replace("× ", "×\N{NO-BREAK SPACE}")  # stays with what it multiplies
        title = textwrap.fill(title, TITLE_WIDTH, break_long_words=False).replace("\N{NO-BREAK SPACE}", " ")
        shown.add_column(title, justify="left" if index < table.left else "right", no_wrap=True, vertical="bottom")
    for cells, row in zip(table.rows, found, strict=True):
        shown.add_row(*(cells[index] for index in kept), style="red" if row.wrong else "bold" if row.ours else "")
    return shown


def _peer(rows: Sequence[Row], name: str, row: Row) -> Row | None:
    """The fastest row of that name whose products are at least as precise; a less precise one would be unfair."""
    fair = [each for each in rows if each.name == name and COARSENESS[each.operands] <= COARSENESS[row.operands]]
    return min((each for each in fair if each.main), key=lambda each: each.main.median, default=None)  # type: ignore[union-attr]


def _ratio(row: Row, peer: Row | None) -> str:
    ratio = None if peer is None else row.speed_over(peer)
    if ratio is None:
        return MISSING
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _ms(times: Times | None) -> str:
    return MISSING if times is None else _three_digits(1e3 * times.median)


def _host(row: Row) -> str:
    host = None if row.main is None else row.main.host_median
    return MISSING if host is None else f"{1e6 * host:,.0f}"


def _per_step(row: Row, report: Report) -> str:
    return MISSING if row.main is None else _three_digits(1e6 * row.main.median / report.workload.length)


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _error(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1e}"
