"""`lipschitz-rnn report`: turns run folders into one page, or committed results into pages of the documentation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from lipschitz_rnn.commands.errors import fail, guarded
from lipschitz_rnn.commands.options import AsJson
from lipschitz_rnn.commands.parsing import parse_folder, require_folder, writing_to
from lipschitz_rnn.commands.progress import spinner
from lipschitz_rnn.commands.threads import with_threads
from lipschitz_rnn.documents.files import has_marks
from lipschitz_rnn.experiments.pages.committed import check_pages, write_pages
from lipschitz_rnn.experiments.report import write_report
from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.history import holds_runs
from lipschitz_rnn.training.reading import is_there


@guarded
@with_threads
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, folders that hold runs, or one folder of JSON results."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder to write to. Default: report; for JSON results, docs/results next to them.",
            show_default=False,
            parser=parse_folder,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if the pages differ from the results.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a page about runs: report.html, a single file, and report.md with figures.

    It shows learning curves, scores over seeds, eigenvalues over training, time and hardware, next to the paper's
    numbers. Runs that differ only in their seeds are merged. Unfinished runs are shown as far as they have got.

    A folder of JSON results, as `reproduce` writes them, becomes one page per study instead, and the tables of the
    README next to it are filled in. With --check, the committed pages are compared with the results.

    [bold]Examples[/]

      lipschitz-rnn report runs -o report
      lipschitz-rnn report --check results
    """
    if out is not None:
        require_folder(out)
    if check or _are_results(runs):
        _report_results(runs, out, check, as_json)
        return
    _require_folders(runs)
    for path in (path for path in runs if _are_results([path])):
        raise ValueError(f"{path} is a folder of JSON results; give it alone, or give only run folders")
    out = out or Path("report")
    with spinner("writing the report", quiet=as_json), writing_to(out):
        written = write_report(runs, out)
    if as_json:
        typer.echo(json.dumps({kind: str(path) for kind, path in written.items()}, indent=2))
    else:
        typer.echo("\n".join(f"wrote {path}" for path in written.values()))


def _require_folders(paths: list[Path]) -> None:
    for path in (path for path in paths if not is_there(path) or not path.is_dir()):
        if is_there(path):
            raise RunError(f"{path} is a file; name a run folder, a folder that holds runs, or one of JSON results")
        raise RunError(
            f"there is no folder {path}; name a run folder, a folder that holds runs, or one of JSON results"
        )


def _are_results(paths: list[Path]) -> bool:
    """Whether this is one folder of studies with JSON files, without run folders."""
    (first, *others) = paths
    return not others and any(first.glob("[!.]*/*.json")) and not holds_runs(first)


def _report_results(paths: list[Path], out: Path | None, check: bool, as_json: bool) -> None:
    if len(paths) != 1:
        raise ValueError(f"{len(paths)} folders are given; give one folder of JSON results")
    _require_folders(paths)
    if holds_runs(paths[0]):
        raise RunError(
            f"{paths[0]} is not a folder of JSON results: it holds run folders; --check compares pages with results, "
            "which `lipschitz-rnn reproduce` writes to OUT/results"
        )
    parent = paths[0].resolve().parent
    folder = out or parent / "docs" / "results"
    # The README belongs to the pages in docs/results; pages written elsewhere leave it alone.
    readme = parent / "README.md" if out is None or out.resolve() == parent / "docs" / "results" else None
    readme = readme if readme is not None and has_marks(readme) else None
    if not check:
        with spinner("writing pages", quiet=as_json), writing_to(folder):
            written = write_pages(paths[0], folder, readme)
        typer.echo(json.dumps([str(path) for path in written], indent=2) if as_json else _lines(written))
        return
    if not any(paths[0].glob("*/*.json")) and not any(paths[0].glob("*/notes.md")) and any(paths[0].iterdir()):
        raise RunError(f"{paths[0]} holds no STUDY/NAME.json, but other files; name the folder of JSON results")
    with spinner("comparing pages", quiet=as_json):
        problems = check_pages(paths[0], folder, readme)
    if as_json:
        typer.echo(json.dumps({"differences": problems}, indent=2))
    elif problems:
        typer.echo("\n".join(problems))
    if problems:
        command = shlex.join(["lipschitz-rnn", "report", str(paths[0]), *([] if out is None else ["-o", str(out)])])
        raise fail(f"{len(problems)} files differ from the results; write them with: {command}", 1)
    if not as_json:
        nothing = not _are_results(paths) and not any(folder.glob("*.md"))
        typer.echo(
            f"nothing to compare: {paths[0]} holds no STUDY/NAME.json, and {folder} no pages"
            if nothing
            else f"{folder} matches {paths[0]}"
        )


def _lines(written: list[Path]) -> str:
    return "\n".join(f"wrote {path}" for path in written)
