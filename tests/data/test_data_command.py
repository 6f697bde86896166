"""`lipschitz-rnn train FILE`: from a file to a run, for every kind of task, and what bad files lead to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from optional import needs
from series_files import waves, write_csv
from torch import nn
from typer.testing import CliRunner, Result

from lipschitz_rnn import data, load_run, units
from lipschitz_rnn.cli import app
from lipschitz_rnn.commands import train_file
from lipschitz_rnn.estimators import LipschitzRNNClassifier
from lipschitz_rnn.stability import certify

pytestmark = needs("pandas", "sklearn", "matplotlib")
SMALL = ["--device", "cpu", "-e", "2", "-n", "6"]
COLUMNS = ["--series", "machine", "--time", "clock"]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: str | Path) -> dict:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_irregular_series_are_learned_and_unseen_ones_recognised(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(240, seed=11, shortest=30, longest=60))
    asked = ["--target", "state", *COLUMNS, "-e", "30", "-n", "32", "--device", "cpu", "--no-report"]
    answer = done("train", path, *asked, "-o", tmp_path / "run")
    assert answer["metrics"]["accuracy"][0] > 0.85
    run = load_run(tmp_path / "run")
    model = data.SeriesModel.from_record(run.networks[0], run.shapes.series)
    other = write_csv(tmp_path / "new.csv", waves(90, seed=12, shortest=30, longest=60))
    unseen = data.read(other, target="state", series="machine", time="clock")
    logits = data.predict(model, data.as_trained(unseen, model))
    assert unseen.targets is not None
    right = logits.argmax(1) == unseen.targets[unseen.offsets[:-1]]
    assert right.mean() > 0.85


@pytest.mark.full
def test_four_hundred_irregular_series_in_two_minutes(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(400, seed=11))
    answer = done("train", path, "--target", "state", *COLUMNS, "--device", "cpu", "-o", tmp_path / "run")
    run = load_run(tmp_path / "run")
    model = data.SeriesModel.from_record(run.networks[0], run.shapes.series)
    other = write_csv(tmp_path / "new.csv", waves(600, seed=12))
    unseen = data.read(other, target="state", series="machine", time="clock")
    right = data.predict(model, unseen).argmax(1) == unseen.targets[unseen.offsets[:-1]]  # type: ignore[index]
    assert right.mean() > 0.95
    assert answer["seconds"] < 120


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 oscillators with a level per series, and a regime and its phase per sample."""
    generator = np.random.default_rng(0)
    lines = ["id,t,u,v,gear,level,phase,regime"]
    for index in range(24):
        level, phase = generator.uniform(1.0, 3.0), generator.uniform(0.0, 6.0)
        for step in range(30 + index):
            angle = 0.3 * step + phase
            u = level * np.sin(angle) + 0.05 * generator.normal()
            v = "" if step % 7 == 3 else f"{level * np.cos(angle):.4f}"
            regime = "up" if np.cos(angle) > 0 else "down"
            gear = ("low", "high")[index % 2]
            lines.append(f"m{index},{60 * step},{u:.4f},{v},{gear},{level:.4f},{np.sin(angle):.4f},{regime}")
    path = tmp_path_factory.mktemp("table") / "machines.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("options", "metrics", "shape"),
    [
        (["--target", "gear", "--features", "u,v"], {"accuracy", "balanced accuracy", "F1 (macro)", "AUC"}, (24, 2)),
        (["--target", "level", "--features", "u,v,gear"], {"MAE", "RMSE", "R²"}, (24, 1)),
        (["--target", "regime", "--features", "u,v"], {"accuracy", "balanced accuracy", "F1 (macro)", "AUC"}, (996, 2)),
        (["--target", "phase", "--features", "u,v", "--task", "sequence"], {"MAE", "RMSE", "R²"}, (996, 1)),
        (
            ["--task", "forecast", "--target", "u,v", "--features", "gear", "--horizon", "3"],
            {"MAE", "RMSE", "R²"},
            (996, 2),
        ),
    ],
)
def test_every_kind_of_task_trains_and_reports(
    table: Path, tmp_path: Path, options: list[str], metrics: set[str], shape: tuple[int, int]
) -> None:
    run = tmp_path / "run"
    answer = done("train", table, "--series", "id", "--time", "t", *options, *SMALL, "-s", "0-1", "-o", run)
    assert set(answer["metrics"]) == metrics
    assert all(len(values) == 2 for values in answer["metrics"].values())
    assessment = json.loads((run / "assessment.json").read_text())
    assert answer["baseline"] == assessment["baseline"]
    page = (run / "report.html").read_text()
    assert page.count("<svg role") >= 2
    assert "<figure data-panels" in page  # curves can be read
    assert "thin lines are single seeds" in page
    learning = (run / "figures" / "learning.svg").read_text(encoding="utf-8")
    assert ("<!-- loss (in scaled units) -->" in learning) == ("accuracy" not in metrics)
    assert f"lipschitz-rnn certify {run} --time-limit 600" in page
    certificate = page.partition("Certificate of contraction</h2>")[2].partition("Ask again")[0]
    assert not re.search(r"[( ]-\d", certificate)  # minus signs
    opened = load_run(run)
    record = opened.shapes.series
    model = data.SeriesModel.from_record(opened.networks[0], record)
    reading = record["reading"]
    new = data.read(table, series=reading["series"], time=reading["time"], features=reading["features"])
    assert data.predict(model, data.as_trained(new, model)).shape == shape
    _, scores = opened.evaluate("test")
    assert scores.metric == pytest.approx([seed["test"] for seed in answer["seeds"]])
    assert record.get("horizon") == (3 if "forecast" in options else None)
    assert len((assessment.get("horizon") or {"steps": []})["steps"]) == (3 if "forecast" in options else 0)


