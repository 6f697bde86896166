"""`lipschitz-rnn train`: every setting as an option or from a TOML file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from lipschitz_rnn import tasks
from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.parsing import parse_epochs, parse_options, parse_seeds
from lipschitz_rnn.commands.progress import FolderLine, choose_watcher
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.presets import Preset, preset_settings
from lipschitz_rnn.experiments.runner import check_train
from lipschitz_rnn.experiments.runner import train as train_run
from lipschitz_rnn.experiments.scores import show_score, show_scores
from lipschitz_rnn.training import Result, Settings, Watcher
from lipschitz_rnn.training.folder import RunConflict, read_settings
from lipschitz_rnn.training.settings import CudaGraph, EnsembleMode, Optimiser, Precision, Schedule, read_toml
from lipschitz_rnn.training.watchers import Watchers

WHERE, NETWORK, OPTIMISATION = "Where the run lives", "Network", "Optimisation"
MACHINE, OUTPUT = "Machine", "Output"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


@guarded
def train(
    task: Annotated[str | None, typer.Argument(help="Name of a task; `lipschitz-rnn tasks` lists them.")] = None,
    preset: Annotated[
        Preset,
        _option(NETWORK, "Start from the paper's settings, or from few epochs to see it learn. (default: paper)"),
    ] = "paper",
    config: Annotated[
        Path | None,
        _option(WHERE, "TOML file with settings by name; options on the command line win.", "--config", "-c"),
    ] = None,
    out: Annotated[
        Path | None, _option(WHERE, "Run folder. (default: runs/TASK-UNIT-nN, numbered if taken)", "--out", "-o")
    ] = None,
    resume: Annotated[
        bool, _option(WHERE, "Go on in --out from its newest whole checkpoint; start there if it has none.", "--resume")
    ] = False,
    seeds: Annotated[
        str | None, _option(NETWORK, "Seeds, trained together: 0-11, or 0,2,5. (default: 0)", "--seeds", "-s")
    ] = None,
    unit: Annotated[
        str | None, _option(NETWORK, "Recurrent unit; `lipschitz-rnn units` lists them. (default: lipschitz)", "--unit")
    ] = None,
    unit_option: Annotated[
        list[str] | None,
        _option(
            NETWORK, "Option of the unit, as beta=0.8; may be given again.", "--unit-option", "-u", metavar="NAME=VALUE"
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        _option(
            NETWORK,
            'Options of the unit, as "beta=0.5 gamma=0.1", for a network beside the others; once for each of them.',
            "--variant",
            metavar="OPTIONS",
        ),
    ] = None,
    task_option: Annotated[
        list[str] | None,
        _option(
            NETWORK,
            "Option of the task, as length=300; may be given again.",
            "--task-option",
            "-t",
            metavar="NAME=VALUE",
        ),
    ] = None,
    hidden_size: Annotated[int | None, _option(NETWORK, "Units N of the state.", "--hidden-size", "-n")] = None,
    num_layers: Annotated[int | None, _option(NETWORK, "Layers on top of each other.")] = None,
    dropout: Annotated[float | None, _option(NETWORK, "Dropout on what the head reads, in training.")] = None,
    epochs: Annotated[int | None, _option(OPTIMISATION, "Passes over the training data.", "--epochs", "-e")] = None,
    batch_size: Annotated[
        int | None,
        _option(OPTIMISATION, "Global batch (text tasks: --task-option train_batch=…).", "--batch-size", "-b"),
    ] = None,
    eval_batch_size: Annotated[int | None, _option(OPTIMISATION, "Batch of validation and test.")] = None,
    optimiser: Annotated[Optimiser | None, _option(OPTIMISATION, "Adam, AdamW, SGD with momentum, or RMSprop.")] = None,
    learning_rate: Annotated[
        float | None, _option(OPTIMISATION, "Largest step size.", "--learning-rate", "--lr")
    ] = None,
    momentum: Annotated[float | None, _option(OPTIMISATION, "Momentum of SGD.")] = None,
    smoothing: Annotated[float | None, _option(OPTIMISATION, "RMSprop's α.")] = None,
    weight_decay: Annotated[float | None, _option(OPTIMISATION, "Weight decay.")] = None,
    clip: Annotated[
        float | None, _option(OPTIMISATION, "Largest gradient norm of one network; 0 switches clipping off.")
    ] = None,
    schedule: Annotated[Schedule | None, _option(OPTIMISATION, "How the rate changes over the run.")] = None,
    decay_factor: Annotated[float | None, _option(OPTIMISATION, "step: factor on the rate …")] = None,
    decay_epochs: Annotated[
        str | None, _option(OPTIMISATION, "… after these epochs, counted from 0: 90 or 30,60")
    ] = None,
    warmup: Annotated[
        float | None, _option(OPTIMISATION, "one-cycle, cosine: share of the run in which it rises.")
    ] = None,
    final_rate: Annotated[
        float | None, _option(OPTIMISATION, "one-cycle, cosine: last rate as a share of --lr.")
    ] = None,
    averaging: Annotated[
        float | None, _option(OPTIMISATION, "Rate of an exponential average of the weights, which is then evaluated.")
    ] = None,
    device: Annotated[str | None, _option(MACHINE, "auto, cpu, cuda or cuda:1. (default: auto)")] = None,
    precision: Annotated[
        Precision | None, _option(MACHINE, "float32 at highest, high (TF32) or medium; bfloat16; float64.")
    ] = None,
    ensemble: Annotated[
        EnsembleMode | None, _option(MACHINE, "All seeds in one call, or one after another. (default: auto)")
    ] = None,
    cuda_graph: Annotated[
        CudaGraph | None, _option(MACHINE, "Replay the step as a CUDA graph. (default: auto)")
    ] = None,
    threads: Annotated[
        int | None, _option(MACHINE, "Threads of the CPU; 1 is often fastest for small networks.", min=1)
    ] = None,
    data_dir: Annotated[
        str | None, _option(WHERE, "Folder with data files. (default: LIPSCHITZ_RNN_DATA, then the cache)")
    ] = None,
    offline: Annotated[bool, _option(WHERE, "Never download.", "--offline")] = False,
    log_steps: Annotated[int | None, _option(OUTPUT, "Steps between two lines of metrics.")] = None,
    checkpoint_minutes: Annotated[float | None, _option(OUTPUT, "Minutes between checkpoints inside an epoch.")] = None,
    dry_run: Annotated[
        bool, _option(OUTPUT, "Print the settings that would run, as JSON, and stop.", "--dry-run")
    ] = False,
    as_json: Annotated[bool, _option(OUTPUT, "Print the result as JSON.", "--json")] = False,
) -> None:
    """Train one unit on one task, for one or many seeds at once.

    The defaults are the paper's settings for the task. Settings, metrics, checkpoints and the result land in a run
    folder. Stop with Ctrl-C and go on with --resume: on a CPU the weights come out the same, bit for bit.

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
    if threads is not None:
        torch.set_num_threads(threads)
    first = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True)
    watcher = Watchers([FolderLine(console, folder), choose_watcher(console)]) if first else Watcher()
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
            raise ValueError("--resume needs the run folder: add --out FOLDER")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("several processes need one run folder: add --out FOLDER")
        return None
    if not (out / "config.json").exists():
        return None
    if not resume:
        raise RunConflict(f"{out} already holds a run; go on with --resume, or choose another --out")
    return read_settings(out)


