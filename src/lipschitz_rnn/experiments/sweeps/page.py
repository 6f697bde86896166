"""The page of a sweep: the winners, and for each group the scores against what varies, curves, and all trials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lipschitz_rnn.documents.blocks import Block, Details, Heading, Paragraph, Picture, Table
from lipschitz_rnn.documents.files import write_files, write_page
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.documents.numbers import counted, show_duration, show_plain, show_score, show_scores
from lipschitz_rnn.drawing import BLUE, RED, new_figure, plain_label, read_panels, transparent_svg
from lipschitz_rnn.experiments.pages.joint_curves import (
    MOST_CURVES,
    CurvePanel,
    joint_curves,
    percent_curves,
    which_of,
)
from lipschitz_rnn.experiments.sweeps.reading import Sweep
from lipschitz_rnn.experiments.sweeps.running import Outcome
from lipschitz_rnn.experiments.sweeps.scoring import Scored, Winner, group_of
from lipschitz_rnn.experiments.sweeps.space import Parameter, show_point
from lipschitz_rnn.training.history import read_run

_STATES = ("complete", "pruned", "diverged", "failed")
_MOST_POINTS = 200  # trials in one picture
_MOST_PANELS = 4  # parameters in one picture


def write_sweep_page(sweep: Sweep, outcome: Outcome, folder: Path) -> tuple[Path, Path]:
    """Write sweep.md (with figures/) and sweep.html into the folder of the sweep; returns their paths."""
    page = sweep_blocks(sweep, outcome, folder)
    written = folder / "sweep.md", folder / "sweep.html"
    write_page(page, written[0])
    write_files({written[1]: to_html("Sweep", page).encode()})
    return written


def sweep_blocks(sweep: Sweep, outcome: Outcome, folder: Path) -> list[Block]:
    """The page. Without matplotlib it has no pictures, and says so."""
    states = [f"{sum(each.state == state for each in outcome.trials)} {state}" for state in _STATES]
    shown = ", ".join(text for text in states if not text.startswith("0 "))
    names = ", ".join(_name(parameter.path) for parameter in sweep.space)
    search = "A grid" if sweep.method == "grid" else f"A {sweep.method} search"
    text = (
        f"{search} over {names}: {counted(len(outcome.trials), 'trial')} ({shown}). Configurations are chosen "
        "on validation data, by the mean over their seeds; only the winners are tested."
    )
    page: list[Block] = [Heading("Sweep", 1), Paragraph(text), Heading("Winners"), _winners(outcome, folder)]
    groups: dict[str, list[Scored]] = {}
    for each in outcome.trials:
        groups.setdefault(show_plain(list(group_of(sweep, each.trial).values())), []).append(each)
    facts = {show_plain(list(winner.group.values())): winner for winner in outcome.winners}
    for number, (title, trials) in enumerate(groups.items(), 1):
        page.append(Heading(title))
        if (winner := facts.get(title)) is None:
            page.append(Paragraph("No trial of this group is complete."))
            continue
        ranked = _best_first(trials, winner.higher_is_better)
        try:
            page += _pictures(sweep, winner, ranked, f"group-{number}")
        except ImportError as error:
            page.append(Paragraph(f"This page has no pictures: {error}."))
        page.append(_trials(sweep, winner, ranked + [each for each in trials if each.score is None], folder))
    return page


def _winners(outcome: Outcome, folder: Path) -> Table | Paragraph:
    if not outcome.winners:
        return Paragraph("There is none: no trial is complete.")
    header = [*map(_name, outcome.winners[0].group), "trial", "metric", "validation", "test", "run"]
    rows = []
    for winner, tests in zip(outcome.winners, outcome.tests, strict=True):
        scores = [show_score(winner.best.score, winner.percent), show_scores(tests, winner.percent)]
        place = os.path.relpath(winner.best.folder, folder)
        group = [show_plain(value) for value in winner.group.values()]
        rows.append([*group, _label(winner.best, winner), winner.metric, *scores, place])
    return Table(header, rows, left=len(header) - 3, words=("run",))


def _best_first(trials: Sequence[Scored], higher: bool) -> list[Scored]:
    """Trials with a score; the earliest of equals first."""
    known = [each for each in trials if each.score is not None]
    return sorted(known, key=lambda each: (each.score or 0.0) * (-1 if higher else 1))


def _trials(sweep: Sweep, winner: Winner, trials: Sequence[Scored], folder: Path) -> Details:
    paths = [parameter.path for parameter in sweep.space]
    header = ["trial", *map(_name, paths), f"validation {winner.metric}", "state", "epochs", "time", "run"]
    rows = []
    for each in trials:
        values = [_value(each.trial.point.get(path)) for path in paths]
        facts = [show_score(each.score, winner.percent), each.state, str(each.epochs), show_duration(each.seconds)]
        rows.append([str(each.trial.number), *values, *facts, os.path.relpath(each.folder, folder)])
    table = Table(header, rows, left=0, words=("state", "run"))
    return Details(f"All {len(rows)} trials, best first", [table])


def _value(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else show_plain(value)


def _name(path: str) -> str:
    return path.rpartition(".")[2].replace("_", " ")


def _pictures(sweep: Sweep, winner: Winner, ranked: Sequence[Scored], name: str) -> list[Picture]:
    pictures = []
    varied = [p for p in sweep.space if len({_value(each.trial.point.get(p.path)) for each in ranked}) > 1]
    label = f"validation {winner.metric}{' (%)' if winner.percent else ''}"
    for start in range(0, len(varied), _MOST_PANELS):
        part = varied[start : start + _MOST_PANELS]
        figure, axes = new_figure(len(part), width=7.2 if len(part) == 1 else 9.2 / len(part), height=3.2)
        for axis in axes[1:]:
            axis.sharey(axes[0])  # the same trials everywhere
        for axis, parameter in zip(axes, part, strict=True):
            _draw_scores(axis, parameter, ranked[:_MOST_POINTS], winner)
        axes[0].set_ylabel(label)
        svg = transparent_svg(figure)
        which = which_of(min(len(ranked), _MOST_POINTS), len(ranked), "trial")
        caption = f"Validation score against what varies: {which}; the best is red."
        pictures.append(Picture(f"{name}-scores-{start // _MOST_PANELS + 1}", svg, caption, read_panels(figure)))
    best = ranked[:MOST_CURVES]
    curves = [(_label(each, winner), _curves(each, winner)) for each in best]
    if any(any(each) for _, each in curves):
        caption = f"Learning curves: {which_of(len(best), len(ranked), 'trial')}."
        pictures.append(joint_curves(f"{name}-learning", caption, [CurvePanel(label, curves)]))
    return pictures


def _label(scored: Scored, winner: Winner) -> str:
    """The number of a trial and its values, without those of its group."""
    point = {path: value for path, value in scored.trial.point.items() if path not in winner.group}
    return f"{scored.trial.number}: {show_point(point)}"


def _draw_scores(axis: Any, parameter: Parameter, ranked: Sequence[Scored], winner: Winner) -> None:
    """One dot a trial, the best drawn last; values that are no numbers stand beside each other."""
    shown = [each for each in ranked if parameter.path in each.trial.point]
    values = [each.trial.point[parameter.path] for each in shown]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = list(dict.fromkeys(map(str, values)))
    places = values if numeric else [names.index(str(value)) for value in values]
    for each, place in reversed(list(zip(shown, places, strict=True))):
        best = each is ranked[0]
        look: Mapping[str, Any] = {"color": RED if best else BLUE, "alpha": 1.0 if best else 0.6, "linestyle": "none"}
        height = (100.0 if winner.percent else 1.0) * (each.score or 0.0)
        axis.plot([place], [height], marker="o", markersize=5, label=plain_label(_label(each, winner)), **look)
    axis.set_xlabel(_name(parameter.path))
    if not numeric:
        axis.set_xticks(range(len(names)), map(plain_label, names))
        axis.margins(x=0.2)
    elif parameter.log and min(values) > 0:
        axis.set_xscale("log")


def _curves(scored: Scored, winner: Winner) -> list[list[float | None]]:
    """The validation curves of a trial's seeds; a run may hold several trials."""
    own = scored.trial.settings
    for run in read_run(scored.folder).by_variant():
        if run.settings.unit_options == own.unit_options:
            return percent_curves(run.curve("validation", winner.metric)[1], winner.percent)
    return []
