"""What a run folder says about itself stays true: resumed, damaged, or with one of its files gone."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_ensembles import Records
from test_training_nothing_lost import SignalAt, assert_same_run
from tiny_tasks import SignTask, tiny_settings

from lipschitz_rnn import load_run
from lipschitz_rnn.training import Interrupted, RunError, fit, fitting
from lipschitz_rnn.training.checkpoint import read_checkpoint
from lipschitz_rnn.training.folder import RunConflict, RunFolder
from lipschitz_rnn.training.reading import read_metrics


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json*")}


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fit(tiny_settings(), SignTask(), tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(fitting, "describe_environment", lambda device: {"platform": "elsewhere"})
    assert fit(tiny_settings(), SignTask(), tmp_path, resume=True).seeds == first.seeds
    assert contents(tmp_path) == before
    (tmp_path / "result.json").write_text("{")  # what cannot be read is written again
    fit(tiny_settings(), SignTask(), tmp_path, resume=True)
    assert json.loads((tmp_path / "result.json").read_text())["seeds"] == json.loads(before["result.json"])["seeds"]


def test_a_run_that_goes_on_elsewhere_remembers_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, step in (("here", 5), ("here", 7), ("there", 9)):
        monkeypatch.setattr(fitting, "describe_environment", lambda device, at=place: {"platform": at})
        with pytest.raises(Interrupted):
            fit(tiny_settings(), SignTask(), tmp_path, resume=True, watcher=SignalAt(step, signal.SIGTERM))
    assert json.loads((tmp_path / "environment.json").read_text()) == {
        "platform": "there",
        "earlier": [{"platform": "here"}],
    }
    (tmp_path / "environment.json").write_text("{")
    seen = Records()
    fit(tiny_settings(), SignTask(), tmp_path, resume=True, watcher=seen)
    assert json.loads((tmp_path / "environment.json").read_text()) == {"platform": "there"}
    assert "environment.json is not JSON" in seen.notes[0]


def test_a_run_without_its_settings_is_not_overwritten(tmp_path: Path) -> None:
    fit(tiny_settings(), SignTask(), tmp_path)
    (tmp_path / "config.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunConflict, match=r"config\.json is missing, and an existing run is never overwritten"):
        fit(tiny_settings(), SignTask(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    fit(tiny_settings(), SignTask(), tmp_path, resume=True)
    assert load_run(tmp_path, task=SignTask()).networks


def test_selected_weights_that_are_gone_come_back_from_the_checkpoint(tmp_path: Path) -> None:
    fit(tiny_settings(), SignTask(), tmp_path)
    best = tmp_path / "checkpoints" / "best.safetensors"
    tensors, state = read_checkpoint(best)
    for damage in (best.unlink, lambda: best.write_bytes(b"nothing")):
        damage()
        if not best.exists():
            with pytest.raises(RunError, match=r"lacks checkpoints/best\.safetensors; resume the run"):
                load_run(tmp_path, task=SignTask()).networks  # noqa: B018
        fit(tiny_settings(), SignTask(), tmp_path, resume=True)
        again, found = read_checkpoint(best)
        assert found == state
        assert all(torch.equal(again[name], value) for name, value in tensors.items())


class Full(RunFolder):
    """A disk that takes a part of one line only, as the system tells: by the number of bytes it has written."""

    lines = 0

    def _file(self) -> Any:
        file = super()._file()

        class Short:
            fileno = file.fileno

            @staticmethod
            def write(content: bytes) -> int:
                Full.lines += 1
                if Full.lines == 4:
                    return int(file.write(content[:40]))
                if Full.lines == 5:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return int(file.write(content))

        return Short


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Full.lines = 0
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "RunFolder", Full)
        with pytest.raises(RunError, match=r"cannot append to metrics\.jsonl.*No space left on device"):
            fit(tiny_settings(), SignTask(), tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().endswith(b"}\n")
    assert len(read_metrics(tmp_path / "run", 1)) == 3
    fit(tiny_settings(), SignTask(), tmp_path / "run", resume=True)
    fit(tiny_settings(), SignTask(), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_damaged_line_before_the_checkpoint_is_moved_away_on_resuming(tmp_path: Path) -> None:
    """Two lines in one, as earlier versions left them on a full disk: no checkpoint is before them."""
    fit(tiny_settings(), SignTask(), tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole.replace(b"}\n", b"_\n", 2).replace(b"_\n", b"}\n", 1))
    with pytest.raises(RunError, match=r"line 2 of .*resume the run, which moves such lines to metrics\.damaged"):
        read_metrics(tmp_path, 1)
    seen = Records()
    for _ in range(2):
        fit(tiny_settings(), SignTask(), tmp_path, resume=True, watcher=seen)
        assert len(read_metrics(tmp_path, 1)) == len(whole.splitlines()) - 1
    assert (tmp_path / "metrics.damaged").read_bytes() == whole.splitlines()[1][:-1] + b"_\n"
    assert sum("metrics.damaged" in note for note in seen.notes) == 1
    assert len(metrics.read_bytes()) == len(whole)
