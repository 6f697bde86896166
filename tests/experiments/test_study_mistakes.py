"""Mistakes in a study of one's own are told before anything trains, and what it asks for is done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lipschitz_rnn.experiments.campaign import Campaign, Measures, Plan
from lipschitz_rnn.experiments.reproduce import reproduce
from lipschitz_rnn.experiments.study import BASELINES, QUICK, Row, Study

ONE = {"epochs": 1}


def make(*rows: Row, **fields: Any) -> Study:
    return Study(**{"name": "own", "title": "Own", "about": "A study.", "rows": rows, "seeds": (0,), **fields})


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (("a", "a"), "digits/a"),  # the same folder: the second would be taken for the first, already complete
        (("a/b", "a-b"), "digits/a-b"),  # the same file of results
        (("α = 1",), "α = 1"),  # no name of a file
    ],
)
def test_names_that_would_lose_a_run_are_refused(labels: tuple[str, ...], word: str) -> None:
    study = make(*(Row("digits", "lstm", size, label=label) for size, label in enumerate(labels, 3)))
    with pytest.raises(ValueError, match=word):
        study.plans()


def test_one_task_for_all_rows_cannot_give_two_rows_one_name() -> None:
    study = make(Row("digits", "lstm", 3), Row("adding", "lstm", 3), options=("task",))
    with pytest.raises(ValueError, match="other/copying/lstm/3"):
        study.plans(options={"task": "copying"})


def test_groups_are_known() -> None:
    with pytest.raises(ValueError, match="typo"):
        make(Row("digits", "lstm", 3, group="typo"), groups={BASELINES: "Also others."})
    with pytest.raises(ValueError, match="typo"):
        make(Row("digits", "lstm", 3)).plans(groups=["typo"])
    with pytest.raises(ValueError, match=QUICK):  # it would be shown among the paper's rows
        make(Row("digits", "lstm", 3), quick=(Row("digits", "lstm", 2),))


def test_a_decay_belongs_to_the_epochs_beside_it() -> None:
    own = Row("digits", changes={"epochs": 20, "schedule": "step", "decay_epochs": (10,)})
    assert own.settings((0,), {}).decay_epochs == (10,)
    assert own.settings((0,), {"epochs": 40}).decay_epochs == (20,)
    preset = Row("ordered-mnist", changes={"epochs": 50})  # the paper decays after 90 of 100
    assert preset.settings((0,), {}).decay_epochs == (45,)


class Counted(Measures):
    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        return {"answer": 42}


def test_the_measures_of_a_study_are_taken_without_naming_them_twice(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    study = make(Row("digits", "lstm", 2, changes=ONE), measures=Counted())
    outcome = reproduce(study, Campaign(tmp_path, tmp_path / "results"), study.plans(changes={"device": "cpu"}))
    assert outcome.records[0].measures == {"answer": 42}
