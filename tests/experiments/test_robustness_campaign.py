"""The robustness campaign: networks measured in processes or in turn, one that fails, and units that join later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lipschitz_rnn.commands.progress import line_watcher
from lipschitz_rnn.documents.blocks import to_markdown
from lipschitz_rnn.experiments import measured_network
from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.pages.sections import blocks
from lipschitz_rnn.experiments.results import Record, read_records
from lipschitz_rnn.experiments.studies.robustness import QUICK_METHOD, STUDY, AtTargetLoss
from lipschitz_rnn.experiments.target_loss import lowest_common_loss
from lipschitz_rnn.robustness.measuring import Method, measure
from lipschitz_rnn.training import Watcher

# With three units the full Hessian is formed, so that every number repeats to the last digit.
TINY = replace(QUICK_METHOD, attacked=10, curved=40, noises=1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny_plans(*units: str, **changes: Any) -> list[Plan]:
    values = {"hidden_size": 3, "epochs": 2, "batch_size": 64, "device": "cpu"}
    return STUDY.plans(units, quick=True, seeds=(0, 1), changes=values | changes)


def campaign(out: Path, method: Method = TINY, jobs: int = 1) -> Campaign:
    return Campaign(out, out / "results", resume=True, jobs=jobs, measures=AtTargetLoss(method))


class Heard:
    """Keeps all notes of a campaign."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def run(self, campaign: Campaign, plans: Sequence[Plan]) -> tuple[list[Record], list[str]]:
        return campaign.run(plans, self.of)

    def of(self, name: str) -> Watcher:
        watcher = Watcher()
        watcher.note = lambda message: self.notes.append(f"{name}: {message}")  # type: ignore[method-assign]
        return watcher

    def measured(self) -> list[str]:
        return [note.split(":")[0].rpartition("/")[2] for note in self.notes if note.endswith(": measuring")]


def shown(record: Record) -> str:
    """All that may not depend on how many processes there were."""
    measures = {name: value for name, value in record.measures.items() if name != "cells_at_once"}
    return json.dumps([measures, record.seeds, record.curves], sort_keys=True)


@pytest.mark.full
@pytest.mark.parametrize("units", [["lipschitz"], ["lipschitz", "urnn"]])
def test_processes_measure_what_one_process_measures(units: list[str], tmp_path: Path) -> None:
    plans = tiny_plans(*units)
    alone, _ = campaign(tmp_path / "alone").run(plans, line_watcher)
    shutil.copytree(tmp_path / "alone", tmp_path / "together", ignore=shutil.ignore_patterns("measures", "results"))
    together, failed = campaign(tmp_path / "together", jobs=2).run(plans, line_watcher)
    assert failed == []
    assert [shown(record) for record in together] == [shown(record) for record in alone]
    assert [record.measures.get("cells_at_once") for record in alone] == [None] * len(units)
    assert [record.measures.get("cells_at_once") for record in together] == [2] * len(units)
    assert [each["seed"] for each in together[0].measures["taken"]] == [0, 1]
    assert "(2 at once)" in to_markdown(blocks(STUDY, together))


def test_one_network_that_fails_is_told_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, calls = tiny_plans("lipschitz"), iter((True, False))

    def fails_once(*arguments: Any, **options: Any) -> dict[str, Any]:
        if next(calls, False):
            raise ValueError("the loss is nan")
        return measure(*arguments, **options)

    monkeypatch.setattr(measured_network, "measure", fails_once)
    heard = Heard()
    (record,), failed = heard.run(campaign(tmp_path), plans)
    assert failed == ["quick/digits/lipschitz, seed 0"]
    assert "quick/digits/lipschitz, seed 0: failed: the loss is nan" in heard.notes
    assert [each["seed"] for each in record.measures["taken"]] == [1]
    assert "| Lipschitz | 1 of 2 |" in to_markdown(blocks(STUDY, [record]))
    again = Heard()
    (whole,), failed = again.run(campaign(tmp_path), plans)
    assert (again.measured(), failed) == (["lipschitz, seed 0"], [])
    assert whole.measures["networks"][1:] == record.measures["networks"]


def test_a_network_that_diverged_at_once_cannot_be_measured(tmp_path: Path) -> None:
    heard, out = Heard(), campaign(tmp_path)
    plans = tiny_plans("lipschitz")
    out.complete(plans[0], heard.of)
    metrics = tmp_path / plans[0].name / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lost = [line | {"loss": [None, line["loss"][1]]} if line["kind"] == "train" else line for line in lines]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lost))
    (record,), failed = heard.run(out, plans)
    assert failed == ["quick/digits/lipschitz, seed 0"]
    assert any("seed 0: failed: the network diverged in its first epoch" in note for note in heard.notes)
    assert [each["seed"] for each in record.measures["taken"]] == [1]


def test_a_unit_that_joins_later_is_compared_at_the_loss_of_the_table(tmp_path: Path) -> None:
    """Left out with --only, added with --resume, alone or with all: the target does not move."""
    table = tiny_plans("lipschitz", "antisymmetric")
    before, _ = Heard().run(campaign(tmp_path), table)
    (target,) = {record.measures["method"]["target_loss"] for record in before}
    assert target == lowest_common_loss([tmp_path / plan.name for plan in table])
    joined = Heard()
    (unitary,), _ = joined.run(campaign(tmp_path), tiny_plans("urnn"))
    assert unitary.measures["method"]["target_loss"] == target
    assert lowest_common_loss([tmp_path / unitary.name]) != target  # its own would be another one
    assert joined.measured() == ["urnn, seed 0", "urnn, seed 1"]
    whole = Heard()
    records, _ = whole.run(campaign(tmp_path), tiny_plans("lipschitz", "antisymmetric", "urnn"))
    assert whole.measured() == []
    assert {record.name: shown(record) for record in records} == {
        record.name: shown(record) for record in [*before, unitary]
    }
    assert len(read_records(tmp_path / "results")) == 3


def test_another_target_measures_only_networks_of_another_epoch(tmp_path: Path) -> None:
    plans = tiny_plans("urnn")
    (record,), _ = Heard().run(campaign(tmp_path), plans)
    epochs = [each["epoch"] for each in record.measures["taken"]]
    assert epochs == [1, 1]
    lower, higher, other = Heard(), Heard(), Heard()
    (low,), _ = lower.run(campaign(tmp_path, replace(TINY, target_loss=0.0)), plans)
    assert (lower.measured(), [each["reached"] for each in low.measures["taken"]]) == ([], [False, False])
    higher.run(campaign(tmp_path, replace(TINY, target_loss=100.0)), plans)
    assert higher.measured() == ["urnn, seed 0", "urnn, seed 1"]
    other.run(campaign(tmp_path, replace(TINY, target_loss=100.0, noises=2)), plans)
    assert other.measured() == ["urnn, seed 0", "urnn, seed 1"]


@pytest.mark.full
def test_records_at_different_losses_are_not_passed_off_as_comparable(tmp_path: Path) -> None:
    first, _ = Heard().run(campaign(tmp_path, replace(TINY, target_loss=9.0)), tiny_plans("lipschitz"))
    second, _ = Heard().run(campaign(tmp_path, replace(TINY, target_loss=5.0)), tiny_plans("antisymmetric"))
    assert "at most 5 or 9, **so not all are compared at the same loss**" in to_markdown(
        blocks(STUDY, [*first, *second])
    )
    assert "**so not all are compared" not in to_markdown(blocks(STUDY, first))
