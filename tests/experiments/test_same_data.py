"""A file that changed between two runs: nothing trains on, merges or compares what is not the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optional import needs
from tiny_sweeps import Stopping
from typer.testing import CliRunner

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.comparison import compare
from lipschitz_rnn.experiments.engines import InProcess
from lipschitz_rnn.experiments.file_runs import file_settings
from lipschitz_rnn.experiments.report import write_report
from lipschitz_rnn.experiments.runner import train
from lipschitz_rnn.experiments.seeds import train_seeds
from lipschitz_rnn.experiments.sweeps import run_sweep
from lipschitz_rnn.experiments.sweeps.reading import make_sweep
from lipschitz_rnn.training import Interrupted, Settings
from lipschitz_rnn.training.folder import RunConflict

pytestmark = needs("pandas", "sklearn")
CHANGED = "its content has changed; put the old file back"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "series.csv")


def write(path: Path, shift: float = 0.1) -> Path:
    lines = ["id,x,y,label", *(f"{n},{n % 2 + shift * t},{t},{'ab'[n % 2]}" for n in range(24) for t in range(4))]
    path.write_text("\n".join(lines) + "\n")
    return path


def tiny(file: Path, **changes: Any) -> Settings:
    options = {"path": str(file), "series": "id", "target": "label", "features": ["x"]}
    return file_settings(options, {"epochs": 1, "hidden_size": 3, "device": "cpu"} | changes)[0]


def folders(path: Path) -> set[str]:
    return {config.parent.name for config in path.rglob("config.json")}


@pytest.mark.parametrize("method", ["grid", pytest.param("random", marks=needs("optuna"))])
def test_a_sweep_does_not_go_on_with_other_data(tmp_path: Path, file: Path, method: str) -> None:
    rates = [0.01, 0.02, 0.05] if method == "grid" else {"low": 0.01, "high": 0.05}
    sweep = make_sweep(
        {
            "sweep": {"at_once": 1} | ({} if method == "grid" else {"method": method, "trials": 3}),
            "settings": {"task": str(file), "hidden_size": 3, "epochs": 1, "seeds": [0], "device": "cpu"},
            "data": {"series": "id", "target": "label", "features": ["x"]},
            "space": {"learning_rate": rates},
        }
    )
    with pytest.raises(Interrupted):
        run_sweep(sweep, tmp_path / "sweep", engine=Stopping(1))
    begun = folders(tmp_path / "sweep")
    write(file, shift=0.5)
    with pytest.raises(RunConflict, match=CHANGED):
        run_sweep(sweep, tmp_path / "sweep")
    assert folders(tmp_path / "sweep") == begun
    write(file)
    assert [each.state for each in run_sweep(sweep, tmp_path / "sweep").trials] == ["complete"] * 3


def test_more_seeds_do_not_train_on_other_data(tmp_path: Path, file: Path) -> None:
    train_seeds(tiny(file, seeds=(0,)), tmp_path / "runs", InProcess())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    write(file, shift=0.5)
    with pytest.raises(RunConflict, match=CHANGED):
        train_seeds(tiny(file, seeds=(0, 1)), tmp_path / "runs", InProcess(), resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    write(file)
    assert len(train_seeds(tiny(file, seeds=(0, 1)), tmp_path / "runs", InProcess(), resume=True).seeds) == 2


def test_the_command_tells_before_it_trains(tmp_path: Path, file: Path) -> None:
    out = str(tmp_path / "runs")
    command = ["train", str(file), "--series", "id", "--target", "label", "--epochs", "1", "-n", "3", "--no-report",
               "--device", "cpu", "--jobs", "1", "-o", out]  # fmt: skip
    assert CliRunner().invoke(app, [*command, "--seeds", "0"]).exit_code == 0
    write(file, shift=0.5)
    done = CliRunner().invoke(app, [*command, "--seeds", "0,1", "--resume"])
    assert (done.exit_code, CHANGED in " ".join(done.output.split())) == (2, True)
    assert folders(tmp_path / "runs") == {"seed-0"}


def test_runs_on_different_contents_are_not_put_side_by_side(tmp_path: Path, file: Path) -> None:
    pytest.importorskip("matplotlib")
    train(tiny(file, seeds=(0,)), tmp_path / "runs" / "first")
    train(tiny(file, seeds=(2,)), tmp_path / "runs" / "second")
    write_report([tmp_path / "runs"], tmp_path / "report")
    write(file, shift=0.5)
    train(tiny(file, seeds=(1,)), tmp_path / "runs" / "third")
    message = r"first and .*third were trained on different contents of series\.csv"
    for put in (lambda: write_report([tmp_path / "runs"], tmp_path / "other"), lambda: compare([tmp_path / "runs"])):
        with pytest.raises(RunConflict, match=message):
            put()
    with pytest.raises(RunConflict, match=message):
        compare([tmp_path / "runs" / "first", tmp_path / "runs" / "third"])
    assert not (tmp_path / "other").exists()
    write_report([tmp_path / "runs" / "third"], tmp_path / "other")
