"""The engine ray, on Ray's own test cluster: three nodes on one machine. Skipped where Ray is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from optional import needs
from tiny_sweeps import assert_same_runs, tiny_sweep

from lipschitz_rnn.experiments.sweeps import run_sweep

pytestmark = [needs("ray"), pytest.mark.full]
HERE = Path(__file__).parent
RUNS = int(os.environ.get("LIPSCHITZ_RNN_RAY_RUNS", "60"))


def test_a_sweep_survives_a_lost_node_and_killed_processes(tmp_path: Path) -> None:
    """Every run ends once, with the weights and metrics of an undisturbed one, bit for bit."""
    command = [sys.executable, str(HERE / "ray_campaign.py"), str(tmp_path / "ray"), str(RUNS), "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-5000:]
    print(done.stdout.splitlines()[-1])
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["states"] == ["complete"] * RUNS
    assert told["ended"] == RUNS
    assert told["nodes"] == 1
    assert min(told["SIGKILL"], told["SIGTERM"]) >= RUNS // 30
    space = {"learning_rate": [0.001 * (number + 1) for number in range(RUNS)]}
    run_sweep(tiny_sweep(space, epochs=20), tmp_path / "whole", threads=1)
    assert_same_runs(tmp_path / "ray", tmp_path / "whole")
    lines = (tmp_path / "ray" / "trials.csv").read_text().splitlines()
    assert len(lines) == len(set(lines)) == RUNS + 1


def test_a_study_runs_on_ray(tmp_path: Path) -> None:
    options = ["--quick", "--epochs", "1", "--seeds", "0", "--engine", "ray", "-o", str(tmp_path)]
    command = [sys.executable, "-m", "lipschitz_rnn", "reproduce", "ablation", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-5000:]
    assert list((tmp_path / "results").rglob("*.json"))
