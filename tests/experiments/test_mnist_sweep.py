"""The sweep on the MNIST page: what decides between candidates, which one was taken, and that shifts are told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from invented_records import invented

from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments.pages.pictures import compare_units
from lipschitz_rnn.experiments.pages.sections import blocks, criterion, readme, sweep
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.experiments.studies.mnist import CANDIDATES, STUDY, tuned_row

SWEEP = "sweep/ordered-mnist/lipschitz/128"


def swept(name: str, tests: Sequence[float] = (0.99, 0.99), late: Sequence[float | None] = ()) -> Record:
    (plan,) = STUDY.plans([f"{SWEEP}/{name}"])
    return invented(plan, tests, late)


def tuned(name: str, options: Mapping[str, Any] | None = None) -> Record:
    """The tuned cell of ordered MNIST, N = 128, as if this candidate had been chosen."""
    study = dataclasses.replace(STUDY, rows=(tuned_row("ordered-mnist", 128, name, unit_options=options),))
    (plan,) = study.plans(groups=["tuned"], changes={"precision": "bfloat16"})
    return invented(plan, [0.994, 0.995])


def rows(records: Sequence[Record]) -> list[list[str]]:
    """Candidate, unit, what it is, chosen, epochs, seeds, last tenth of the epochs, best epoch."""
    lines = to_markdown(sweep(STUDY, records)).splitlines()
    return [line.strip("| ").replace("|  |", "| no |").split(" | ") for line in lines if line.startswith("| sweep/")]


def test_the_last_tenth_of_the_epochs_of_all_seeds_decides() -> None:
    record = swept("average", late=[0.7] * 17 + [0.94, 0.96])  # twenty epochs with the first
    assert criterion(record) == pytest.approx(0.95)
    (first, second) = record.curves["validation_accuracy"]
    unequal = dataclasses.replace(record, curves={"validation_accuracy": [first, [value - 0.1 for value in second]]})
    assert criterion(unequal) == pytest.approx(0.9)
    assert criterion(swept("average", late=[0.98])) == pytest.approx(0.98)  # of two epochs the last one


def test_a_candidate_with_a_diverged_seed_has_no_score() -> None:
    assert criterion(swept("average", late=[0.98] * 9 + [None])) is None
    record = swept("average", late=[0.98] * 10)
    stopped = dataclasses.replace(record, seeds=[record.seeds[0], {**record.seeds[1], "diverged_step": 7}])
    assert criterion(stopped) is None
    good = swept("average-shift-1", late=[0.5] * 10)
    ((name, *_), (_, *last)) = rows([stopped, good])
    assert name == good.name  # a bad score stands before none
    assert last[-2:] == ["–", "98.00"]


def test_one_lucky_epoch_does_not_win() -> None:
    lucky = swept("average", [0.999, 0.999], [0.98] * 10)
    steady = swept("average-shift-1", [0.995, 0.995], [0.985] * 10)
    assert [row[0].rpartition("/")[2] for row in rows([lucky, steady])] == ["average-shift-1", "average"]
    assert [row[-2:] for row in rows([lucky, steady])] == [["98.50", "98.50"], ["98.00", "98.90"]]
    assert "99.9" not in to_markdown(sweep(STUDY, [lucky, steady]))  # test scores have no place there


def test_every_candidate_and_variant_has_its_row() -> None:
    records = [invented(plan, [0.97, 0.98]) for plan in STUDY.plans(["sweep/*/lipschitz/*"])]
    found = rows(records)
    assert len(found) == 2 * sum(max(1, len(candidate.variants)) for candidate in CANDIDATES.values())
    assert {row[5] for row in found} == {"2"}
    assert sum(row[1] == "step_size 0.06" for row in found) == 2
    assert "ordered" in found[0][0]
    assert all("one pixel" in row[2] for row in found if "shift-1" in row[0])
    assert all("two pixels" in row[2] for row in found if "shift-2" in row[0])


@pytest.mark.parametrize(
    ("name", "options", "unit"),
    [
        ("average-shift-1", {}, "the paper's"),
        ("average-shift-1-decay", {}, "the paper's"),
        ("average", {}, "the paper's"),
        ("average-shift-1-units", {"beta": 0.8}, "beta 0.8"),
    ],
)
def test_the_chosen_one_is_marked(name: str, options: Mapping[str, Any], unit: str) -> None:
    records = [invented(plan, [0.97, 0.98]) for plan in STUDY.plans(["sweep"])]
    assert {row[3] for row in rows(records)} == {"no"}  # before the tuned cell has run
    chosen = [row[:2] for row in rows([*records, tuned(name, options)]) if row[3] == "yes"]
    assert chosen == [[f"{SWEEP}/{name}", unit]]


def test_options_of_another_unit_are_compared_among_themselves() -> None:
    plan, slower = STUDY.plans(["sweep/ordered-mnist/antisymmetric/128"])
    (row,) = STUDY.plans(["ordered-mnist/antisymmetric/128"])
    taken = plan.settings.variants[2]
    settings = dataclasses.replace(plan.settings.of_variant(taken), seeds=(0, 1, 2))
    baseline = invented(dataclasses.replace(row, settings=settings), [0.97, 0.98, 0.96])
    found = rows(
        [swept("average", late=[0.9] * 10), *(invented(each, [0.97, 0.98]) for each in (plan, slower)), baseline]
    )
    tried = len(plan.settings.variants) + len(slower.settings.variants)
    assert ["antisymmetric" in line[0] for line in found] == [False] + [True] * tried
    shown = ", ".join(f"{name} {value}" for name, value in taken.items())
    assert [line[1] for line in found if line[3] == "yes"] == [shown]


def test_pages_say_where_images_were_moved() -> None:
    (plan,) = STUDY.plans(["ordered-mnist/lipschitz/128/euler"])
    paper = invented(plan, [0.991, 0.992])
    for page in (partial(blocks, STUDY), partial(readme, STUDY)):
        assert "Training images" not in to_markdown(page([paper, tuned("average")]))
        for name, told in (
            ("average-shift-1", "up to 1 pixel in"),
            ("average-shift-2", "up to 2 pixels in"),
            (
                "average-distort-0.5",
                "up to 7.5°, stretching by up to 7.5 %, shear of up to 7.5 %, then shifts",
            ),
        ):
            assert told in to_markdown(page([paper, tuned(name)]))
    whole = to_markdown(blocks(STUDY, [paper, tuned("average-shift-1")]))
    row = next(line for line in whole.splitlines() if line.startswith("| tuned/") and "adam" in line)
    assert "averaging 0.002, shift 1, beta 0.75" in row


def test_other_units_are_drawn_beside_ours_and_only_then() -> None:
    ours = [invented(plan, [0.991, 0.992]) for plan in STUDY.plans(["ordered-mnist/lipschitz/128"])]
    (lstm,) = (invented(plan, [0.7, 0.98]) for plan in STUDY.plans(["ordered-mnist/lstm/128"]))
    assert "mnist-units" not in to_markdown(blocks(STUDY, ours))
    assert "mnist-units" in to_markdown(blocks(STUDY, [*ours, lstm]))
    drawn = compare_units(STUDY, [*ours[:1], lstm, tuned("average")])
    names = ["lipschitz, N = 128", "lipschitz, tuned, N = 128", "lstm, N = 128"]  # ours first
    text = drawn.svg.decode()
    places = [text.index(f"<!-- {name} -->") for name in names]
    assert places == sorted(places)
