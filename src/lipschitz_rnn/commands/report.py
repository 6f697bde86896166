"""`lipschitz-rnn report`: run folders to one page, or committed results to the pages of the documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lipschitz_rnn.commands.errors import fail, guarded
from lipschitz_rnn.experiments.report import write_report
from lipschitz_rnn.experiments.report.pages import check_pages, has_marks, write_pages


@guarded
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that hold some; or one folder of results as JSON.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder to write into. (default: report; for results, docs/results beside them)"
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail where committed pages differ from the results.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written paths as JSON.")] = False,
) -> None:
    """Write one page of results: report.md with figures, and report.html that carries everything inside.

    Learning curves, minimum, mean and maximum over seeds, eigenvalue tracks, time and hardware, and the paper's number
    beside ours. Runs that differ in their seeds only are laid together; a run that still goes on is reported as far as
    it is. Example: lipschitz-rnn report runs -o report

    A folder of results, as `reproduce` exports them, becomes one page for each study instead, and the tables in the
    README beside it are filled. With --check they are compared with what is committed: every table to the letter, every
    figure by the records that it was drawn from. Example: lipschitz-rnn report --check results
    """
    if check or _are_results(runs):
        _report_results(runs, out, check, as_json)
        return
    written = write_report(runs, out or Path("report"))
    if as_json:
        typer.echo(json.dumps({kind: str(path) for kind, path in written.items()}, indent=2))
    else:
        typer.echo("\n".join(f"wrote {path}" for path in written.values()))


def _are_results(paths: list[Path]) -> bool:
    """One folder with studies of JSON files, and no run folder below it."""
    (first, *others) = paths
    return not others and any(first.glob("*/*.json")) and not any(first.rglob("config.json"))


def _report_results(paths: list[Path], out: Path | None, check: bool, as_json: bool) -> None:
    if len(paths) != 1:
        raise ValueError(f"{len(paths)} folders are given; pages of results are made from one")
    beside = paths[0].resolve().parent
    folder = out or beside / "docs" / "results"
    # Pages that go elsewhere are somebody's own; the README belongs to those in docs/results.
    readme = beside / "README.md" if out is None or out.resolve() == beside / "docs" / "results" else None
    readme = readme if readme is not None and has_marks(readme) else None
    if not check:
        written = write_pages(paths[0], folder, readme)
        typer.echo(json.dumps([str(path) for path in written], indent=2) if as_json else _lines(written))
        return
    problems = check_pages(paths[0], folder, readme)
    if as_json:
        typer.echo(json.dumps({"differences": problems}, indent=2))
    elif problems:
        typer.echo("\n".join(problems))
    if problems:
        raise fail(
            f"{len(problems)} files differ from the results; write them with: lipschitz-rnn report {paths[0]}", 1
        )
    if not as_json:
        typer.echo(f"{folder} is what {paths[0]} gives")


def _lines(written: list[Path]) -> str:
    return "\n".join(f"wrote {path}" for path in written)
