"""`lipschitz-rnn train`: every setting as an option or from a TOML file."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipschitz_rnn import tasks
from lipschitz_rnn.commands import options
from lipschitz_rnn.commands.errors import RESUME, guarded
from lipschitz_rnn.commands.imports import with_imports
from lipschitz_rnn.commands.parsing import parse_folder, require_small_file
from lipschitz_rnn.commands.progress import FolderLine, choose_watcher
from lipschitz_rnn.commands.run_folders import free_folder, recorded_threads
from lipschitz_rnn.commands.setting_options import idle_options, with_settings
from lipschitz_rnn.commands.spreading import Places
from lipschitz_rnn.commands.threads import MACHINE, choose_threads_for_runs, with_threads
from lipschitz_rnn.commands.train_file import require_no_file_options, run_file, with_file_options
from lipschitz_rnn.data.reading import is_file_name
from lipschitz_rnn.documents.numbers import show_score, show_scores
from lipschitz_rnn.experiments.left_out import left_out_note, require_validated
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.presets import Preset, preset_settings
from lipschitz_rnn.experiments.results import scores_of
from lipschitz_rnn.experiments.runner import check_train
from lipschitz_rnn.experiments.runner import train as train_run
from lipschitz_rnn.experiments.seeds import plan_seeds, read_spread
from lipschitz_rnn.training import Result, Settings, Watcher
from lipschitz_rnn.training.folder import read_settings
from lipschitz_rnn.training.settings import NETWORK, OUTPUT, WHERE, read_toml
from lipschitz_rnn.training.watchers import Watchers


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


@guarded(interrupted=f"{RESUME} and --out FOLDER if a run folder was named, else start it again")
@with_threads
@with_imports
@with_settings
@with_file_options
def train(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK|FILE",
            help="Name of a task (`lipschitz-rnn tasks` lists them), or a .csv, .parquet, .npz or .ts file.",
        ),
    ] = None,
    preset: Annotated[
        Preset,
        _option(
            NETWORK,
            "working: the paper's settings, or ours where those fail (default); paper: as printed; quick: few epochs.",
            "--preset",
        ),
    ] = "working",
    config: Annotated[
        Path | None,
        _option(WHERE, "TOML file with settings by name; options override it.", "--config", "-c", metavar="FILE"),
    ] = None,
    out: Annotated[
        Path | None,
        _option(
            WHERE,
            "Run folder. Default: runs/TASK-UNIT-nN, with a number if taken.",
            "--out",
            "-o",
            metavar="FOLDER",
            parser=parse_folder,
        ),
    ] = None,
    resume: Annotated[
        bool, _option(WHERE, "Continue the run in --out from its newest checkpoint, or start it there.", "--resume")
    ] = False,
    given: Any = None,
    file: Any = None,
    engine: Annotated[
        Literal["local", "ray"] | None,
        _option(
            MACHINE, "Divide the seeds between processes (local) or a Ray cluster; see docs/sweeps.md.", "--engine"
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        _option(
            MACHINE,
            "Divide the seeds into this many runs at a time, each in its own folder in --out; predict, export and "
            "evaluate take one of them. Default with --engine: one per GPU, else 1; with ray, what the cluster has "
            "room for.",
            "--jobs",
            "-j",
            min=1,
            metavar="N",
        ),
    ] = None,
    address: options.Address = None,
    gpus: options.Gpus = None,
    dry_run: Annotated[bool, _option(OUTPUT, "Check the settings, print them as JSON, and stop.", "--dry-run")] = False,
    as_json: Annotated[bool, _option(OUTPUT, "Print the result as JSON, and no progress.", "--json")] = False,
) -> None:
    """Train one unit on one task or on your own file, for one or many seeds at once.

    The defaults are the paper's settings for the task, or ours where those fail. Settings, metrics, checkpoints and
    the result go to a run folder. Stop with Ctrl-C and continue with --resume: on a CPU with the same number of
    threads, the weights are the same, bit for bit, as without the interruption.

    [bold]Examples[/]

      lipschitz-rnn train digits --preset quick
      lipschitz-rnn train ordered-mnist --seeds 0-11 --device cuda -o runs/om
      lipschitz-rnn train ordered-mnist --seeds 0-9 --jobs 4 -o runs/ten-seeds
      lipschitz-rnn train ptb-char --unit lstm -n 400 -t length=300 --clip 1
      lipschitz-rnn train log.csv --target state --series id --time t -o runs/log
      torchrun --nproc-per-node 2 -m lipschitz_rnn train digits -o runs/two
    """
    frozen = _frozen(out, resume)
    if resume and frozen is None and task is None and config is None:
        read_settings(out or Path())  # which raises, with the runs that are there
    places = Places.asked(engine, jobs, address, gpus, out)
    if (frozen is not None and frozen.task == "file") or (task is not None and is_file_name(task)):
        values = {} if config is None else _read_config(config)
        values.pop("task", None)
        merged = {**values, **given}
        arguments = {"quick": preset == "quick", "resume": resume, "dry_run": dry_run, "as_json": as_json}
        run_file(task, file, merged, frozen, out, places=places, **arguments)
        return
    require_no_file_options(file, task)
    settings = _merge_frozen(frozen, task, given) if frozen else _resolve(task, preset, config, given)
    first = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True)
    for option in idle_options(given, settings) if first else ():
        console.print(f"warning: {option}", highlight=False, markup=False, soft_wrap=True)
    folder = out or free_folder(settings.task, settings)
    if dry_run:
        if places is None:
            check_train(settings, folder, resume=resume)
        else:
            plan_seeds(settings, folder, jobs or 1, resume=resume)
        typer.echo(json.dumps(settings.to_dict(), indent=2))
        return
    if places is not None:
        print_result(places.train(settings, folder, resume, as_json), settings, folder, as_json)
        return
    choose_threads_for_runs([settings], recorded_threads(folder))
    shown = first and not as_json
    watcher = Watchers([FolderLine(console, folder), choose_watcher(console)]) if shown else Watcher()
    result = train_run(settings, folder, resume=resume, watcher=watcher)
    if first:
        print_result(result, settings, folder, as_json)


def _frozen(out: Path | None, resume: bool) -> Settings | None:
    """The settings of the run to resume, if --out holds one."""
    if out is None:
        if resume:
            raise ValueError("--resume needs the run folder; add --out FOLDER")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("several processes need one run folder; add --out FOLDER")
        return None
    if not resume:
        return None  # the check of the settings comes first, then that of the folder
    return read_settings(out) if (out / "config.json").exists() else read_spread(out)


def _merge_frozen(frozen: Settings, task: str | None, given: dict[str, Any]) -> Settings:
    """The frozen settings, updated with the given options; `fit` rejects changes other than those of place."""
    merged = {name: {**getattr(frozen, name), **given.pop(name, {})} for name in ("unit_options", "task_options")}
    return Settings.from_dict(frozen.to_dict() | merged | given | ({"task": task} if task else {}))


def _resolve(task: str | None, preset: Preset, config: Path | None, given: dict[str, Any]) -> Settings:
    """Preset, then file, then options."""
    from_file = {} if config is None else _read_config(config)
    name = task or from_file.pop("task", None)
    from_file.pop("task", None)
    if name is None:
        raise ValueError("no task is given; name one (`lipschitz-rnn tasks` lists them) or a TOML file with --config")
    tasks.info(name)  # raises with the list of tasks
    for key in ("unit_options", "task_options"):
        given[key] = {**from_file.pop(key, {}), **given.get(key, {})}
    Settings.from_dict({"task": name} | from_file)
    return preset_settings(name, preset, from_file | given)


def _read_config(config: Path) -> dict[str, Any]:
    require_small_file(config, "a TOML file with settings")
    return read_toml(config)


def print_result(result: Result, settings: Settings, folder: Path, as_json: bool, next_command: str = "") -> None:
    """Print a table of the seeds, or everything as JSON."""
    cell = find_cell(settings)
    printed = None if cell is None else cell.printed
    if as_json:
        typer.echo(json.dumps(result.to_dict() | {"folder": str(folder), "paper": printed}, indent=2))
        require_validated(folder, result.validated)
        return
    title = f"{result.task} · {result.unit} · {result.parameters:,} parameters"
    table = Table(title=escape(title), title_justify="left")
    if settings.variants:
        table.add_column("variant", no_wrap=True)
    for column in ("seed", "selected epoch", f"validation {result.metric}", "test, selected epoch", "test, last epoch"):
        table.add_column(column, justify="right")
    for seed in result.seeds:
        epoch = "–" if seed.selected_epoch is None else str(seed.selected_epoch + 1)
        scores = (show_score(value, result.percent) for value in (seed.validation, seed.test, seed.test_last))
        note = "" if seed.diverged_step is None else f" (diverged at step {seed.diverged_step})"
        shown = (
            [escape("\n".join(f"{key}={value}" for key, value in seed.variant.items()))] if settings.variants else []
        )
        table.add_row(*shown, f"{seed.seed}{note}", epoch, *scores)
    console = Console()
    console.print(table)
    paper = f"; the paper prints {printed}" if printed is not None else ""
    if note := left_out_note(settings.members, result.validated):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if not settings.variants:  # a mean over different units would be meaningless
        score = show_scores(scores_of([asdict(seed) for seed in result.seeds]), result.percent)
        console.print(f"test {result.metric} {score}{paper}; {result.seconds:.0f} s of training", highlight=False)
    require_validated(folder, result.validated)
    next_command = next_command or f"lipschitz-rnn report {shlex.quote(str(folder))} -o report"
    console.print(f"next: {next_command}", highlight=False, markup=False, soft_wrap=True)