@pytest.mark.parametrize("unit", ["gru", "lem"])
def test_other_units_take_the_times_in_their_way(tmp_path: Path, unit: str) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(24, longest=30))
    done("train", path, "--target", "state", *COLUMNS, *SMALL, "--unit", unit, "-o", tmp_path / "run", "--no-report")
    record = load_run(tmp_path / "run").shapes.series
    assert record["preprocessing"]["time_use"] == {"gru": "input", "lem": "step"}[unit]
    assert not (tmp_path / "run" / "report.html").exists()


@needs("cvxpy")
def test_a_contracting_model_of_regular_series_takes_irregular_ones(tmp_path: Path) -> None:
    made = waves(24, longest=30)
    for one in made:
        one["times"] = np.arange(len(one["times"])) * 60.0
    path = write_csv(tmp_path / "regular.csv", made)
    asked = ["--target", "state", *COLUMNS, *SMALL, "-u", "stability=contracting", "-o", tmp_path / "run"]
    done("train", path, *asked)
    certificate = json.loads((tmp_path / "run" / "assessment.json").read_text())["certificate"]
    assert certificate["holds"] is True
    run = load_run(tmp_path / "run")
    model = data.SeriesModel.from_record(run.networks[0], run.shapes.series)
    assert model.preprocessing.fitted.regular
    other = data.read(write_csv(tmp_path / "new.csv", waves(6)), series="machine", time="clock", features=["x", "y"])
    assert np.isfinite(data.predict(model, other)).all()


def test_a_run_on_a_file_resumes_from_its_folder(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(24, longest=30))
    asked = ["train", path, "--target", "state", *COLUMNS, *SMALL, "--no-report", "-o"]
    once = done(*asked, tmp_path / "one")
    again = done("train", "--resume", "-o", tmp_path / "one")
    assert again["seeds"] == once["seeds"]
    refused = call(*asked, tmp_path / "one")
    assert refused.exit_code == 2
    settings = json.loads(call(*asked, tmp_path / "two", "--dry-run").stdout)
    assert settings["task_options"]["target"] == "state"
    assert not (tmp_path / "two").exists()


