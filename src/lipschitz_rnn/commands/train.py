"""`lipschitz-rnn train`: every setting as an option or from a TOML file."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn import tasks
from lipschitz_rnn.commands.errors import RESUME, guarded
from lipschitz_rnn.commands.parsing import parse_epochs, parse_options, parse_seeds, require_small_file
from lipschitz_rnn.commands.progress import FolderLine, choose_watcher
from lipschitz_rnn.commands.threads import MACHINE, suit_settings, threaded
from lipschitz_rnn.documents.numbers import show_score, show_scores
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.presets import Preset, preset_settings
from lipschitz_rnn.experiments.runner import check_train
from lipschitz_rnn.experiments.runner import train as train_run
from lipschitz_rnn.training import Result, Settings, Watcher
from lipschitz_rnn.training.folder import RunConflict, read_settings
from lipschitz_rnn.training.reading import read_json
from lipschitz_rnn.training.settings import CudaGraph, EnsembleMode, Optimiser, Precision, Schedule, read_toml
from lipschitz_rnn.training.watchers import Watchers

WHERE, NETWORK, OPTIMISATION, OUTPUT = "Run folder and data", "Network", "Optimisation", "Output"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


@guarded(interrupted=f"{RESUME} and --out FOLDER if a run folder was named, else start it again")
@threaded
def train(
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Name of a task; `lipschitz-rnn tasks` lists them.")
    ] = None,
    preset: Annotated[
        Preset,
        _option(NETWORK, "paper: the paper's settings (default); quick: few epochs, to see it learn."),
    ] = "paper",
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
        ),
    ] = None,
    resume: Annotated[
        bool, _option(WHERE, "Continue the run in --out from its newest checkpoint, or start it there.", "--resume")
    ] = False,
    seeds: Annotated[
        str | None, _option(NETWORK, "Seeds to train together, e.g. 0-11 or 0,2,5. Default: 0.", "--seeds", "-s")
    ] = None,
    unit: Annotated[
        str | None, _option(NETWORK, "Recurrent unit; `lipschitz-rnn units` lists them. Default: lipschitz.", "--unit")
    ] = None,
    unit_option: Annotated[
        list[str] | None,
        _option(
            NETWORK, "Option of the unit, e.g. beta=0.8; repeat for more.", "--unit-option", "-u", metavar="NAME=VALUE"
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        _option(
            NETWORK,
            'Train one more network with these unit options, e.g. "beta=0.5 gamma=0.1"; repeat for each variant.',
            "--variant",
            metavar="OPTIONS",
        ),
    ] = None,
    task_option: Annotated[
        list[str] | None,
        _option(
            NETWORK,
            "Option of the task, e.g. length=300; repeat for more.",
            "--task-option",
            "-t",
            metavar="NAME=VALUE",
        ),
    ] = None,
    hidden_size: Annotated[int | None, _option(NETWORK, "Hidden size N.", "--hidden-size", "-n")] = None,
    num_layers: Annotated[int | None, _option(NETWORK, "Number of stacked layers.")] = None,
    dropout: Annotated[float | None, _option(NETWORK, "Dropout before the head, in training.")] = None,
    epochs: Annotated[int | None, _option(OPTIMISATION, "Number of epochs.", "--epochs", "-e")] = None,
    batch_size: Annotated[
        int | None,
        _option(OPTIMISATION, "Batch size over all processes (text tasks: -t train_batch=N).", "--batch-size", "-b"),
    ] = None,
    eval_batch_size: Annotated[int | None, _option(OPTIMISATION, "Batch size for validation and test.")] = None,
    optimiser: Annotated[Optimiser | None, _option(OPTIMISATION, "Optimiser; sgd has momentum.")] = None,
    learning_rate: Annotated[
        float | None, _option(OPTIMISATION, "Learning rate, the largest of a schedule.", "--learning-rate", "--lr")
    ] = None,
    momentum: Annotated[float | None, _option(OPTIMISATION, "sgd: momentum.")] = None,
    smoothing: Annotated[float | None, _option(OPTIMISATION, "rmsprop: smoothing constant α.")] = None,
    weight_decay: Annotated[float | None, _option(OPTIMISATION, "Weight decay.")] = None,
    clip: Annotated[
        float | None, _option(OPTIMISATION, "Clip the gradient norm of each network; 0: no clipping.")
    ] = None,
    schedule: Annotated[Schedule | None, _option(OPTIMISATION, "How the learning rate changes over the run.")] = None,
    decay_factor: Annotated[float | None, _option(OPTIMISATION, "step: factor on the learning rate.")] = None,
    decay_epochs: Annotated[
        str | None,
        _option(
            OPTIMISATION,
            "step: epochs after which it applies, from 0, e.g. 90 or 30,60.",
            "--decay-epochs",
            metavar="EPOCHS",
        ),
    ] = None,
    warmup: Annotated[float | None, _option(OPTIMISATION, "one-cycle, cosine: share of the run that warms up.")] = None,
    final_rate: Annotated[
        float | None, _option(OPTIMISATION, "one-cycle, cosine: final rate as a share of --lr.")
    ] = None,
    averaging: Annotated[
        float | None,
        _option(OPTIMISATION, "Evaluate a moving average of the weights that is updated at this rate, e.g. 0.002."),
    ] = None,
    device: Annotated[str | None, _option(MACHINE, "auto, cpu, cuda or cuda:1. Default: auto.")] = None,
    precision: Annotated[
        Precision | None,
        _option(MACHINE, "Arithmetic: highest (default), high (TF32) or medium in float32; bfloat16; float64."),
    ] = None,
    ensemble: Annotated[
        EnsembleMode | None, _option(MACHINE, "How seeds train: auto (default), vmap (all in one call) or sequential.")
    ] = None,
    cuda_graph: Annotated[
        CudaGraph | None, _option(MACHINE, "Replay each step as a CUDA graph: auto (default), on or off.")
    ] = None,
    data_dir: Annotated[
        str | None,
        _option(
            WHERE,
            "Folder with data files. Default: LIPSCHITZ_RNN_DATA, else the cache.",
            "--data-dir",
            metavar="FOLDER",
        ),
    ] = None,
    offline: Annotated[bool, _option(WHERE, "Never download data.", "--offline")] = False,
    log_steps: Annotated[int | None, _option(OUTPUT, "Log metrics every N steps.")] = None,
    checkpoint_minutes: Annotated[
        float | None, _option(OUTPUT, "Save a checkpoint every so many minutes within an epoch.")
    ] = None,
    dry_run: Annotated[bool, _option(OUTPUT, "Check the settings, print them as JSON, and stop.", "--dry-run")] = False,
    as_json: Annotated[bool, _option(OUTPUT, "Print the result as JSON, and no progress.", "--json")] = False,
) -> None:
    """Train one unit on one task, for one or many seeds at once.

    The defaults are the paper's settings for the task. Settings, metrics, checkpoints and the result go to a run
    folder. Stop with Ctrl-C and continue with --resume: on a CPU with the same number of threads the weights come out
    the same, bit for bit.

    [bold]Examples[/]

      lipschitz-rnn train digits --preset quick
      lipschitz-rnn train ordered-mnist --seeds 0-11 --device cuda -o runs/om
      lipschitz-rnn train ptb-char --unit lstm -n 400 -t length=300 --clip 1
      torchrun --nproc-per-node 2 -m lipschitz_rnn train digits -o runs/two
    """
    given = {name: value for name, value in locals().items() if name in _PLAIN and value is not None}
    if seeds is not None:
        given["seeds"] = parse_seeds(seeds)
    if decay_epochs is not None:
        given["decay_epochs"] = parse_epochs(decay_epochs)
    if given.get("clip") == 0:
        given["clip"] = None
    if offline:
        given["offline"] = True
    given["unit_options"] = parse_options(unit_option or [], "--unit-option")
    given["task_options"] = parse_options(task_option or [], "--task-option")
    if variant:
        given["variants"] = tuple(parse_options(options.split(), "--variant") for options in variant)
    frozen = _frozen(out, resume)
    settings = _merge_frozen(frozen, task, given) if frozen else _resolve(task, preset, config, given)
    folder = out or _free_folder(settings)
    if dry_run:
        check_train(settings, folder, resume=resume)
        typer.echo(json.dumps(settings.to_dict(), indent=2))
        return
    suit_settings([settings], _recorded_threads(folder))
    first = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True)
    told = first and not as_json
    watcher = Watchers([FolderLine(console, folder), choose_watcher(console)]) if told else Watcher()
    result = train_run(settings, folder, resume=resume, watcher=watcher)
    if first:
        print_result(result, settings, folder, as_json)


_PLAIN = (
    "unit", "hidden_size", "num_layers", "dropout", "epochs", "batch_size", "eval_batch_size", "optimiser",
    "learning_rate", "momentum", "smoothing", "weight_decay", "clip", "schedule", "decay_factor", "warmup",
    "final_rate", "averaging", "device", "precision", "ensemble", "cuda_graph", "data_dir", "log_steps",
    "checkpoint_minutes",
)  # fmt: skip


def _frozen(out: Path | None, resume: bool) -> Settings | None:
    """The settings of the run that is to be resumed, where --out holds one."""
    if out is None:
        if resume:
            raise ValueError("--resume needs the run folder; add --out FOLDER")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("several processes need one run folder; add --out FOLDER")
        return None
    if not (out / "config.json").exists():
        return None
    if not resume:
        raise RunConflict(f"{out} already holds a run; continue it with --resume, or choose another --out")
    return read_settings(out)


def _merge_frozen(frozen: Settings, task: str | None, given: dict[str, Any]) -> Settings:
    """The frozen settings with what was given again; `fit` refuses what differs in more than place."""
    options = {name: {**getattr(frozen, name), **given.pop(name)} for name in ("unit_options", "task_options")}
    return Settings.from_dict(frozen.to_dict() | options | given | ({"task": task} if task else {}))


def _resolve(task: str | None, preset: Preset, config: Path | None, given: dict[str, Any]) -> Settings:
    """Preset, then file, then options."""
    if config is not None:
        require_small_file(config, "a TOML file with settings")
    from_file = read_toml(config) if config else {}
    name = task or from_file.pop("task", None)
    from_file.pop("task", None)
    if name is None:
        raise ValueError("no task is given; name one (`lipschitz-rnn tasks` lists them) or a TOML file with --config")
    tasks.info(name)  # or says which there are
    for key in ("unit_options", "task_options"):
        given[key] = {**from_file.pop(key, {}), **given[key]}
    Settings.from_dict({"task": name} | from_file)
    return preset_settings(name, preset, from_file | given)


def _recorded_threads(folder: Path) -> int | None:
    """What the first part of a run took: the bits of its weights depend on it."""
    path = folder / "environment.json"
    threads = read_json(path).get("threads") if path.exists() else None
    return threads if isinstance(threads, int) and threads > 0 else None


def _free_folder(settings: Settings) -> Path:
    base = Path("runs") / f"{settings.task}-{settings.unit}-n{settings.hidden_size}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def print_result(result: Result, settings: Settings, folder: Path, as_json: bool) -> None:
    """A table of the seeds, or everything as JSON."""
    cell = find_cell(settings)
    printed = None if cell is None else cell.printed
    if as_json:
        typer.echo(json.dumps(result.to_dict() | {"folder": str(folder), "paper": printed}, indent=2))
        return
    table = Table(title=f"{result.task} · {result.unit} · {result.parameters:,} parameters", title_justify="left")
    if settings.variants:
        table.add_column("variant", no_wrap=True)
    for column in ("seed", "selected epoch", f"validation {result.metric}", "test, selected epoch", "test, last epoch"):
        table.add_column(column, justify="right")
    for seed in result.seeds:
        epoch = "–" if seed.selected_epoch is None else str(seed.selected_epoch + 1)
        scores = (show_score(value, result.percent) for value in (seed.validation, seed.test, seed.test_last))
        note = "" if seed.diverged_step is None else f" (diverged at step {seed.diverged_step})"
        options = ["\n".join(f"{key}={value}" for key, value in seed.variant.items())] if settings.variants else []
        table.add_row(*options, f"{seed.seed}{note}", epoch, *scores)
    console = Console()
    console.print(table)
    beside = f"; the paper prints {printed}" if printed is not None else ""
    if not settings.variants:  # a mean over different units would say nothing
        score = show_scores([seed.test for seed in result.seeds], result.percent)
        console.print(f"test {result.metric} {score}{beside}; {result.seconds:.0f} s of training", highlight=False)
    console.print(f"next: lipschitz-rnn report {shlex.quote(str(folder))} -o report", highlight=False, soft_wrap=True)
