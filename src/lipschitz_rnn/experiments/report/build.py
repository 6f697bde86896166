"""The report: a table of all configurations with the paper's numbers, then one section for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lipschitz_rnn._version import __version__
from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Table, to_html
from lipschitz_rnn.documents.files import write_page
from lipschitz_rnn.documents.numbers import show_duration, show_score, spread
from lipschitz_rnn.experiments.paper import Cell
from lipschitz_rnn.experiments.report.groups import Group, find_runs, group_runs
from lipschitz_rnn.experiments.report.pictures import eigenvalue_tracks, joint_curves, learning_curves
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.history import Run

TITLE = "Lipschitz RNN: results"


def write_report(paths: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Write report.md (with figures/) and report.html for all runs in `paths` into `folder`; the paths written."""
    groups = group_runs(find_runs(paths))
    blocks: list[Block] = [Heading(TITLE, 1), _introduction(groups), *_summary(groups), *joint_curves(groups, "all")]
    for number, group in enumerate(groups, 1):
        blocks += _section(group, f"run-{number}")
    written = {"markdown": folder / "report.md", "html": folder / "report.html"}
    write_page(blocks, written["markdown"])
    atomic_write(written["html"], to_html(TITLE, blocks).encode())
    return written


def _introduction(groups: Sequence[Group]) -> Paragraph:
    seeds = sum(len(group.seeds()) for group in groups)
    return Paragraph(
        f"{len(groups)} configurations, {seeds} trained networks, made by lipschitz-rnn {__version__}. Test scores are "
        "taken once, at the epoch selected on the validation split, and at the last epoch; minimum, mean and maximum "
        "are over seeds. The paper's numbers are the best of its seeds, with minimum, mean and maximum where it "
        "prints them."
    )


def _summary(groups: Sequence[Group]) -> list[Block]:
    header = ["configuration", "metric", "parameters", "seeds", "test min", "mean", "max", "last epoch, mean", "paper"]
    return [
        Table([*header, "time", "hardware"], [_summary_row(group) for group in groups], left=2, words=("hardware",))
    ]


def _summary_row(group: Group) -> list[str]:
    run = group.runs[0]
    scores, last = group.scores("test"), group.scores("test_last")
    shown = [show_score(value, run.percent) for value in spread(scores)]
    parameters = f"{run.result['parameters']:,}" if run.result else "–"
    seeds = str(sum(len(run.settings.seeds) for run in group.runs))
    hardware = "; ".join(dict.fromkeys(str(run.environment.get("device", "?")) for run in group.runs))
    time = show_duration(sum(run.seconds for run in group.runs))
    mean_last = show_score(spread(last)[1], run.percent)
    return [
        group.title,
        run.metric,
        parameters,
        seeds,
        *shown,
        mean_last,
        _paper(group.cell, run.percent),
        time,
        hardware,
    ]


def _paper(cell: Cell | None, percent: bool) -> str:
    if cell is None:
        return "–"
    unit = " %" if percent else ""
    spread = f" ({', '.join(str(value) for value in cell.spread)})" if cell.spread else ""
    size = f", N = {cell.hidden_size}" if cell.unit != "lipschitz" and cell.hidden_size else ""
    return f"{cell.printed}{unit}{spread}{size}"


def _section(group: Group, name: str) -> list[Block]:
    blocks: list[Block] = [Heading(group.title)]
    blocks += [Paragraph(_state(run)) for run in group.runs if run.result is None]
    blocks += [Paragraph(_divergence(record)) for run in group.runs for record in run.of_kind("diverged")]
    pictures = (learning_curves(group, name), eigenvalue_tracks(group, name))
    blocks += [picture for picture in pictures if picture is not None]
    if group.seeds():
        blocks.append(_seed_table(group))
    blocks.append(Table(["setting", "value"], _settings_rows(group), left=2))
    rows = [[str(run.path), show_duration(run.seconds), *_environment(run)] for run in group.runs]
    blocks.append(Table(["run", "time", "hardware", "software", "commit"], rows, left=5))
    return blocks


def _state(run: Run) -> str:
    done = len(run.of_kind("validation"))
    return f"{run.path} is not complete: {done} of {run.settings.epochs} epochs."


def _divergence(record: dict[str, object]) -> str:
    return (
        f"Seed {record.get('seed')} diverged at step {record['step']} (gradient norm {record.get('gradient_norm')}); "
        f"last good checkpoint: {record.get('last_good_checkpoint')}."
    )


def _seed_table(group: Group) -> Table:
    percent = group.runs[0].percent
    rows = []
    for seed in group.seeds():
        epoch = "–" if seed["selected_epoch"] is None else str(seed["selected_epoch"] + 1)
        scores = [show_score(seed[key], percent) for key in ("validation", "test", "test_last")]
        rows.append([str(seed["seed"]), epoch, *scores])
    return Table(["seed", "selected epoch", "validation", "test, selected epoch", "test, last epoch"], rows, left=0)


def _settings_rows(group: Group) -> list[list[str]]:
    """The settings that shaped the result; those of other optimisers and schedules are left out."""
    settings = group.settings
    names = ["task_options", "unit_options", "num_layers", "epochs", "batch_size", "optimiser", "learning_rate"]
    names += {"sgd": ["momentum"], "rmsprop": ["smoothing"]}.get(settings.optimiser, [])
    rises = ["warmup", "final_rate"]
    names += ["schedule"]
    names += {"step": ["decay_factor", "decay_epochs"], "one-cycle": rises, "cosine": rises}.get(settings.schedule, [])
    names += ["weight_decay", "clip", "dropout", "averaging", "precision"]
    rows = []
    for name, value in ((name, getattr(settings, name)) for name in names):
        if value not in (None, (), {}, 0.0):
            rows.append([name.replace("_", " "), _plain(value)])
    return rows


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _environment(run: Run) -> list[str]:
    facts = run.environment
    software = f"PyTorch {facts.get('torch', '?')}, Python {facts.get('python', '?')}"
    return [str(facts.get("device", "?")), software, str(facts.get("commit") or "–")[:12]]