def test_npz_and_ts_files_need_no_columns(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(24, 2, 12)), np.arange(24) % 2
    np.savez(tmp_path / "cases.npz", X=X, y=y)
    lines = [
        ":".join(",".join(f"{value:.4f}" for value in row) for row in case) + f":{label}"
        for case, label in zip(X, y, strict=True)
    ]
    header = "@problemName made\n@timeStamps false\n@classLabel true 0 1\n@data\n"
    (tmp_path / "cases.ts").write_text(header + "\n".join(lines) + "\n")
    found = [
        done("train", tmp_path / name, *SMALL, "--no-report", "-o", tmp_path / f"run-{name}")["seeds"]
        for name in ("cases.npz", "cases.ts")
    ]
    assert found[0][0]["test"] == found[1][0]["test"]


@pytest.mark.parametrize(
    ("text", "options", "code", "named"),
    [
        ("id,x,y\na,1,u\n", ["--target", "state"], 1, ["'state'"]),
        ("id,x,y\na,1,u\na,2,v\nb,1,u\n", ["--target", "y", "--series", "id", "--task", "classify"], 1, ["line 3"]),
        ("id,x,y\na,1,u\na,2,v\nb,1,u\nb,2,u\nc,1,v\nc,2,v\n", ["--target", "y", "--series", "id"], 1, ["line 3"]),
        ("id,t,x,y\na,2,1,u\na,1,2,u\n", ["--target", "y", "--series", "id", "--time", "t"], 1, ["line 3", "--sort"]),
        ("id,x,y\na,1,u\nb,zero,v\n", ["--target", "y", "--series", "id"], 1, ["line 3", "zero"]),
        ("id,x,y\na,1,u\nb,2,u\nc,2,u\nd,3,u\n", ["--target", "y", "--series", "id"], 1, ["'u'"]),
        ("id,x,y\na,1,1.5\nb,2,\nc,2,3\n", ["--target", "y", "--series", "id"], 1, ["line 3", "'y'"]),
        ("id,x,y\na,1,u\n", ["--target", "y", "--fractions", "1,2"], 2, ["0.7,0.15,0.15"]),
        (None, ["--target", "y"], 1, ["log.csv"]),
    ],
)
def test_bad_files_end_with_one_line_and_leave_nothing(
    tmp_path: Path, text: str | None, options: list[str], code: int, named: list[str]
) -> None:
    path = tmp_path / "log.csv"
    if text is not None:
        path.write_text(text)
    result = call("train", path, *options, "-o", tmp_path / "run")
    assert result.exit_code == code, result.output
    for part in named:
        assert part in result.output
    assert not (tmp_path / "run").exists()


def test_options_of_a_file_are_refused_for_a_task() -> None:
    result = call("train", "digits", "--target", "y")
    assert result.exit_code == 2
    assert "--target" in result.output


def test_certify_examines_all_times_between_samples_of_a_run(tmp_path: Path) -> None:
    # At gamma 8 the Euler map contracts with the typical step of 0.1, but not with 0.2, which the run takes too.
    path = write_csv(tmp_path / "waves.csv", waves(24, seed=3))
    asked = ["--target", "state", *COLUMNS, "-u", "gamma=8", "-e", "1", "-n", "4", "--device", "cpu"]
    done("train", path, *asked, "-o", tmp_path / "run")
    assert not json.loads((tmp_path / "run" / "assessment.json").read_text())["certificate"]["holds"]
    assert call("certify", tmp_path / "run").exit_code == 3
    assert call("certify", tmp_path / "run", "--step-size", "0.1").exit_code == 0
    assert call("export", tmp_path / "run", tmp_path / "model.safetensors").exit_code == 0
    assert not LipschitzRNNClassifier.load(tmp_path / "model.safetensors").certify().holds
    (model,) = data.load_model(tmp_path / "model.safetensors").models
    assert not certify(model).holds  # the whole model states its times
    assert certify(model.unit).holds  # the unit alone knows of one step


