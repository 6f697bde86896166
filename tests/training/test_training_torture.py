"""A part of `make torture`: runs that are killed, starved and damaged, beside those that nobody disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "torture.py"


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_nothing_is_lost_under_torture() -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "40", "--repeats", "3", "--seed", str(os.getpid())]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills, *others = done.stdout.splitlines()[2:]
    assert "killed: 40" in kills
    assert len(others) == 6
    assert all(line.endswith("resumed, equal: 3 |") for line in others), done.stdout
