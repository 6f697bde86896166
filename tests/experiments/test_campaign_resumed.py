"""A campaign stopped in the middle of its second run and resumed: equal to one that nothing stopped."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lipschitz_rnn.experiments.campaign import Campaign, Plan
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import Record
from lipschitz_rnn.training import Interrupted, Watcher
from lipschitz_rnn.training.runs import load_run


class StopAt(Watcher):
    """Sends this process a signal, as Ctrl-C does, after some steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, done: int) -> None:
        if done == self._step:
            signal.raise_signal(signal.SIGINT)


def plans() -> list[Plan]:
    common = {"epochs": 2, "hidden_size": 4, "seeds": (0, 1), "batch_size": 128, "dropout": 0.2, "device": "cpu"}
    names = {"first": "lipschitz", "second": "antisymmetric", "third": "lipschitz"}
    return [
        Plan("test", name, "paper", preset_settings("digits", changes={**common, "unit": unit}), "")
        for name, unit in names.items()
    ]


def untimed(record: Record) -> Record:
    return replace(record, seconds=0.0)


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole, failed = Campaign(tmp_path / "whole", tmp_path / "whole" / "results").run(plans(), lambda name: Watcher())
    assert not failed
    stopped = Campaign(tmp_path / "cut", tmp_path / "cut" / "results")
    with pytest.raises(Interrupted):
        stopped.run(plans(), lambda name: StopAt(13) if name == "second" else Watcher())
    assert (tmp_path / "cut" / "first" / "result.json").exists()
    assert not (tmp_path / "cut" / "second" / "result.json").exists()
    assert not (tmp_path / "cut" / "third").exists()
    resumed, failed = replace(stopped, resume=True).run(plans(), lambda name: Watcher())
    assert not failed
    assert [untimed(record) for record in resumed] == [untimed(record) for record in whole]
    for plan in plans():
        for one, other in zip(
            *(load_run(tmp_path / out / plan.name).networks for out in ("whole", "cut")), strict=True
        ):
            assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
