"""`lipschitz-rnn train FILE`: the options for somebody's own data, and the run on it."""

from __future__ import annotations

import csv
import functools
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn import tasks
from lipschitz_rnn.commands.progress import FolderLine, choose_watcher, spinner
from lipschitz_rnn.commands.run_folders import free_folder, recorded_threads
from lipschitz_rnn.commands.setting_options import idle_options
from lipschitz_rnn.commands.signatures import Command, with_options
from lipschitz_rnn.commands.spreading import Places
from lipschitz_rnn.commands.threads import choose_threads_for_runs
from lipschitz_rnn.data.reading import is_file_name
from lipschitz_rnn.data.steps import named_unit
from lipschitz_rnn.experiments.seeds import plan_seeds
from lipschitz_rnn.training import Settings, Watcher
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.run_settings import check_folder
from lipschitz_rnn.training.watchers import Watchers

PANEL = "Own data (FILE)"


def _option(kind: Any, text: str, *names: str, metavar: str | None = None, complete: Sequence[str] = ()) -> Any:
    words = (lambda incomplete: [word for word in complete if word.startswith(incomplete)]) if complete else None
    return Annotated[
        kind,
        typer.Option(
            *names, help=text, metavar=metavar, rich_help_panel=PANEL, show_default=False, autocompletion=words
        ),
    ]


_KINDS = ("classify", "regress", "sequence", "forecast")  # checked here: the name of a task needs its own answer
_LISTS = ("target", "features", "categories")
_OPTIONS = {
    "target": _option(str | None, "Column to predict; several numbers: A,B. For forecasts, the columns to forecast. "
                      "Quote a name with a comma: '\"A, raw\",B'.",
                      "--target", metavar="COLUMN"),
    "series": _option(str | None, "Column that names the series of a row. Default: the file is one series.",
                      "--series", metavar="COLUMN"),
    "time": _option(str | None, "Column of times: numbers, dates or durations.", "--time", metavar="COLUMN"),
    "features": _option(str | None, "Input columns. Default: all others.", "--features", metavar="A,B"),
    "kind": _option(str | None, "What to do with a file: classify, regress, sequence or forecast. Default: by the "
                    "target; without one, forecast.", "--task", metavar="KIND", complete=_KINDS),
    "split": _option(str | None, "Column with train, validation or test. Default: drawn by --split-seed.",
                     "--split", metavar="COLUMN"),
    "fractions": _option(str | None, "Shares of training, validation and test. Default: 0.7,0.15,0.15.",
                         "--fractions", metavar="A,B,C"),
    "split_seed": _option(int | None, "Seed that draws the splits. Default: 0.", "--split-seed"),
    "split_by": _option(Literal["auto", "series", "time"] | None,
                        "Split whole series, or each series in time (default for forecasts).", "--split-by",
                        metavar="HOW"),
    "scaling": _option(Literal["standard", "robust", "minmax", "none"] | None,
                       "Scaling of numbers, from training data. Default: standard.", "--scaling", metavar="HOW"),
    "missing": _option(Literal["auto", "mask", "forward", "since"] | None,
                       "Missing values: 0 and a mask (default), the last value, or the last value and its age.",
                       "--missing", metavar="HOW"),
    "times": _option(Literal["auto", "step", "input", "ignored"] | None,
                     "Times between samples: steps of the unit (default, if it has continuous time), one more input, "
                     "or ignored.", "--times", metavar="HOW"),
    "longest_gap": _option(float | None, "Longer gaps count as this many typical ones. Default: 10.", "--longest-gap"),
    "categories": _option(str | None, "Columns of numbers that are categories, or classes.", "--categories",
                          metavar="A,B"),
    "sort": _option(bool, "Sort the rows of each series by time.", "--sort"),
    "class_weights": _option(Literal["none", "balanced"] | None, "balanced: every class counts the same in the loss.",
                             "--class-weights", metavar="HOW"),
    "window": _option(int | None, "sequence, forecast: samples of a training window. Default: 100.", "--window"),
    "horizon": _option(int | None, "forecast: samples ahead in free runs. Default: 20.", "--horizon"),
    "no_report": _option(bool, "Write no report.html, and do not certify.", "--no-report"),
}  # fmt: skip


