"""One call at a time holds the folder of several runs, and what stops it is told with the way to go on."""

import signal
from pathlib import Path

import pytest

from lipschitz_rnn.experiments.shared_folder import hold_folder
from lipschitz_rnn.training import Interrupted, RunError


def stop(lock: Path, problem: Exception | None = None) -> None:
    with hold_folder(lock, "sweep", "the same command"):
        if problem is not None:
            raise problem


def test_one_call_at_a_time_and_the_next_one_after_it(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "folder" / "sweep.lock"
    message = rf"{lock.parent} is in use by another sweep; wait for it"
    with hold_folder(lock, "sweep", "the same command"), pytest.raises(RunError, match=message):
        stop(lock)
    stop(lock)


def test_what_stops_it_is_told_and_the_folder_is_free_again(tmp_path: Path) -> None:
    lock = tmp_path / "sweep.lock"
    with pytest.raises(Interrupted, match=rf"saved as {tmp_path}. Resume with: the same command") as stopped:
        stop(lock, Interrupted(signal.SIGTERM))
    assert stopped.value.exit_code == 143
    with pytest.raises(RunError, match=r"the sweep stopped: file: No space left.*the same command goes on"):
        stop(lock, OSError(28, "No space left on device", "file"))
    with pytest.raises(ZeroDivisionError):
        stop(lock, ZeroDivisionError())
    stop(lock)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=rf"cannot write to {tmp_path / 'file'}: .*; choose another --out"):
        stop(tmp_path / "file" / "sweep.lock")
