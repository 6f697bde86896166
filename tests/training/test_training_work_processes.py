"""Work in processes: what fails or is killed is told, and all leave together with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from functools import partial
from pathlib import Path

from lipschitz_rnn.training.processes import run_processes
from lipschitz_rnn.training import Interrupted, Watcher

folder = Path(sys.argv[1])

class Printer(Watcher):
    def __init__(self, name):
        self.name = name

    def note(self, message):
        print(f"{self.name}: {message}", flush=True)

def work(name):
    (folder / f"{name}.part").write_text(str(os.getpid()))
    (folder / f"{name}.part").rename(folder / name)
    while name.startswith("sleeps"):
        time.sleep(0.05)
    return name != "fails"

if __name__ == "__main__":
    try:
        names = sys.argv[2:]
        print("failed", run_processes({name: partial(work, name) for name in names}, Printer, 2, "here"), flush=True)
    except Interrupted as interrupted:
        print(interrupted, flush=True)
        sys.exit(interrupted.exit_code)
"""


def start(folder: Path, *names: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder), *names]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def lives(number: int) -> bool:
    """A process that has ended and only waits to be collected lives no more."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL], ids=["asked", "killed"]
)
def test_processes_leave_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    parent = start(tmp_path, "sleeps-1", "sleeps-2", "later")
    names = [tmp_path / name for name in ("sleeps-1", "sleeps-2")]
    wait_until(lambda: all(name.exists() for name in names))
    children = [int(name.read_text()) for name in names]
    assert all(map(lives, children))
    parent.send_signal(number)
    output = parent.communicate(timeout=60)[0]
    wait_until(lambda: not any(map(lives, children)))
    assert not (tmp_path / "later").exists()
    assert parent.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert ("stopped by SIGTERM; saved as here" in output) == (number == signal.SIGTERM)


@pytest.mark.full
def test_what_fails_or_is_killed_is_told_and_the_others_have_their_turn(tmp_path: Path) -> None:
    parent = start(tmp_path, "sleeps", "fails", "works")
    wait_until(lambda: (tmp_path / "sleeps").exists() and (tmp_path / "works").exists())
    os.kill(int((tmp_path / "sleeps").read_text()), signal.SIGKILL)
    output = parent.communicate(timeout=60)[0]
    assert "sleeps: failed: killed by SIGKILL" in output
    assert "failed ['sleeps', 'fails']" in output
    assert parent.returncode == 0