def with_file_options(command: Command) -> Command:
    """Add the options for a file; the command receives the given ones as `file`."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        asked = {name: kwargs.pop(f"file_{name}") for name in _OPTIONS}
        given = {name: _read(name, value) for name, value in asked.items() if value is not None and value is not False}
        _require_kind(given.get("kind"), kwargs["task"])
        command(*args, **kwargs, file=given)

    options = {f"file_{name}": option for name, option in _OPTIONS.items()}
    return with_options(run, command, options, instead_of="file")


def _read(name: str, value: Any) -> Any:
    if name == "fractions":
        try:
            return [float(part) for part in value.split(",")]
        except ValueError:
            raise ValueError(f"--fractions is {value!r}; write three shares, e.g. 0.7,0.15,0.15") from None
    if name not in _LISTS:
        return value
    try:  # as a line of CSV: quotes around a name that contains a comma
        (parts,) = csv.reader([value], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(
            f"--{name} is {value!r}: {error}; write A,B, or '\"A, raw\",B' for names with commas"
        ) from None
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        raise ValueError(f"--{name} is {value!r}; name at least one column")
    return names[0] if name == "target" and len(names) == 1 else names


def _require_kind(kind: str | None, task: str | None) -> None:
    """Raise if --task is not something to do with a file; often it is the name of a task."""
    if kind is None or kind in _KINDS:
        return
    if task is None and (kind in tasks.available() or is_file_name(kind)):
        what = "file" if is_file_name(kind) else "task"
        raise ValueError(
            f"--task is {kind!r}, but the {what} is named without an option: lipschitz-rnn train {shlex.quote(kind)}; "
            f"--task is for a file, and is one of {', '.join(_KINDS)}"
        )
    raise ValueError(
        f"--task is {kind!r}; it says what to do with a file, and is one of {', '.join(_KINDS)}. "
        "The name of a task needs no option: lipschitz-rnn train TASK"
    )


def require_no_file_options(file: dict[str, Any], task: str | None) -> None:
    """Raise if options for a file are given with the name of a task."""
    if file:
        flag = next(name for name in _OPTIONS if name in file)
        shown = "--task" if flag == "kind" else f"--{flag.replace('_', '-')}"
        if task is None:
            raise ValueError(f"{shown} is for a file, but none is given; name it: lipschitz-rnn train FILE {shown} …")
        what = "not a file" if task is not None and Path(task).exists() else "the name of a task"
        raise ValueError(
            f"{shown} is for a file, but {task!r} is {what}; give a file that ends in .csv, .parquet, "
            ".npz or .ts, or leave the option out"
        )


def run_file(
    path: str | None,
    file: dict[str, Any],
    given: dict[str, Any],
    frozen: Settings | None,
    out: Path | None,
    *,
    quick: bool,
    resume: bool,
    dry_run: bool,
    as_json: bool,
    places: Places | None = None,
) -> None:
    """Read the file, train, measure and report. `frozen`: the settings of the run to resume."""
    from lipschitz_rnn.experiments.file_runs import assess, file_settings, train_file
    from lipschitz_rnn.units import info

    first = os.environ.get("RANK", "0") == "0"
    console, shown = Console(stderr=True), first and not as_json
    report = not file.pop("no_report", False)
    drawn = next((name for name in ("fractions", "split_seed", "split_by") if name in file), None)
    if "split" in file and drawn is not None:
        raise ValueError(f"--split names the column of the splits, so --{drawn.replace('_', '-')} has no effect; leave "
                         "out one of them")  # fmt: skip
    if frozen is None and given.get("task_options"):
        name = next(iter(given["task_options"]))
        raise ValueError(f"--task-option {name} is for built-in tasks; leave it out: a file has options of its own")
    if frozen is not None:
        options = {**frozen.task_options, **file}
        if path is not None:
            options["path"] = path
        # The step size is a part of the settings already; those that follow from it stay as they are.
        changes = frozen.to_dict() | given
        changes["unit_options"] = {**frozen.unit_options, **given.get("unit_options", {})}
    else:
        assert path is not None
        options, changes = {"path": path, **file}, dict(given)
    for name in ("task", "task_options"):
        changes.pop(name, None)
    options.pop("step_size", None)
    if out is not None and places is None and not resume:  # before a large file is read
        asked = Settings.from_dict({**given, "task": "file"})
        info(named_unit(asked.unit, asked.unit_options)[0])
        choose_device(asked.device)
        check_folder(out, asked, resume)
    with spinner(f"reading {Path(options['path']).name}", quiet=not shown):
        settings, task = file_settings(options, changes, quick=quick)
    folder = out or free_folder(Path(options["path"]).stem, settings)
    if dry_run:
        from lipschitz_rnn.training.preparation import check_start

        if places is None:
            check_start(settings, task, folder, resume)
        else:
            plan_seeds(settings, folder, places.jobs or 1, resume=resume)
        typer.echo(json.dumps(settings.to_dict(), indent=2))
        return
    if shown:
        for option in idle_options(given, settings):
            console.print(f"warning: {option}", highlight=False, markup=False, soft_wrap=True)
        for note in task.notes():
            console.print(f"· {escape(note)}", highlight=False, soft_wrap=True)
    if places is not None:
        _run_spread(settings, task, folder, places, resume, report, as_json)
        return
    choose_threads_for_runs([settings], recorded_threads(folder))
    watcher = Watchers([FolderLine(console, folder), choose_watcher(console)]) if shown else Watcher()
    result = train_file(settings, task, folder, resume=resume, watcher=watcher)
    if not first:
        return
    with spinner("measuring on the test split", quiet=not shown):
        found = assess(settings, task, result, folder, certify=report)
        page = _write_page(folder, found) if report else None
    for note in found["left_out"] if shown else ():
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        answer = result.to_dict() | {"folder": str(folder), "metrics": found["metrics"], "baseline": found["baseline"]}
        typer.echo(json.dumps(answer, indent=2))
        return
    _print(found, result.seconds, folder, page)


def _run_spread(
    settings: Settings, task: Any, folder: Path, places: Places, resume: bool, report: bool, as_json: bool
) -> None:
    """Train groups of seeds as runs of their own, and measure each."""
    from lipschitz_rnn.commands.train import print_result
    from lipschitz_rnn.experiments.file_runs import assess, train_file

    joined = places.train(settings, folder, resume, as_json)
    with spinner("measuring on the test split", quiet=as_json):
        runs = plan_seeds(settings, folder, 1, resume=True)
        for name, own in runs.items():
            result = train_file(own, task, folder / name, resume=True)
            if not any(result.validated):  # nothing to measure; the table of all seeds tells
                continue
            found = assess(own, task, result, folder / name, certify=report)
            if report:
                _write_page(folder / name, found)
    print_result(joined, settings, folder, as_json, _predict(folder / next(iter(runs))))
    if not as_json:
        text = f"each group of seeds is a run of its own in {folder}; predict, export and evaluate take one of them"
        Console().print(text, highlight=False, markup=False, soft_wrap=True)


def _write_page(folder: Path, found: dict[str, Any]) -> Path | None:
    from lipschitz_rnn.experiments.pages.file_run import write_file_page

    try:
        return write_file_page(folder, found)
    except ImportError:  # no matplotlib: the numbers are in assessment.json all the same
        return None


def _print(found: dict[str, Any], seconds: float, folder: Path, page: Path | None) -> None:
    from lipschitz_rnn.experiments.pages.file_run import scores_table

    blocks = scores_table(found)
    title = f"{found['kind']} {', '.join(found['targets'])}, test split"
    table = Table(title=escape(title), title_justify="left")
    for index, title in enumerate(blocks.header):
        table.add_column(escape(title), justify="left" if index == 0 else "right")
    for row in blocks.rows:
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    if found["certificate"] is not None:
        verdict = {True: "yes", False: "no", None: "not examined"}[found["certificate"]["holds"]]
        console.print(f"certified to contract: {verdict}", highlight=False)
    written = f"; report: {page}" if page is not None else ""
    console.print(f"{seconds:.0f} s of training; run: {folder}{written}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"next: {_predict(folder)}", highlight=False, markup=False, soft_wrap=True)


def _predict(folder: Path) -> str:
    return f"lipschitz-rnn predict {shlex.quote(str(folder))} NEW_FILE -o predictions.csv"
