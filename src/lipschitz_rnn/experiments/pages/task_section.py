"""The section of a report for one task: all its configurations in joint tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Details, Heading, Paragraph, Table
from lipschitz_rnn.documents.numbers import show_duration, show_plain, show_score, show_seeds, spread
from lipschitz_rnn.experiments.pages.joint_curves import (
    MOST_CURVES,
    CurvePanel,
    joint_curves,
    percent_curves,
    which_of,
)
from lipschitz_rnn.experiments.pages.sections import machine
from lipschitz_rnn.experiments.paper import find_cell
from lipschitz_rnn.experiments.results import Record, diverged_steps
from lipschitz_rnn.training.history import Run
from lipschitz_rnn.training.settings import Settings

_IN_TITLE = {"task", "unit", "hidden_size", "seeds", "variants", "log_steps"}
_ALWAYS = {"epochs", "batch_size", "optimiser", "learning_rate", "schedule"}
_NOTES = 10  # most lines about runs that went wrong


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds, with one merged record; `name` tells it from the others of its task."""

    record: Record
    runs: list[Run]
    task: str
    name: str

    @property
    def has_curves(self) -> bool:
        """Whether an epoch has ended; before that, the metric of an unfinished run is not known."""
        return any(self.record.curves[f"validation_{self.record.metric}"])


def task_section(title: str, groups: Sequence[Group], picture: str) -> list[Block]:
    blocks: list[Block] = [Heading(title), Paragraph(_hardware(groups)), _scores(groups), *_notes(groups)]
    blocks += [*_learning(title, groups, picture), *_eigenvalues(title, groups, picture)]
    if any(group.record.seeds for group in groups):
        header = ["configuration", "seed", "selected epoch", "validation", "test, selected epoch", "test, last epoch"]
        rows = [_seed(group, seed) for group in groups for seed in group.record.seeds]
        blocks.append(Details("Every seed", [Table(header, rows)]))
    blocks.append(Details("Settings", _settings(groups)))
    rows = [
        [
            group.name,
            show_seeds(run.settings.seeds),
            str(run.path),
            show_duration(run.seconds),
            *machine(run.environment),
        ]
        for group in groups
        for run in group.runs
    ]
    words = ("run", "hardware", "software", "commit")
    header = ["configuration", "seeds", "run", "time", "hardware", "software", "commit"]
    return [*blocks, Details("Runs and hardware", [Table(header, rows, words=words)])]


