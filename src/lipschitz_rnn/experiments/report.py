"""Turns run folders, finished or not, into one page: units by tasks, then a section for each task.

Runs that differ only in their seeds are merged; a run with variants counts as one run per variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lipschitz_rnn._version import __version__
from lipschitz_rnn.documents.blocks import Block, Details, Heading, Paragraph
from lipschitz_rnn.documents.files import write_page
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.documents.numbers import counted
from lipschitz_rnn.experiments.comparison.collecting import compare_runs
from lipschitz_rnn.experiments.comparison.labels import column_names, row_names
from lipschitz_rnn.experiments.comparison.writing import matrix, pair_blocks
from lipschitz_rnn.experiments.pages.task_section import Group, task_section
from lipschitz_rnn.experiments.results import Record, describe_run
from lipschitz_rnn.experiments.same_data import require_one_content
from lipschitz_rnn.stability.studies.tracking import spectral_curves
from lipschitz_rnn.training.checkpoint import atomic_write
from lipschitz_rnn.training.folder import RunError
from lipschitz_rnn.training.history import Run, find_runs

TITLE = "Lipschitz RNN: results"


def write_report(paths: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Write report.md (with figures/) and report.html for all runs in `paths` into `folder`; returns their paths."""
    runs = find_runs(paths)
    require_one_content(runs)
    groups = group_runs(runs)
    networks = sum(len(group.record.seeds) for group in groups)
    introduction = (
        f"{counted(len(groups), 'configuration')}, {counted(networks, 'trained network')}, made by lipschitz-rnn "
        f"{__version__}. Test scores are taken once, at the epoch selected on the validation split, and at the last "
        "epoch; minimum, mean and maximum are over seeds. The paper's numbers are the best of its seeds, with minimum, "
        "mean and maximum where it prints them."
    )
    page: list[Block] = [Heading(TITLE, 1), Paragraph(introduction), *_units_and_tasks(runs, groups)]
    for number, (title, own) in enumerate(_by_task(groups).items(), 1):
        page += task_section(title, own, f"task-{number}")
    written = {"markdown": folder / "report.md", "html": folder / "report.html"}
    write_page(page, written["markdown"])
    atomic_write(written["html"], to_html(TITLE, page).encode())
    return written


def _by_task(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each task, and of each metric where a task has several; a run without an epoch has none yet."""
    metrics: dict[str, list[str]] = {}
    for group in groups:
        if group.has_curves and group.record.metric not in metrics.setdefault(group.task, []):
            metrics[group.task].append(group.record.metric)
    sections: dict[str, list[Group]] = {}
    for group in groups:
        several = group.has_curves and len(metrics[group.task]) > 1
        sections.setdefault(f"{group.task}, {group.record.metric}" if several else group.task, []).append(group)
    return sections


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups of runs with the same settings apart from seeds and machine, in the order given."""
    groups: list[list[Run]] = []
    for run in runs:
        same = [each for each in groups if set(run.settings.differences(each[0].settings)) <= {"seeds", "log_steps"}]
        if same:
            same[0].append(run)
        else:
            groups.append([run])
    settings = [each[0].settings for each in groups]
    columns = column_names(settings)
    names = row_names(settings, columns)
    return [Group(_merge(each), each, *place) for each, *place in zip(groups, columns, names, strict=True)]


def _merge(runs: Sequence[Run]) -> Record:
    records = [describe_run(run, "", run.title, curves=spectral_curves(run.of_kind("probe"))) for run in runs]
    curves: dict[str, list[list[float | None]]] = {}
    for name, members in ((name, members) for record in records for name, members in record.curves.items()):
        curves.setdefault(name, []).extend([list(member) for member in members])
    seeds = [seed for record in records for seed in record.seeds]
    known = next((record for record in records if record.seeds), records[0])  # one that is unfinished knows less
    return replace(known, seeds=seeds, curves=curves, seconds=sum(record.seconds for record in records))


def _units_and_tasks(runs: Sequence[Run], groups: Sequence[Group]) -> list[Block]:
    """The matrix of `compare`, if there is something to compare and each network counts once."""
    several = len({group.record.setup.unit for group in groups}) > 1 or len({group.task for group in groups}) > 1
    if not several or not any(group.record.scores() for group in groups):
        return []
    try:
        found = compare_runs(runs)
    except (RunError, ValueError, ImportError) as error:  # e.g. without SciPy
        return [Heading("Units and tasks"), Paragraph(f"These runs cannot be compared: {error}.")]
    text = (
        "Mean ± standard deviation over seeds of the test score; the best mean of each task is bold. "
        "`lipschitz-rnn compare` adds ranks, intervals, LaTeX and CSV."
    )
    blocks: list[Block] = [Heading("Units and tasks"), Paragraph(text), matrix(found)]
    return [*blocks, Details("Differences and their p-values", pair_blocks(found))] if found.pairs else blocks
