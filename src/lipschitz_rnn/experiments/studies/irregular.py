"""Samples at irregular times: what is gained if a unit knows the times, not in the paper."""

from __future__ import annotations

from collections.abc import Sequence

from lipschitz_rnn.documents.blocks import Block, Heading, Paragraph, Table
from lipschitz_rnn.documents.numbers import show_scores
from lipschitz_rnn.experiments.pages.sections import commands, learning, runs
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.study import QUICK, Row, Study
from lipschitz_rnn.units import info

_UNITS = ("lipschitz", "lem", "gru", "gru-d")
_TIMES = {"step": "as steps", "input": "as an input", "ignored": "ignored"}
_WHY = "one setting for all units, the preset of the task"
_PAIRS = [(unit, times) for unit in _UNITS for times in _TIMES if times != "step" or info(unit).timespans]


def _gains(study: Study, records: Sequence[Record]) -> list[Block]:
    """A table for each task: test score of every unit with the times as steps, as an input, and ignored."""
    page: list[Block] = []
    for task in dict.fromkeys(record.setup.task for record in records):
        own = [record for record in records if record.setup.task == task]
        rows = []
        for unit in _UNITS:
            found = {r.setup.task_options["times"]: r for r in own if r.setup.unit == unit}
            shown = [show_scores(found[t].scores(), found[t].percent) if t in found else "–" for t in _TIMES]
            rows += [[unit, *shown]] if found else []
        text = f"Test {own[0].metric}: mean, and the range over {len(own[0].seeds)} seeds."
        page += [Heading(task), Paragraph(text), Table(["unit", *_TIMES.values()], rows, left=1)]
    return page


STUDY = Study(
    name="irregular",
    title="Samples at irregular times",
    about=(
        "Not in the paper. The times between samples set the lengths of the unit's steps, or are one more input, or "
        "are ignored. All units have N = 32 and the same settings, of which only the learning rate was chosen, from "
        "two values on validation data. A gru cannot vary the length of its step; gru-d is made for such data."
    ),
    rows=tuple(
        Row(task, unit, 32, task_options={"times": times}, why=_WHY, group=group)
        for task, group in (("irregular-pendulum", ""), ("irregular-digits", "digits"))
        for unit, times in _PAIRS
    ),
    quick=tuple(
        Row(
            "irregular-pendulum",
            unit,
            16,
            task_options={"times": times},
            changes={"epochs": 8},
            group=QUICK,
            seeds=(0, 1),
            why="small networks and few epochs",
        )
        for unit, times in _PAIRS
    ),
    groups={"digits": "Also digits of which half the pixels are lost."},
    sections=(commands, _gains, learning, runs),
)
