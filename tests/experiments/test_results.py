"""Committed results: what a run folder becomes, and how a damaged file is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.experiments.results import ResultsError, export_run, read_record, read_records, write_record
from lipschitz_rnn.experiments.runner import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of two seeds whose epochs hold several lines of metrics, the last of them shorter."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("results") / "run"
    changes = {"epochs": 2, "hidden_size": 4, "device": "cpu", "seeds": (3, 5), "log_steps": 4, "data_dir": "/nowhere"}
    train(preset_settings("digits", changes=changes), folder)
    return folder


def test_a_record_holds_what_the_run_holds(run: Path, tmp_path: Path) -> None:
    record = export_run(run, "mnist", "digits/lipschitz/4", kind="quick", command="lipschitz-rnn …", why="small")
    path = write_record(record, tmp_path)
    assert path == tmp_path / "mnist" / "digits-lipschitz-4.json"
    assert read_record(path) == record
    assert [again.name for again in read_records(tmp_path)] == ["digits/lipschitz/4"]
    assert read_records(tmp_path, "ablation") == []
    result = json.loads((run / "result.json").read_text())
    assert record.scores("test") == pytest.approx([seed["test"] for seed in result["seeds"]], rel=1e-5)
    assert [seed["seed"] for seed in record.seeds] == [3, 5]
    assert record.parameters == result["parameters"]
    assert record.environment["torch"] == torch.__version__
    assert "nowhere" not in path.read_text()  # where data lay says nothing about the numbers


def test_training_losses_are_means_over_the_steps_of_an_epoch(run: Path) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [record for record in records if record["kind"] == "train" and record["epoch"] == 1]
    steps = 1257 // 128
    weights = [4] * (steps // 4) + [steps % 4]
    expected = sum(weight * line["loss"][1] for weight, line in zip(weights, lines, strict=True)) / steps
    curves = export_run(run, "mnist", "x").curves
    assert curves["train_loss"][1][1] == pytest.approx(expected, rel=1e-3)
    assert {len(member) for values in curves.values() for member in values} == {2}


def test_a_commit_is_noted_only_where_the_run_knew_none(run: Path, tmp_path: Path) -> None:
    known = json.loads((run / "environment.json").read_text())
    assert export_run(run, "mnist", "x", commit="abc").environment["commit"] == (known["commit"] or "abc")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "metrics.jsonl", "result.json"):
        (copy / name).write_bytes((run / name).read_bytes())
    (copy / "environment.json").write_text(json.dumps(known | {"commit": None}))
    assert export_run(copy, "mnist", "x", commit="abc").environment["commit"] == "abc"


def test_an_unfinished_run_is_not_exported(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(ResultsError, match="not complete"):
        export_run(tmp_path, "mnist", "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values | {"schema": 99}, "schema 99"),
        (lambda values: {key: value for key, value in values.items() if key != "seeds"}, "lacks 'seeds'"),
        (lambda values: values | {"speed": 1}, "unknown 'speed'"),
        (lambda values: [values], "a JSON list where an object is expected"),
    ],
)
def test_a_wrong_file_is_named(run: Path, tmp_path: Path, change: object, message: str) -> None:
    path = write_record(export_run(run, "mnist", "x"), tmp_path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))  # type: ignore[operator]
    with pytest.raises(ResultsError, match=message) as error:
        read_records(tmp_path)
    assert str(path) in str(error.value)


def test_missing_folder_and_torn_file(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="not a folder of results"):
        read_records(tmp_path / "none")
    assert read_records(tmp_path) == []
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "torn.json").write_text('{"schema": 1')
    with pytest.raises(ResultsError, match=r"torn\.json is not JSON"):
        read_records(tmp_path)
