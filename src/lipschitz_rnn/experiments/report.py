"""Turns run folders, finished or not, into one page: a table of all configurations, then a section for each.

Runs that differ only in their seeds are merged; a run with variants counts as one run per variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lipschitz_rnn._version import __version__
from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Picture, Table, to_html
from lipschitz_rnn.documents.files import write_page
from lipschitz_rnn.documents.numbers import show_duration, show_plain, show_score, spread
from lipschitz_rnn.drawing import BLUE, GREEN, GREY, draw_curves, new_figure, transparent_svg, whole_epochs
from lipschitz_rnn.experiments.pages.sections import machine
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.results import Record, describe_run
from lipschitz_rnn.stability.studies.tracking import draw_tracks, spectral_curves
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.history import Run, find_runs
from lipschitz_rnn.training.settings import Settings

TITLE = "Lipschitz RNN: results"
_IN_TITLE = {"task", "unit", "hidden_size", "seeds", "variants", "log_steps"}
_ALWAYS = {"epochs", "batch_size", "optimiser", "learning_rate", "schedule"}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds, with one merged record."""

    record: Record
    runs: list[Run]


def write_report(paths: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Write report.md (with figures/) and report.html for all runs in `paths` into `folder`; returns their paths."""
    groups = group_runs(find_runs(paths))
    networks = sum(len(group.record.seeds) for group in groups)
    introduction = (
        f"{len(groups)} configurations, {networks} trained networks, made by lipschitz-rnn {__version__}. Test scores "
        "are taken once, at the epoch selected on the validation split, and at the last epoch; minimum, mean and "
        "maximum are over seeds. The paper's numbers are the best of its seeds, with minimum, mean and maximum where "
        "it prints them."
    )
    page: list[Block] = [Heading(TITLE, 1), Paragraph(introduction), _summary(groups), *_joint_curves(groups)]
    for number, group in enumerate(groups, 1):
        page += _section(group, f"run-{number}")
    written = {"markdown": folder / "report.md", "html": folder / "report.html"}
    write_page(page, written["markdown"])
    atomic_write(written["html"], to_html(TITLE, page).encode())
    return written


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups of runs with the same settings apart from seeds and machine, in the order given."""
    groups: list[list[Run]] = []
    for run in runs:
        same = [each for each in groups if set(run.settings.differences(each[0].settings)) <= {"seeds", "log_steps"}]
        if same:
            same[0].append(run)
        else:
            groups.append([run])
    return [Group(_merge(each), each) for each in groups]


def _merge(runs: Sequence[Run]) -> Record:
    records = [describe_run(run, "", run.title, curves=spectral_curves(run.of_kind("probe"))) for run in runs]
    curves: dict[str, list[list[float | None]]] = {}
    for name, members in ((name, members) for record in records for name, members in record.curves.items()):
        curves.setdefault(name, []).extend([list(member) for member in members])
    for members in curves.values():  # an unfinished run has fewer epochs
        longest = max(map(len, members), default=0)
        members[:] = [[*member, *[None] * (longest - len(member))] for member in members]
    seeds = [seed for record in records for seed in record.seeds]
    known = next((record for record in records if record.seeds), records[0])  # one that is unfinished knows less
    return replace(known, seeds=seeds, curves=curves, seconds=sum(record.seconds for record in records))


def _summary(groups: Sequence[Group]) -> Table:
    header = ["configuration", "metric", "parameters", "seeds", "test min", "mean", "max", "last epoch, mean", "paper"]
    rows = []
    for group in groups:
        record, scores = group.record, (*spread(group.record.scores()), spread(group.record.scores("test_last"))[1])
        seeds = sum(len(run.settings.seeds) for run in group.runs)
        facts = [record.name, record.metric, f"{record.parameters:,}" if record.parameters else "–", str(seeds)]
        shown = [show_score(value, record.percent) for value in scores]
        hardware = "; ".join(dict.fromkeys(str(run.environment.get("device", "?")) for run in group.runs))
        rows.append([*facts, *shown, _paper(record), show_duration(record.seconds), hardware])
    return Table([*header, "time", "hardware"], rows, left=2, words=("hardware",))


def _paper(record: Record) -> str:
    cell = find_cell(record.setup)
    if cell is None:
        return "–"
    range_ = f" ({', '.join(map(str, cell.spread))})" if cell.spread else ""
    size = f", N = {cell.hidden_size}" if cell.unit != "lipschitz" and cell.hidden_size else ""
    return f"{cell.printed}{' %' if record.percent else ''}{range_}{size}"


def _section(group: Group, name: str) -> list[Block]:
    record = group.record
    blocks: list[Block] = [Heading(record.name)]
    for run in group.runs:
        if run.result is None:
            done = len(run.of_kind("validation"))
            blocks.append(Paragraph(f"{run.path} is not complete: {done} of {run.settings.epochs} epochs."))
        for line in run.of_kind("diverged"):
            norm, kept = line.get("gradient_norm"), line.get("last_good_checkpoint")
            text = f"Seed {line.get('seed')} diverged at step {line['step']} (gradient norm {norm})"
            blocks.append(Paragraph(f"{text}; last good checkpoint: {kept}."))
    blocks += [*_learning(record, name), *_eigenvalues(record, name)]
    if record.seeds:
        header = ["seed", "selected epoch", "validation", "test, selected epoch", "test, last epoch"]
        blocks.append(Table(header, [_seed(record, seed) for seed in record.seeds], left=0))
    blocks.append(Table(["setting", "value"], _settings(record), left=2))
    rows = [[str(run.path), show_duration(run.seconds), *machine(run.environment)] for run in group.runs]
    return [*blocks, Table(["run", "time", "hardware", "software", "commit"], rows, left=5)]


def _seed(record: Record, seed: Mapping[str, Any]) -> list[str]:
    epoch = "–" if seed["selected_epoch"] is None else str(seed["selected_epoch"] + 1)
    scores = [show_score(seed[key], record.percent) for key in ("validation", "test", "test_last")]
    return [str(seed["seed"]), epoch, *scores]


def _settings(record: Record) -> list[list[str]]:
    """The settings worth showing: the usual ones, and those that differ from their defaults."""
    usual = Settings(record.setup.task).to_dict()
    return [
        [name.replace("_", " "), show_plain(value)]
        for name, value in record.settings.items()
        if name in _ALWAYS or (name not in _IN_TITLE and value != usual[name])
    ]


def _validation(record: Record) -> tuple[range, list[list[float | None]]]:
    """Epochs and, for every seed, the validation metric, in percent if it is a fraction."""
    curves, scale = record.curves[f"validation_{record.metric}"], 100.0 if record.percent else 1.0
    scaled = [[None if value is None else scale * value for value in curve] for curve in curves]
    return range(1, max(map(len, scaled), default=0) + 1), scaled


def _name_axes(axis: Any, record: Record) -> None:
    axis.set(xlabel="epoch", ylabel=f"validation {record.metric}{' (%)' if record.percent else ''}")
    whole_epochs(axis)


def _learning(record: Record, name: str) -> list[Block]:
    """Training loss and validation metric by epoch, with the paper's number as a dashed line."""
    epochs, scores = _validation(record)
    if not epochs:
        return []
    figure, (left, right) = new_figure(2)
    losses = record.curves["train_loss"]
    draw_curves(left, range(1, max(map(len, losses)) + 1), losses, GREEN, "training loss")
    draw_curves(right, epochs, scores, BLUE, "validation")
    if (cell := find_cell(record.setup)) is not None:
        right.axhline(cell.printed, color=GREY, linestyle="--", linewidth=1.0, label="the paper's test result")
    _name_axes(left, record)
    _name_axes(right, record)
    left.set(ylabel="training loss", yscale="log")
    right.legend(frameon=False, fontsize=8)
    caption = "Learning curves: thin lines are seeds, strong lines their mean."
    return [Picture(f"{name}-learning", transparent_svg(figure), caption)]


def _joint_curves(groups: Sequence[Group]) -> list[Block]:
    """One picture per task with the validation curves of all groups, if there are several."""
    by_task: dict[tuple[str, str], list[Record]] = {}
    for record in (group.record for group in groups if _validation(group.record)[0]):
        by_task.setdefault((record.setup.task, record.metric), []).append(record)
    pictures: list[Block] = []
    for (task, _), records in ((key, records) for key, records in by_task.items() if len(records) > 1):
        figure, (axis,) = new_figure(1, width=7.2, height=3.8)
        for number, record in enumerate(records):  # ten colours, then the same ones dashed
            line = ("-", "--", ":")[number // 10 % 3]
            draw_curves(axis, *_validation(record), f"C{number % 10}", record.name, line)
        _name_axes(axis, records[0])
        axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        caption = f"All runs on {task}: thin lines are seeds, strong lines their mean."
        pictures.append(Picture(f"all-{len(pictures) + 1}", transparent_svg(figure), caption))
    return pictures


def _eigenvalues(record: Record, name: str) -> list[Block]:
    """Largest real parts of the eigenvalues of A and W after every epoch; empty for units without these matrices."""
    if not record.curves.get("A_real_max"):
        return []
    figure, (axis,) = new_figure(1)
    draw_tracks(axis, record.curves)
    whole_epochs(axis)
    caption = "Largest real parts of the eigenvalues of A and W after every epoch."
    return [Picture(f"{name}-eigenvalues", transparent_svg(figure), caption)]
