"""More epochs for a finished run: equal to a run that had them from the start, or refused with the reason."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from test_training_nothing_lost import SignalAt, assert_same_run
from tiny_tasks import SignTask, tiny_settings

from lipschitz_rnn.training import Interrupted, RunError, fit
from lipschitz_rnn.training.folder import RunConflict, read_settings


@pytest.mark.parametrize(
    "changes",
    [{}, {"schedule": "step", "decay_epochs": (1, 4), "optimiser": "sgd"}, {"averaging": 0.1, "dropout": 0.2}],
    ids=["constant", "step", "averaging"],
)
def test_a_prolonged_run_equals_a_long_one_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    short = tiny_settings(epochs=3, seeds=(0, 1), unit="gru", **changes)
    long = dataclasses.replace(short, epochs=6)
    fit(short, SignTask(noise=0.2), tmp_path / "prolonged")
    result = fit(long, SignTask(noise=0.2), tmp_path / "prolonged", resume=True)
    assert result.seeds == fit(long, SignTask(noise=0.2), tmp_path / "whole").seeds
    assert_same_run(tmp_path / "prolonged", tmp_path / "whole")
    assert read_settings(tmp_path / "prolonged").epochs == 6
    assert json.loads((tmp_path / "prolonged" / "result-3-epochs.json").read_text())["steps"] == 3 * 4


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
def test_a_schedule_that_ends_cannot_be_prolonged_and_says_why(tmp_path: Path, schedule: Any) -> None:
    settings = tiny_settings(schedule=schedule)
    fit(settings, SignTask(), tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(RunConflict, match=rf"its {schedule} schedule spreads the learning rate over all 3 epochs"):
        fit(dataclasses.replace(settings, epochs=5), SignTask(), tmp_path, resume=True)
    assert (tmp_path / "result.json").read_bytes() == before
    assert read_settings(tmp_path).epochs == 3


def test_fewer_epochs_and_other_settings_are_still_refused(tmp_path: Path) -> None:
    fit(tiny_settings(), SignTask(), tmp_path)
    with pytest.raises(RunConflict, match="epochs = 3, but this call has 2"):
        fit(tiny_settings(epochs=2), SignTask(), tmp_path, resume=True)
    with pytest.raises(RunConflict, match="learning_rate"):
        fit(tiny_settings(epochs=5, learning_rate=0.5), SignTask(), tmp_path, resume=True)


def test_a_crash_while_prolonging_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is set aside before the settings change: what is left is a run to resume, of either length."""
    fit(tiny_settings(), SignTask(), tmp_path)

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lipschitz_rnn.training.folder.atomic_write", full)
        with pytest.raises(RunError, match="No space left"):
            fit(tiny_settings(epochs=5), SignTask(), tmp_path, resume=True)
    assert read_settings(tmp_path).epochs == 3
    assert fit(tiny_settings(epochs=5), SignTask(), tmp_path, resume=True).steps == 20


def test_what_was_measured_at_the_end_is_set_aside_with_the_result(tmp_path: Path) -> None:
    """The weights change from the first new epoch on; intervals of the old ones would be attached to them."""
    fit(tiny_settings(), SignTask(), tmp_path)
    (tmp_path / "assessment.json").write_text('{"intervals": 1}')
    with pytest.raises(Interrupted):
        fit(tiny_settings(epochs=5), SignTask(), tmp_path, resume=True, watcher=SignalAt(17, signal.SIGTERM))
    assert not (tmp_path / "assessment.json").exists()
    assert (tmp_path / "assessment-3-epochs.json").read_text() == '{"intervals": 1}'
