"""Networks without a finite validation score in runs on a file: left out of scores, predictions, intervals, exports."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from optional import needs
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app
from lipschitz_rnn.data import load_model
from lipschitz_rnn.experiments.file_runs import assess, file_settings, train_file
from lipschitz_rnn.training import RunError
from lipschitz_rnn.training.checkpoint import read_checkpoint, write_checkpoint

pytestmark = needs("pandas", "sklearn")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def text_of(result: Result) -> str:
    return " ".join(result.output.split())


def write_file(path: Path) -> Path:
    generator = np.random.default_rng(0)
    lines = ["id,x,label,level"]
    for index in range(30):
        level = generator.normal()
        for _ in range(6):
            lines.append(f"m{index},{level + 0.3 * generator.normal():.4f},{'ab'[index % 2]},{level:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


SMALL = ["--series", "id", "--features", "x", "-e", "1", "-n", "4", "--device", "cpu", "--no-report"]


def lose(run: Path, *places: int) -> None:
    """As if the validation scores of these networks had not been finite."""
    best = run / "checkpoints" / "best.safetensors"
    tensors, state = read_checkpoint(best)
    for place in places:
        state["values"][place] = state["epochs"][place] = None
    write_checkpoint(best, tensors, state)


def test_predictions_and_exports_leave_them_out(tmp_path: Path) -> None:
    file, run, out = write_file(tmp_path / "a.csv"), tmp_path / "run", tmp_path / "out.csv"
    assert call("train", file, "--target", "level", *SMALL, "--seeds", "0-2", "-o", run).exit_code == 0
    assert call("predict", run, file, "-o", out, "--interval", "0.5").exit_code == 0
    alone = call("predict", run, file, "-o", tmp_path / "alone.csv", "--seed", "1")
    assert alone.exit_code == 0
    lose(run, 0, 2)
    note = "2 of 3 networks have no finite validation score and are left out: seeds 0, 2"
    result = call("predict", run, file, "-o", out)
    assert note in text_of(result)
    assert "1 network" in text_of(result)
    assert out.read_bytes() == (tmp_path / "alone.csv").read_bytes()
    result = call("predict", run, file, "-o", out, "--interval", "0.5")
    assert result.exit_code == 2, "the intervals are those of the mean of three networks"
    assert note in text_of(call("export", run, tmp_path / "m.safetensors"))
    saved = load_model(tmp_path / "m.safetensors")
    assert (len(saved.models), saved.extra["seeds"], len(saved.extra["scores"])) == (1, [1], 1)
    evaluated = call("evaluate", run)
    assert note in text_of(evaluated)
    scores = json.loads(call("evaluate", run, "--json").stdout)["seeds"]
    assert [seed["mse"] is None for seed in scores] == [True, False, True]
    lose(run, 1)
    for command in (("predict", run, file, "-o", out), ("export", run, tmp_path / "n.safetensors"), ("evaluate", run)):
        result = call(*command)
        assert result.exit_code == 1
        assert "none of its 3 networks has a finite validation score" in text_of(result)


def test_a_variant_that_is_lost_from_the_first_step_stops_nothing(tmp_path: Path) -> None:
    file, run = write_file(tmp_path / "a.csv"), tmp_path / "run"
    variants = ["--variant", "init_scale=0.1", "--variant", "init_scale=1e30"]
    result = call("train", file, "--target", "label", *SMALL, *variants, "-o", run)
    assert result.exit_code == 0, result.output
    assert "1 of 2 networks has no finite validation score and is left out: init_scale=1e+30" in text_of(result)
    assert json.loads((run / "assessment.json").read_text())["networks"] == ["init_scale=0.1, seed 0"]
    assert call("predict", run, file, "-o", tmp_path / "p.csv", "--variant", "0").exit_code == 0
    result = call("predict", run, file, "-o", tmp_path / "p.csv", "--variant", "1")
    assert (result.exit_code, "its network has no finite validation score" in text_of(result)) == (1, True)


@pytest.mark.parametrize("target", ["label", "level"])
def test_networks_whose_predictions_are_not_finite_stop_no_others(tmp_path: Path, target: str) -> None:
    options = {"path": str(write_file(tmp_path / "a.csv")), "series": "id", "target": target, "features": ["x"]}
    settings, task = file_settings(options, {"epochs": 1, "hidden_size": 4, "seeds": (0, 1), "device": "cpu"})
    result = train_file(settings, task, tmp_path / "run")
    next(result.models[1].head.parameters()).data.fill_(math.nan)  # type: ignore[union-attr]
    found = assess(settings, task, result, tmp_path / "run", certify=False)
    assert all(len(values) == 1 for values in found["metrics"].values())
    assert found["left_out"] == ["predictions on the test split are not all finite, so there are no scores of: seed 1"]
    next(result.models[0].head.parameters()).data.fill_(math.nan)  # type: ignore[union-attr]
    with pytest.raises(RunError, match="no finite predictions on its test split"):
        assess(settings, task, result, tmp_path / "run", certify=False)
    lost = tuple(dataclasses.replace(seed, validation=None) for seed in result.seeds)
    with pytest.raises(RunError, match="none of its 2 networks has a finite validation score"):
        assess(settings, task, dataclasses.replace(result, seeds=lost), tmp_path / "run", certify=False)
