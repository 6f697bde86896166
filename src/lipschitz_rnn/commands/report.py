"""`lipschitz-rnn report`: run folders to Markdown and HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.experiments.report import write_report


@guarded
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write into.")] = Path("report"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the written paths as JSON.")] = False,
) -> None:
    """Write one page of results: report.md with figures, and report.html that carries everything inside.

    Learning curves, minimum, mean and maximum over seeds, eigenvalue tracks, time and hardware, and the paper's number
    beside ours. Runs that differ in their seeds only are laid together; a run that still goes on is reported as far as
    it is. Example: lipschitz-rnn report runs -o report
    """
    written = write_report(runs, out)
    if as_json:
        typer.echo(json.dumps({kind: str(path) for kind, path in written.items()}, indent=2))
    else:
        typer.echo("\n".join(f"wrote {path}" for path in written.values()))