def _hardware(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    devices = list(dict.fromkeys(str(run.environment.get("device", "?")) for run in runs))
    warning = " Times on different hardware cannot be compared." if len(devices) > 1 else ""
    return f"Trained on {'; '.join(devices)}.{warning}"


def _scores(groups: Sequence[Group]) -> Table:
    """The paper's column is there if the paper has one of the numbers."""
    printed = [_paper(group.record) for group in groups]
    known = any(text != "–" for text in printed)
    metric = next((group for group in groups if group.has_curves), groups[0]).record.metric
    header = ["configuration", "N", "parameters", "seeds", f"{metric}, min", "mean", "max"]
    header += ["last epoch, mean", *(["paper"] if known else []), "time"]
    rows = []
    for group, paper in zip(groups, printed, strict=True):
        record, scores = group.record, (*spread(group.record.scores()), spread(group.record.scores("test_last"))[1])
        size = f"{record.parameters:,}" if record.parameters else "–"
        seeds = str(sum(len(run.settings.seeds) for run in group.runs))
        lost = {line["seed"] for run in group.runs for line in run.of_kind("diverged")}
        seeds += f" ({len(lost)} diverged)" if lost else ""
        shown = [show_score(value, record.percent) for value in scores] + ([paper] if known else [])
        facts = [group.name, str(record.setup.hidden_size), size, seeds]
        rows.append([*facts, *shown, show_duration(record.seconds)])
    return Table(header, rows)


def _paper(record: Record) -> str:
    cell = find_cell(record.setup)
    if cell is None:
        return "–"
    range_ = f" ({', '.join(map(str, cell.spread))})" if cell.spread else ""
    size = f", N = {cell.hidden_size}" if cell.unit != "lipschitz" and cell.hidden_size else ""
    return f"{cell.printed}{' %' if record.percent else ''}{range_}{size}"


def _notes(groups: Sequence[Group]) -> list[Block]:
    """Runs that are not complete, and seeds that diverged."""
    notes = []
    for run in (run for group in groups for run in group.runs):
        if (steps := diverged_steps(run)) is not None:
            notes.append(f"{run.path}: {_all_diverged(steps)}, so it has no scores.")
        elif run.result is None:
            done = len(run.of_kind("validation"))
            notes.append(f"{run.path} is not complete: {done} of {run.settings.epochs} epochs.")
        for line in run.of_kind("diverged"):
            norm, kept = line.get("gradient_norm"), line.get("last_good_checkpoint")
            shown = "not finite" if norm is None else f"{norm:.3g}"
            text = f"{run.path}: seed {line.get('seed')} diverged at step {line['step']} (gradient norm {shown})"
            notes.append(f"{text}; last good checkpoint: {kept}.")
    if not notes:
        return []
    listed = Paragraph("\n".join(f"- {note}" for note in notes))
    return [listed] if len(notes) <= _NOTES else [Details(f"{len(notes)} runs are unfinished or diverged", [listed])]


def _all_diverged(steps: Sequence[int]) -> str:
    """For example: all 3 seeds diverged, at steps 7 to 12."""
    first, last = min(steps), max(steps)
    when = f"at step {first}" if first == last else f"at steps {first} to {last}"
    return f"all {len(steps)} seeds diverged, {when}" if len(steps) > 1 else f"its only seed diverged {when}"


def _seed(group: Group, seed: Mapping[str, Any]) -> list[str]:
    epoch = "–" if seed["selected_epoch"] is None else str(seed["selected_epoch"] + 1)
    scores = [show_score(seed[key], group.record.percent) for key in ("validation", "test", "test_last")]
    return [group.name, str(seed["seed"]), epoch, *scores]


def _settings(groups: Sequence[Group]) -> list[Paragraph | Table]:
    """What all configurations share, and one row for each with what differs."""
    usual = Settings(groups[0].record.setup.task).to_dict()
    values = [_flat(group.record) for group in groups]
    names = dict.fromkeys(name for each in values for name in each)
    shared = [name for name in names if len({show_plain(each.get(name, "–")) for each in values}) == 1]
    shown = [
        name for name in shared if name in _ALWAYS or (name not in _IN_TITLE and values[0][name] != usual.get(name))
    ]
    blocks: list[Paragraph | Table] = []
    if differing := [name for name in names if name not in shared and name not in _IN_TITLE - {"unit", "hidden_size"}]:
        rows = [[group.name, *(show_plain(each.get(name, "–")) for name in differing)]
                for group, each in zip(groups, values, strict=True)]  # fmt: skip
        words = [_words(name) for name in differing if any(isinstance(each.get(name), str) for each in values)]
        blocks.append(Table(["configuration", *(_words(name) for name in differing)], rows, words=words))
    if shown:
        text = "All configurations share:" if len(groups) > 1 else "Settings:"
        rows = [[_words(name), show_plain(values[0][name])] for name in shown]
        blocks += [Paragraph(text), Table(["setting", "value"], rows, left=2)]
    return blocks


def _flat(record: Record) -> dict[str, Any]:
    """The settings, options of unit and task by their own names."""
    options = ("unit_options", "task_options")
    plain = {name: value for name, value in record.settings.items() if name not in options}
    return {**plain, **{name: value for each in options for name, value in record.settings[each].items()}}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _learning(title: str, groups: Sequence[Group], picture: str) -> list[Block]:
    """Training loss and validation metric by epoch, with the paper's number if it is one for all."""
    drawn = [group for group in groups if group.has_curves]
    if not drawn:
        return []
    best = _best_first(drawn)[:MOST_CURVES]
    record = best[0].record
    cells = [find_cell(group.record.setup) for group in best]
    marks = {None if cell is None else (cell.printed, "the paper's test result") for cell in cells}
    unit = " (%)" if record.percent else ""
    panels = [
        CurvePanel("training loss", [(g.name, g.record.curves["train_loss"]) for g in best], logarithmic=True),
        CurvePanel(
            f"validation {record.metric}{unit}",
            [(group.name, _validation(group.record)) for group in best],
            mark=marks.pop() if len(marks) == 1 else None,
        ),
    ]
    caption = f"Learning curves on {title}: {which_of(len(best), len(drawn), 'configuration')}."
    return [joint_curves(f"{picture}-learning", caption, panels)]


def _validation(record: Record) -> list[list[float | None]]:
    return percent_curves(record.curves[f"validation_{record.metric}"], record.percent)


def _best_first(groups: Sequence[Group]) -> list[Group]:
    """By the mean test score; without one last."""
    sign = -1.0 if any(group.record.higher_is_better for group in groups) else 1.0

    def place(group: Group) -> float:
        mean = spread(group.record.scores())[1]
        return float("inf") if mean is None else sign * mean

    return sorted(groups, key=place)


def _eigenvalues(title: str, groups: Sequence[Group], picture: str) -> list[Block]:
    """Largest real parts of the eigenvalues of A and W after every epoch; empty for units without these matrices."""
    drawn = [group for group in groups if group.record.curves.get("A_real_max")]
    if not drawn:
        return []
    best = _best_first(drawn)[:MOST_CURVES]
    panels = [
        CurvePanel(
            f"max Re λ({matrix})",
            [(group.name, group.record.curves[f"{matrix}_real_max"]) for group in best],
            mark=(0.0, "_zero, below which they should stay"),
        )
        for matrix in "AW"
    ]
    which = which_of(len(best), len(drawn), "configuration")
    caption = f"Largest real parts of the eigenvalues of A and W on {title}: {which}."
    return [joint_curves(f"{picture}-eigenvalues", caption, panels)]