def _merge_frozen(frozen: Settings, task: str | None, given: dict[str, Any]) -> Settings:
    """The frozen settings with what was given again; `fit` refuses what differs in more than place."""
    options = {name: {**getattr(frozen, name), **given.pop(name)} for name in ("unit_options", "task_options")}
    return Settings.from_dict(frozen.to_dict() | options | given | ({"task": task} if task else {}))


def _resolve(task: str | None, preset: Preset, config: Path | None, given: dict[str, Any]) -> Settings:
    """Preset, then file, then options."""
    from_file = read_toml(config) if config else {}
    name = task or from_file.pop("task", None)
    from_file.pop("task", None)
    if name is None:
        raise ValueError("no task: name one (`lipschitz-rnn tasks` lists them), or a TOML file with --config")
    tasks.info(name)  # or says which there are
    for key in ("unit_options", "task_options"):
        given[key] = {**from_file.pop(key, {}), **given[key]}
    Settings.from_dict({"task": name} | from_file)
    return preset_settings(name, preset, from_file | given)


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
    for column in ("seed", "selected epoch", f"validation {result.metric}", "test, selected epoch", "test, last epoch"):
        table.add_column(column, justify="right")
    for seed in result.seeds:
        epoch = "–" if seed.selected_epoch is None else str(seed.selected_epoch + 1)
        scores = (show_score(value, result.percent) for value in (seed.validation, seed.test, seed.test_last))
        note = "" if seed.diverged_step is None else f" (diverged at step {seed.diverged_step})"
        options = "".join(f"{key}={value}, " for key, value in seed.variant.items())
        table.add_row(f"{options}{seed.seed}{note}", epoch, *scores)
    console = Console()
    console.print(table)
    beside = f"; the paper prints {printed}" if printed is not None else ""
    if not settings.variants:  # a mean over different units would say nothing
        score = show_scores([seed.test for seed in result.seeds], result.percent)
        console.print(f"test {result.metric} {score}{beside}; {result.seconds:.0f} s of training", highlight=False)
    console.print(f"next: lipschitz-rnn report {folder} -o report", highlight=False, soft_wrap=True)