def test_the_report_certifies_all_networks(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(24, seed=3))
    variants = ["--variant", "gamma=0.9 beta=0.99", "--variant", "gamma=0 beta=0.5"]  # the second one grows
    asked = ["--target", "state", *COLUMNS, *variants, "-e", "1", "-n", "4", "--device", "cpu"]
    done("train", path, *asked, "-o", tmp_path / "run")
    assert not json.loads((tmp_path / "run" / "assessment.json").read_text())["certificate"]["holds"]


def test_options_of_built_in_tasks_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(6))
    result = call("train", path, "--target", "state", *COLUMNS, "-t", "length=3", "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "length" in result.output
    assert not (tmp_path / "run").exists()


def test_a_run_finds_its_moved_file_but_does_not_go_on_with_a_changed_one(tmp_path: Path) -> None:
    made, run = waves(12, seed=3), tmp_path / "run"
    path = write_csv(tmp_path / "waves.csv", made)
    done("train", path, "--target", "state", *COLUMNS, *SMALL, "--no-report", "-o", run)
    before = (run / "task.json").read_bytes()
    made[0]["values"] = 100.0 * made[0]["values"]
    other = tmp_path / "other"
    other.mkdir()
    commands = (("evaluate", run), ("train", "--resume", "--no-report", "-o", run))
    path.rename(other / path.name)
    for command in commands:
        result = call(*command)
        assert result.exit_code == 1
        assert f"there is no file {path};" in result.output
        assert "name the folder that holds waves.csv now with --data-dir" in result.output
        assert call(*command, "--data-dir", other).exit_code == 0
        (tmp_path / "empty").mkdir(exist_ok=True)
        result = call(*command, "--data-dir", tmp_path / "empty")
        assert f"there is no file {path} and no {tmp_path / 'empty' / path.name};" in result.output
    write_csv(other / path.name, made)
    for command in commands:
        result = call(*command, "--data-dir", other)
        assert result.exit_code in (1, 2)
        assert "changed" in result.output
    made[0]["values"] = made[0]["values"] / 100.0
    write_csv(path, made)
    assert call("evaluate", run).exit_code == 0
    assert json.loads((run / "task.json").read_bytes()) == json.loads(before)


def test_a_resumed_run_uses_the_threads_of_its_first_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(12, seed=3))
    asked: list[int | None] = []
    monkeypatch.setattr(train_file, "choose_threads_for_runs", lambda settings, threads: asked.append(threads))
    done("train", path, "--target", "state", *COLUMNS, *SMALL, "--no-report", "-o", tmp_path / "run")
    environment = tmp_path / "run" / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"threads": 7}))
    done("train", "--resume", "--no-report", "-o", tmp_path / "run")
    assert asked == [None, 7]


def test_a_model_with_a_unit_that_states_nothing_is_not_certified() -> None:
    series = data.from_arrays(np.zeros((4, 1, 5)) + np.arange(5), ["a", "b", "a", "b"])
    preprocessing = data.Preprocessing.fit(series)
    unit = units.build("gru", preprocessing.output_size, 3)
    model = data.SeriesModel(preprocessing, unit, nn.Linear(3, 2), data.Target("classify", ("y",), classes=("a", "b")))
    with pytest.raises(TypeError, match="does not state its recurrence"):
        certify(model)


@pytest.mark.parametrize("target", [["--target", "state"], ["--task", "forecast"]])
def test_a_run_of_no_epochs_has_a_report_and_resumes(target: list[str], tmp_path: Path) -> None:
    path = write_csv(tmp_path / "waves.csv", waves(20, seed=3, shortest=10, longest=20))
    (tmp_path / "none.toml").write_text("epochs = 0\nhidden_size = 6\n")  # on the command line, 0 is refused
    for more in ([], ["--resume"]):
        done("train", path, *target, *COLUMNS, "-c", tmp_path / "none.toml", "-o", tmp_path / "run", *more)
        assert "Learning curves" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
