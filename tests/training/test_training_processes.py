"""Two processes train what one trains."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_training_nothing_lost import lines, newest
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.folder import RunFolder
from lipschitz_rnn.training.parallel import choose_device
from lipschitz_rnn.training.runs import load_run
from lipschitz_rnn.training.streams import Shard

SCRIPT = Path(__file__).with_name("two_processes.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def launch(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_processes_equal_one_with_the_same_global_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(*TORCHRUN, str(SCRIPT), str(tmp_path / "two"))
    monkeypatch.setattr("sys.argv", [str(SCRIPT), str(tmp_path / "one")])
    monkeypatch.setattr(RunFolder, "save", RunFolder.save)  # the script makes it slow
    runpy.run_path(str(SCRIPT))
    for task in ("sign", "next-value", "noisy", "uneven", "muon", "letters"):
        two, one = newest(tmp_path / "two" / task)[0], newest(tmp_path / "one" / task)[0]
        assert two.keys() == one.keys()
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}")
        first, second = lines(tmp_path / "two" / task), lines(tmp_path / "one" / task)
        assert [(r["kind"], r["step"]) for r in first] == [(r["kind"], r["step"]) for r in second]


@pytest.mark.full
def test_the_command_line_under_torchrun_equals_one_process(tmp_path: Path) -> None:
    command = ["train", "digits", "--task-option", "steps=8", "-e", "1", "-n", "8"]
    command += ["--precision", "float64", "--device", "cpu", "--out"]
    launch(*TORCHRUN, "-m", "lipschitz_rnn", *command, str(tmp_path / "two"))
    done = CliRunner().invoke(app, [*command, str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    two, one = newest(tmp_path / "two")[0], newest(tmp_path / "one")[0]
    for name, value in one.items():
        if name.startswith(("parameters/", "best/", "generators/")):
            torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-8)


def test_shares_cover_a_batch_once() -> None:
    values = torch.arange(14).view(2, 7)
    shards = [Shard(rank, 3).cut(values, 1) for rank in range(3)]
    assert torch.equal(torch.cat(shards, 1), values)
    assert Shard().cut(values, 1) is values


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'toaster'"):
        choose_device("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            choose_device("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_run_from_a_gpu_is_used_on_a_machine_without_one(tmp_path: Path) -> None:
    train(Settings(task="digits", hidden_size=4, epochs=1), tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"device": "auto"', '"device": "cuda:1"'))
    run = load_run(tmp_path / "run")
    assert run.settings.device == "cuda:1"
    _, scores = run.evaluate()
    assert scores
    with pytest.raises(ValueError, match="no CUDA device"):
        run.evaluate(device="cuda")
