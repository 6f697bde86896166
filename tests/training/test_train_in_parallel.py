"""Training with the parallel scan: by the command line, and with several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.training.runs import load_run

pytestmark = pytest.mark.slow

UNIT = {"stability": "contracting", "rate": "10", "step_size": "0.3"}
TASK = ["adding", "-t", "length=40", "-t", "train_size=64", "-t", "eval_size=16"]


def train(out: Path, *more: str, **unit: Any) -> list[float]:
    """The losses on validation and test data of every seed."""
    options = [word for name, value in (UNIT | unit).items() for word in ("-u", f"{name}={value}")]
    command = ["train", *TASK, "-n", "5", "--device", "cpu", "--precision", "float64", "-o", str(out), *options, *more]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    seeds = json.loads((out / "result.json").read_text())["seeds"]
    return [seed[name] for seed in seeds for name in ("validation", "test")]


def test_same_result_as_sequentially(tmp_path: Path) -> None:
    sequential = train(tmp_path / "one", "-e", "2")
    parallel = train(tmp_path / "two", "-e", "2", parallel="3")
    assert sequential
    assert parallel == pytest.approx(sequential, rel=1e-4)
    assert train(tmp_path / "two", "-e", "2", "--resume", parallel="3") == parallel


def test_seeds_run_one_by_one_and_keep_the_option(tmp_path: Path) -> None:
    train(tmp_path / "seeds", "-e", "1", "--seeds", "0-1", parallel="auto", tolerance="1e-5")
    for network in load_run(tmp_path / "seeds").networks:
        assert network.unit.parallel == "auto"
        assert network.unit.tolerance == 1e-5
