"""Networks without a finite validation score: no scores, no place in averages, and an error if no other is left."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_ensembles import Records
from tiny_tasks import NextValue, tiny_settings
from torch import Tensor, nn

from lipschitz_rnn import load_run
from lipschitz_rnn.experiments.comparison import compare
from lipschitz_rnn.experiments.left_out import left_out_note, require_validated
from lipschitz_rnn.experiments.results import scores_of
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training import RunError, Settings, build_model, fit
from lipschitz_rnn.training.reading import read_json, read_metrics
from lipschitz_rnn.training.settings import Member

BAD = (1, 4)


class Blind(nn.Module):
    """A network that gives NaN whenever it is evaluated, as one does whose weights grew beyond all bounds."""

    def __init__(self, network: nn.Module, bad: bool) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("added", torch.tensor(torch.nan if bad else 0.0))

    def forward(self, inputs: Tensor, lengths: Any = None, state: Any = None, keep: Any = None) -> tuple[Tensor, Any]:
        outputs, after = self.network(inputs, lengths, state, keep)
        return (outputs if self.training else outputs + self.added), after


def blind(settings: Settings, task: Task, seed: int) -> nn.Module:
    return Blind(build_model(settings, task, seed), seed in BAD)


def settings_of(*seeds: int, **changes: Any) -> Settings:
    return tiny_settings(task="next-value", seeds=seeds, log_steps=1, **changes)


def test_they_have_no_scores_and_the_others_keep_theirs(tmp_path: Path) -> None:
    seen = Records()
    result = fit(settings_of(0, 1, 2, 4), NextValue(), tmp_path, build=blind, watcher=seen)
    assert result.validated == (True, False, True, False)
    for seed in result.seeds:
        scores = (seed.selected_epoch, seed.validation, seed.test, seed.test_last)
        assert seed.diverged_step is None
        assert all((score is None) == (seed.seed in BAD) for score in scores), seed
    tested = read_metrics(tmp_path, 4)[-1]
    assert tested["kind"] == "test"
    assert [value is None for value in tested["selected"]] == [False, True, False, True]
    run = load_run(tmp_path, build=blind, task=NextValue())
    assert run.validated() == result.validated
    assert run.validated("last") == (True,) * 4
    ((cell,),) = (compare([tmp_path]).cells.values(),)
    assert [seed for seed, score in cell.scores.items() if score is None] == list(BAD)
    assert cell.diverged == 2


def test_if_none_is_left_the_reason_is_told(tmp_path: Path) -> None:
    result = fit(settings_of(1, 4), NextValue(), tmp_path, build=blind)
    assert not any(result.validated)
    message = "none of its 2 networks has a finite validation score; train again with a lower learning rate"
    with pytest.raises(RunError, match=message):
        load_run(tmp_path, build=blind).networks  # noqa: B018
    with pytest.raises(RunError, match=message):
        require_validated(tmp_path, result.validated)


def test_a_run_of_no_epochs_has_the_scores_of_its_initial_weights() -> None:
    result = fit(settings_of(0, epochs=0), NextValue())
    assert result.validated == (True,)
    assert result.seeds[0].test is not None
    assert scores_of([dataclasses.asdict(seed) for seed in result.seeds]) == [result.seeds[0].test]


def test_scores_of_initial_weights_that_earlier_versions_recorded_do_not_count(tmp_path: Path) -> None:
    fit(settings_of(0, 1), NextValue(), tmp_path, build=blind)
    seeds = read_json(tmp_path / "result.json")["seeds"]
    seeds[1]["test"] = 0.001
    assert scores_of(seeds) == [seeds[0]["test"]]


def test_the_line_about_them() -> None:
    members = [Member(0), Member(3), Member(7)]
    assert left_out_note(members, (True,) * 3) == ""
    one = "1 of 3 networks has no finite validation score and is left out: seed 3"
    assert left_out_note(members, (True, False, True)) == one
    two = "2 of 3 networks have no finite validation score and are left out: seeds 0, 7"
    assert left_out_note(members, (False, True, False)) == two
    variants = [Member(0, {"beta": 0.5}), Member(0, {"beta": 0.9})]
    assert left_out_note(variants, (True, False)).endswith("left out: beta=0.9, seed 0")
