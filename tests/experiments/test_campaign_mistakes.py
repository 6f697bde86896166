"""What would spoil a campaign is found before it trains; what fails in one run stops no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.commands.reproduce_list import inventory
from lipschitz_rnn.documents.blocks import Table
from lipschitz_rnn.documents.files import fill_marks
from lipschitz_rnn.documents.html import to_html
from lipschitz_rnn.experiments.campaign import Campaign, Measures, Plan
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.report import group_runs
from lipschitz_rnn.experiments.reproduce import reproduce
from lipschitz_rnn.experiments.results import ResultsError, read_record, read_records
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.experiments.studies import STUDIES
from lipschitz_rnn.experiments.study import Row, Study
from lipschitz_rnn.training.history import find_runs

ROOT = Path(__file__).parents[2]


def test_records_that_cannot_be_read_are_told_before_the_training(tmp_path: Path) -> None:
    results = tmp_path / "results" / "cifar"
    results.mkdir(parents=True)
    (results / "broken.json").write_text("{")
    done = CliRunner().invoke(
        app, ["reproduce", "cifar", "--quick", "-o", str(tmp_path / "out"), "--results", str(tmp_path / "results")]
    )
    assert done.exit_code == 1
    assert "broken.json" in "".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_settings_that_are_not_known_are_told_with_their_file(tmp_path: Path) -> None:
    values = json.loads((ROOT / "results/cifar/ordered-cifar10-lipschitz-128-euler.json").read_text())
    values["settings"]["from_the_future"] = 1
    path = tmp_path / "later.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ResultsError, match=r"later\.json.*from_the_future"):
        read_record(path)


def test_the_list_takes_records_of_tasks_that_are_not_imported(tmp_path: Path) -> None:
    values = json.loads((ROOT / "results/cifar/ordered-cifar10-lipschitz-128-euler.json").read_text())
    values |= {"study": "own", "name": "my-own/x", "settings": {**values["settings"], "task": "my-own"}}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "my-own-x.json").write_text(json.dumps(values))
    assert len(read_records(tmp_path)) == 1
    assert all(entry.seconds is None for entry in inventory(STUDIES.values(), tmp_path))


def test_each_only_of_all_studies_must_match() -> None:
    arguments = ["reproduce", "all", "--only", "cifar/ordered-cifar10", "--only", "typo", "--dry-run"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "'typo'" in done.output


class Faulty(Measures):
    def of_run(self, folder: Path, plan: Plan) -> Mapping[str, Any]:
        return {"first": {}["missing"]} if plan.name.endswith("/2") else {}


def test_a_fault_in_own_code_stops_no_other_run(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    rows = tuple(Row("digits", "lstm", size, changes={"epochs": 1}) for size in (2, 3))
    study = Study("own", "Own", "A study.", rows, seeds=(0,), measures=Faulty())
    outcome = reproduce(study, Campaign(tmp_path, tmp_path / "results"), study.plans(changes={"device": "cpu"}))
    assert outcome.failed == ["digits/lstm/2"]
    assert [record.name for record in outcome.records] == ["digits/lstm/3"]


def test_a_cell_with_a_line_break_stays_in_its_table() -> None:
    table = Table(["run", "why"], [["a", "one\n\n# two | three"]], left=2)
    assert table.markdown().count("\n") == 2
    html = to_html("t", [table])
    assert "<h1>" not in html
    assert "<td>one  # two | three</td>" in html


def test_marks_may_name_any_study() -> None:
    text = "<!-- results:my-own -->\nold\n<!-- /results:my-own -->\n"
    assert fill_marks(text, str.upper) == "<!-- results:my-own -->\nMY-OWN<!-- /results:my-own -->\n"


def test_a_group_takes_its_facts_from_a_run_that_is_complete(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    train(preset_settings("digits", changes={"unit": "lstm", "hidden_size": 2, "epochs": 1, "device": "cpu"}), tmp_path)
    (whole,) = find_runs([tmp_path])
    (group,) = group_runs([replace(whole, result=None), whole])
    assert group.record.parameters == (whole.result or {})["parameters"] > 0
    assert group.record.higher_is_better


def test_a_run_in_which_all_networks_diverge_has_a_record_and_is_not_repeated(tmp_path: Path) -> None:
    class Counting(Measures):
        trained = 0

        def train(self, plan: Plan, *arguments: Any) -> None:
            Counting.trained += 1
            super().train(plan, *arguments)

    row = Row("digits", hidden_size=4, changes={"epochs": 1, "optimiser": "sgd", "learning_rate": 1e30, "clip": None})
    study = Study("wild", "Wild", "Diverges.", (row,), seeds=(3, 5))
    for resume in (False, True):
        campaign = Campaign(tmp_path, tmp_path / "results", resume, measures=Counting())
        outcome = reproduce(study, campaign, study.plans())
        assert not outcome.failed
        (record,) = outcome.records
        assert record.metric == "accuracy"
        assert [(seed["seed"], seed["test"]) for seed in record.seeds] == [(3, None), (5, None)]
        assert all(seed["diverged_step"] >= 0 for seed in record.seeds)
    assert Counting.trained == 1
