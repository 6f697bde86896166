"""Sweeps whose files are damaged, or whose disk is full: told with the way to go on, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from optional import needs
from tiny_sweeps import Stopping, tiny_sweep

from lipschitz_rnn.experiments.sweeps import run_sweep
from lipschitz_rnn.experiments.sweeps.search import Search
from lipschitz_rnn.training import Interrupted, RunError


def test_a_damaged_run_stops_no_other(tmp_path: Path) -> None:
    sweep = tiny_sweep({"learning_rate": [0.01, 0.02, 0.05]}, epochs=1)
    run_sweep(sweep, tmp_path)
    (tmp_path / "runs" / "00000" / "config.json").write_text("{")
    (tmp_path / "runs" / "00001" / "metrics.jsonl").write_bytes(b"\xff\n")
    outcome = run_sweep(sweep, tmp_path)
    assert [each.state for each in outcome.trials] == ["failed", "failed", "complete"]
    assert ["00000/config.json" in (each.error or "") for each in outcome.trials] == [True, False, False]
    assert outcome.winners[0].best.trial.number == 2
    shutil.rmtree(tmp_path / "runs" / "00000")
    assert run_sweep(sweep, tmp_path).trials[0].state == "complete"


@needs("optuna")
@pytest.mark.parametrize("text", [b"{nonsense\n", b"\xff\xfe\n\n", b'{"op_code": 4}\n'])
def test_a_damaged_journal_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "optuna.journal").write_bytes(text)
    with pytest.raises(RunError, match=r"optuna\.journal is damaged .*; restore it from a copy"):
        Search(tiny_sweep({"learning_rate": [0.01]}, sweep={"pruning": "median"}), tmp_path, {})


@needs("optuna")
def test_half_a_line_in_the_journal_is_no_damage(tmp_path: Path) -> None:
    """As a full disk or a crash leaves it: Optuna alone would go on in that line, and never read the file again."""
    sweep = tiny_sweep({"learning_rate": [0.01, 0.02, 0.05]}, sweep={"pruning": "median"}, epochs=1)
    with pytest.raises(Interrupted):
        run_sweep(sweep, tmp_path, engine=Stopping(1))
    journal = tmp_path / "optuna.journal"
    journal.write_bytes(journal.read_bytes()[:-9])
    outcome = run_sweep(sweep, tmp_path)
    assert [each.state for each in outcome.trials] == ["complete"] * 3
    assert sorted(each.trial.point["learning_rate"] for each in outcome.trials) == [0.01, 0.02, 0.05]
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    run_sweep(sweep, tmp_path)


def test_a_full_disk_at_the_end_is_told_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny_sweep({"learning_rate": [0.01]}, epochs=1)

    def full(path: Path, content: bytes) -> None:
        if path.name != "sweep.json":
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr("lipschitz_rnn.experiments.sweeps.running.atomic_write", full)
        with pytest.raises(RunError, match=r"the sweep stopped: .*: No space left on device; its runs are kept"):
            run_sweep(sweep, tmp_path)
    again = Stopping(99)
    assert len(run_sweep(sweep, tmp_path, engine=again).trials) == 1
    assert again.names == []
