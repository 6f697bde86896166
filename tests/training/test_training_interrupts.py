"""A run that is stopped says how to go on, and what it says works."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from tiny_tasks import SignTask, tiny_settings
from typer.testing import CliRunner

from lipschitz_rnn import tasks
from lipschitz_rnn.cli import app
from lipschitz_rnn.training import Interrupted, Settings, Watcher, fit
from lipschitz_rnn.training.interrupts import resume_command

DIGITS = Settings(task="digits", unit="rnn", hidden_size=3, epochs=1, batch_size=300, device="cpu")


class StopAt(Watcher):
    """Raises or signals at a step, and keeps what it is told."""

    def __init__(self, step: int, number: int | None) -> None:
        self.at, self.number = step, number
        self.notes: list[str] = []

    def step(self, done: int) -> None:
        if done == self.at:
            if self.number is None:
                raise KeyboardInterrupt  # as a second Ctrl-C does
            signal.raise_signal(self.number)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_that_goes_on_is_told_and_works(tmp_path: Path, number: int, code: int) -> None:
    folder = tmp_path / "my runs" / "it's one"
    with pytest.raises(Interrupted) as caught:
        fit(DIGITS, tasks.load("digits"), folder, watcher=StopAt(2, number))
    assert caught.value.exit_code == code
    assert str(caught.value).startswith(f"stopped by {signal.Signals(number).name}; saved as {folder}")
    assert caught.value.go_on is not None
    assert caught.value.go_on in str(caught.value)
    words = shlex.split(caught.value.go_on)
    assert words == ["lipschitz-rnn", "train", "--resume", "--out", str(folder)]
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    assert (folder / "result.json").exists()


def test_an_own_task_is_resumed_from_python(tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as caught:
        fit(tiny_settings(), SignTask(), tmp_path / "run", watcher=StopAt(3, signal.SIGINT))
    result: Any = eval(str(caught.value.go_on), {"fit": fit, "settings": tiny_settings(), "task": SignTask()})
    assert result.steps == 12


def test_a_run_without_a_folder_says_that_nothing_is_saved() -> None:
    with pytest.raises(Interrupted, match="SIGTERM") as caught:
        fit(tiny_settings(), SignTask(), watcher=StopAt(3, signal.SIGTERM))
    assert (caught.value.saved, caught.value.go_on) == (None, None)


def test_a_second_ctrl_c_tells_it_too(tmp_path: Path) -> None:
    watcher = StopAt(6, None)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(tiny_settings(), SignTask(), tmp_path / "run", watcher=watcher)
    told = caught.value.__notes__[0]
    assert told.startswith(f"stopped at once; saved as {tmp_path / 'run'}")
    assert "fit(settings, task," in told
    assert watcher.notes == [told]
    assert fit(tiny_settings(), SignTask(), tmp_path / "run", resume=True).steps == 12


def test_several_processes_go_on_as_several() -> None:
    assert resume_command("runs/two", 2).startswith("torchrun --nproc-per-node 2 -m lipschitz_rnn train --resume")
