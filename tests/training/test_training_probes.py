"""What is noted of every network after an epoch: once, whether it is found at once or beside the training."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_training_nothing_lost import SignalAt, lines
from tiny_tasks import SignTask, tiny_settings
from torch import nn

from lipschitz_rnn.training import Interrupted, Moment, fit, loop
from lipschitz_rnn.training.probing import Probing


def total(models: Sequence[nn.Module]) -> list[dict[str, float]]:
    return [{"total": sum(float(p.detach().abs().sum()) for p in model.parameters())} for model in models]


class Beside(Probing):
    """As on a GPU: the record is collected after the next epoch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pool = ThreadPoolExecutor(1)


def probes(folder: Path) -> list[tuple[int, int, list[float]]]:
    return [(line["epoch"], line["step"], line["total"]) for line in lines(folder) if line["kind"] == "probe"]


@pytest.mark.parametrize("stop", [None, 1, 3, 7])
def test_every_epoch_is_noted_once_however_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int | None
) -> None:
    settings = tiny_settings(seeds=(0, 1), epochs=4)
    fit(settings, SignTask(), tmp_path / "at-once", probe=total)
    expected = probes(tmp_path / "at-once")
    steps = expected[0][1]
    assert [(epoch, step) for epoch, step, _ in expected] == [(k, (k + 1) * steps) for k in range(4)]

    monkeypatch.setattr(loop, "Probing", Beside)
    if stop is not None:
        with pytest.raises(Interrupted):
            fit(settings, SignTask(), tmp_path / "beside", probe=total, watcher=SignalAt(stop, signal.SIGTERM))
    fit(settings, SignTask(), tmp_path / "beside", probe=total, resume=stop is not None)
    assert probes(tmp_path / "beside") == expected


@pytest.mark.parametrize("kind", [Probing, Beside])
def test_a_probe_knows_its_epoch(monkeypatch: pytest.MonkeyPatch, kind: type[Probing]) -> None:
    seen = []

    def probe(models: Sequence[nn.Module], when: Moment) -> list[dict[str, float]]:
        seen.append(when)
        return [{} for _ in models]

    monkeypatch.setattr(loop, "Probing", kind)
    result = fit(tiny_settings(epochs=3), SignTask(), probe=probe)
    assert seen == [Moment(epoch, (epoch + 1) * result.steps // 3) for epoch in range(3)]


def test_a_run_that_dies_with_a_probe_pending_finds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(seeds=(0,), epochs=3)
    fit(settings, SignTask(), tmp_path / "whole", probe=total)
    monkeypatch.setattr(loop, "Probing", Beside)

    class Dies(SignalAt):
        def step(self, done: int) -> None:
            if done == self.at:
                raise RuntimeError("power cut")

    steps = probes(tmp_path / "whole")[0][1]
    with pytest.raises(RuntimeError, match="power cut"):
        fit(settings, SignTask(), tmp_path / "cut", probe=total, watcher=Dies(steps + 1, 0))
    assert probes(tmp_path / "cut") == []
    fit(settings, SignTask(), tmp_path / "cut", probe=total, resume=True)
    assert probes(tmp_path / "cut") == probes(tmp_path / "whole")
