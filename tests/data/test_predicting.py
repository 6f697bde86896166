"""`lipschitz-rnn predict` and `export` on run folders and model files: rows, names, mistakes, nothing half written."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import needs
from typer.testing import CliRunner, Result

from lipschitz_rnn import data, load_run, tasks
from lipschitz_rnn.cli import app
from lipschitz_rnn.training import Settings, fit

pytestmark = needs("pandas", "pyarrow")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def text_of(result: Result) -> str:
    return " ".join(result.output.split())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def machines(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A long table: dates, a hole here and there, a category, and targets of every kind."""
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        length, level, now = int(generator.integers(4, 9)), generator.normal(), 0.0
        for _ in range(length):
            now += generator.uniform(20.0, 90.0)
            heat = level + generator.normal()
            rows.append(
                {
                    "machine": f"m{index}",
                    "clock": f"2024-03-01T{int(now // 3600):02d}:{int(now // 60) % 60:02d}:{now % 60:06.3f}",
                    "heat": "" if generator.random() < 0.1 else f"{heat:.4f}",
                    "mode": ("idle", "run")[int(generator.integers(2))],
                    "state": ("bad", "good")[index % 2],
                    "level": f"{level:.4f}",
                    "alarm": ("no", "yes")[int(heat > 1)],
                }
            )
    return rows


KINDS = {"classify": "state", "regress": "level", "sequence": "alarm", "forecast": "heat"}


def train(folder: Path, kind: str, **settings: Any) -> Path:
    table = write_rows(folder / f"{kind}.csv", machines(24))
    others = [name for name in ("state", "level", "alarm") if name != KINDS[kind]]
    features = [name for name in ("heat", "mode") if name not in others]
    options = {"path": str(table), "series": "machine", "time": "clock", "target": KINDS[kind], "features": features}
    options |= {"kind": kind, "step_size": 0.1, "split_by": "series"}
    chosen: dict[str, Any] = {"hidden_size": 4, "epochs": 1, "batch_size": 8, "seeds": (3, 5)} | settings
    run = Settings(task="file", task_options=options, unit_options={"step_size": 0.1}, **chosen)
    fit(run, tasks.load("file", **options), folder / kind)  # type: ignore[arg-type]
    return folder / kind


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: train(folder, kind) for kind in KINDS}


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Other machines, without targets, with the columns in another order and one that nobody needs."""
    rows = [
        {"mode": row["mode"], "note": "x", "heat": row["heat"], "machine": row["machine"], "clock": row["clock"]}
        for row in machines(7, seed=1)
    ]
    return write_rows(tmp_path / "new.csv", rows)


def expected(run: Path, new: Path) -> data.Predictions:
    """The same through the Python API, with each part by hand."""
    opened = load_run(run)
    models = [data.SeriesModel.from_record(network, opened.shapes.series) for network in opened.networks]
    found = data.read(new, series="machine", time="clock", features=["heat", "mode"])
    series = data.as_trained(found, models[0])
    outputs = [data.predict(model, series) for model in models]
    if models[0].target.classes is not None:
        outputs = [data.probabilities(each) for each in outputs]
    return data.Predictions(np.stack(outputs), models[0].target)


def test_classes_with_probabilities(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    done = call("predict", runs["classify"], new, "-o", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    rows = read_rows(tmp_path / "out.csv")
    assert list(rows[0]) == ["machine", "prediction", "probability_bad", "probability_good"]
    assert [row["machine"] for row in rows] == [f"m{index}" for index in range(7)]
    wanted = expected(runs["classify"], new)
    found = np.array([[float(row["probability_bad"]), float(row["probability_good"])] for row in rows])
    np.testing.assert_allclose(found, wanted.mean, atol=1e-6)
    assert [row["prediction"] for row in rows] == [("bad", "good")[int(p[1] > p[0])] for p in wanted.mean]


def test_numbers_with_their_spread(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    assert call("predict", runs["regress"], new, "-o", tmp_path / "out.csv").exit_code == 0
    rows = read_rows(tmp_path / "out.csv")
    assert list(rows[0]) == ["machine", "prediction", "spread"]
    members = expected(runs["regress"], new).members[..., 0]
    np.testing.assert_allclose([float(row["prediction"]) for row in rows], members.mean(0), rtol=1e-5)
    np.testing.assert_allclose([float(row["spread"]) for row in rows], members.std(0, ddof=1), rtol=1e-4)
    assert call("predict", runs["regress"], new, "-o", tmp_path / "one.csv", "--seed", "5").exit_code == 0
    rows = read_rows(tmp_path / "one.csv")
    assert list(rows[0]) == ["machine", "prediction"]
    np.testing.assert_allclose([float(row["prediction"]) for row in rows], members[1], rtol=1e-5)


def test_a_row_per_sample_in_parquet(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    import pandas as pd

    assert call("predict", runs["sequence"], new, "-o", tmp_path / "out.parquet").exit_code == 0
    frame, given = pd.read_parquet(tmp_path / "out.parquet"), read_rows(new)
    assert list(frame) == ["machine", "clock", "prediction", "probability_no", "probability_yes"]
    assert frame["machine"].tolist() == [row["machine"] for row in given]
    assert [text[:23] for text in frame["clock"]] == [row["clock"] for row in given]
    wanted = expected(runs["sequence"], new).mean
    np.testing.assert_allclose(frame[["probability_no", "probability_yes"]].to_numpy(), wanted, atol=1e-6)


def test_forecasts_have_a_row_per_step(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    assert call("predict", runs["forecast"], new, "-o", tmp_path / "out.csv", "--horizon", "3").exit_code == 0
    rows = read_rows(tmp_path / "out.csv")
    assert list(rows[0]) == ["machine", "step", "clock", "prediction", "spread"]
    assert [(row["machine"], row["step"]) for row in rows[:4]] == [("m0", "1"), ("m0", "2"), ("m0", "3"), ("m1", "1")]
    last = [row for row in read_rows(new) if row["machine"] == "m0"][-1]["clock"]
    assert rows[0]["clock"] > last
    opened = load_run(runs["forecast"])
    found = data.read(new, series="machine", time="clock", features=["heat", "mode"])
    each = []
    for network in opened.networks:
        model = data.SeriesModel.from_record(network, opened.shapes.series)
        values, times, lengths = data.as_trained(found, model).padded()
        each.append(model.free_run(values, times, lengths, horizon=3)[..., 0].double().numpy())
    np.testing.assert_allclose([float(row["prediction"]) for row in rows], np.mean(each, 0).ravel(), rtol=1e-4)
    # One step ahead is the model's own output after the last sample.
    ends = np.cumsum(found.lengths) - 1
    np.testing.assert_allclose(expected(runs["forecast"], new).mean[ends, 0], np.mean(each, 0)[:, 0], rtol=1e-4)


def test_a_run_becomes_one_file_that_predicts_the_same(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    assert call("export", runs["classify"], model).exit_code == 0
    for source, out in ((runs["classify"], "a.csv"), (model, "b.csv")):
        assert call("predict", source, new, "-o", tmp_path / out).exit_code == 0
    a, b = (read_rows(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert [list(row) for row in a] == [list(row) for row in b]
    for one, other in zip(a, b, strict=True):
        assert float(one["probability_bad"]) == pytest.approx(float(other["probability_bad"]), abs=1e-6)
    saved = data.load_model(model)
    assert saved.extra["seeds"] == [3, 5]
    assert saved.extra["metric"]["name"] == "accuracy"
    assert saved.extra["reading"]["series"] == "machine"
    assert len(saved.extra["scores"]) == 2
    assert str(runs["classify"].parent) not in model.read_bytes().decode("latin1")  # no paths of this machine
    assert call("export", model, tmp_path / "one.safetensors", "--seed", "5").exit_code == 0
    assert len(data.load_model(tmp_path / "one.safetensors").models) == 1


@pytest.mark.slow
@needs("onnx", "onnxscript", "onnxruntime")
def test_export_prints_the_difference(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    done = call("export", runs["classify"], tmp_path / "model.onnx", "--seed", "3", "--step", "--check", new)
    assert done.exit_code == 0, done.output
    found = re.search(r"largest difference from PyTorch: (\S+) over (\d+) predictions", text_of(done))
    assert found is not None
    assert float(found[1]) <= 1e-5
    assert (tmp_path / "model.onnx").stat().st_size > 1000


def change(table: list[dict[str, str]], column: str, row: int, value: str) -> None:
    table[row][column] = value


MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "column missing": (lambda t: [row.pop("heat") for row in t], ["'heat'"]),
    "series missing": (lambda t: [row.pop("machine") for row in t], ["'machine'"]),
    "time missing": (lambda t: [row.pop("clock") for row in t], ["'clock'"]),
    "unknown text": (lambda t: change(t, "mode", 3, "broken"), ["'mode'", "'broken'", "line 5", "'idle'"]),
    "text in a number": (lambda t: change(t, "heat", 2, "warm"), ["'heat'", "'warm'", "line 4"]),
    "times backwards": (lambda t: change(t, "clock", 1, "2023-01-01T00:00:00"), ["'clock'", "line 3"]),
    "numbers for dates": (lambda t: [row.update(clock=str(k)) for k, row in enumerate(t)], ["number", "date"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_and_nothing_is_written(
    mistake: str, runs: dict[str, Path], new: Path, tmp_path: Path
) -> None:
    table = read_rows(new)
    spoil, named = MISTAKES[mistake]
    spoil(table)
    bad, out = write_rows(tmp_path / "bad.csv", table), tmp_path / "out.csv"
    out.write_text("before\n")
    done = call("predict", runs["classify"], bad, "-o", out)
    assert done.exit_code == 1, done.output
    for part in named:
        assert part in text_of(done)
    assert out.read_text() == "before\n"
    assert sorted(os.listdir(tmp_path)) == ["bad.csv", "new.csv", "out.csv"]


def test_unknown_texts_can_count_as_missing(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    tables = {"unknown": read_rows(new), "empty": read_rows(new)}
    change(tables["unknown"], "mode", 3, "broken")
    change(tables["empty"], "mode", 3, "")
    for name, table in tables.items():
        given = write_rows(tmp_path / f"{name}.csv", table)
        arguments = ["-o", tmp_path / f"{name}-out.csv", "--ignore-unknown"]
        assert call("predict", runs["classify"], given, *arguments).exit_code == 0
    assert (tmp_path / "unknown-out.csv").read_text() == (tmp_path / "empty-out.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["predict", "{run}", "{new}", "-o", "out.txt"], 2, "out.txt"),
        (["predict", "{run}", "{new}", "-o", "no/folder/out.csv"], 2, "no/folder"),
        (["predict", "{run}", "{new}", "-o", "{new}"], 2, "another output"),
        (["predict", "{run}", "nothing.csv", "-o", "out.csv"], 1, "nothing.csv"),
        (["predict", "nowhere", "{new}", "-o", "out.csv"], 1, "nowhere"),
        (["predict", "{new}", "{new}", "-o", "out.csv"], 1, "new.csv"),
        (["predict", "{run}", "{new}", "-o", "out.csv", "--seed", "4"], 2, "3, 5"),
        (["predict", "{run}", "{new}", "-o", "out.csv", "--horizon", "4"], 2, "classify"),
        (["predict", "{run}", "{new}", "-o", "out.csv", "--variant", "1"], 2, "variant"),
        (["export", "{run}", "model.bin"], 2, "model.bin"),
        (["export", "{run}", "model.safetensors", "--step"], 2, "--step"),
        (["export", "nowhere", "model.onnx"], 1, "nowhere"),
    ],
)
def test_wrong_usage(
    arguments: list[str], code: int, named: str, runs: dict[str, Path], new: Path, tmp_path: Path
) -> None:
    given = [part.format(run=runs["classify"], new=new) for part in arguments]
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        done = call(*given)
    finally:
        os.chdir(before)
    assert done.exit_code == code, done.output
    assert named in text_of(done)
    assert os.listdir(tmp_path) == ["new.csv"]


def test_arrays_are_read_by_the_order_of_their_channels(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(24, 2, 6)), np.array(["a", "b"] * 12)
    np.savez(tmp_path / "train.npz", X=X, y=y)
    options = {"path": str(tmp_path / "train.npz"), "kind": "classify"}
    settings = Settings(task="file", task_options=options, unit="gru", hidden_size=3, epochs=1, batch_size=8)
    fit(settings, tasks.load("file", **options), tmp_path / "run")  # type: ignore[arg-type]
    np.savez(tmp_path / "new.npz", X=X[:5])
    assert call("predict", tmp_path / "run", tmp_path / "new.npz", "-o", tmp_path / "out.csv").exit_code == 0
    assert [row["id"] for row in read_rows(tmp_path / "out.csv")] == [str(index) for index in range(5)]
    for channels, named in ((1, "channel 1"), (3, "3 channels")):
        np.savez(tmp_path / "bad.npz", X=generator.normal(size=(5, channels, 6)))
        done = call("predict", tmp_path / "run", tmp_path / "bad.npz", "-o", tmp_path / "bad.csv")
        assert done.exit_code == 1
        assert named in text_of(done)


def test_columns_that_the_table_has_itself(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    table = [row | {"prediction": row["machine"]} for row in read_rows(new)]
    given = write_rows(tmp_path / "given.csv", table)
    done = call("predict", runs["classify"], given, "-o", tmp_path / "out.csv", "--series", "prediction")
    assert done.exit_code == 1
    assert "'prediction'" in text_of(done)
    assert not (tmp_path / "out.csv").exists()


def test_a_run_on_a_built_in_task_is_refused(tmp_path: Path, new: Path) -> None:
    settings = Settings(task="adding", task_options={"length": 5}, hidden_size=2, epochs=0, batch_size=4)
    fit(settings, tasks.load("adding", length=5), tmp_path / "run")
    done = call("predict", tmp_path / "run", new, "-o", tmp_path / "out.csv")
    assert done.exit_code == 1
    assert "adding" in text_of(done)


def test_forecasts_at_another_distance(runs: dict[str, Path], new: Path, tmp_path: Path) -> None:
    found = {}
    for every in (5, 600):
        answer = call(
            "predict", runs["forecast"], new, "-o", tmp_path / "out.csv", "--horizon", "2", "--every", str(every)
        )
        assert answer.exit_code == 0
        rows = read_rows(tmp_path / "out.csv")
        first, second = (np.datetime64(row["clock"]) for row in rows[:2])
        assert second - first == np.timedelta64(every, "s")
        found[every] = np.array([float(row["prediction"]) for row in rows])
    assert np.abs(found[5] - found[600]).max() > 1e-4
    out = ("-o", tmp_path / "out.csv", "--every")
    for source, every in ((runs["classify"], "5"), (runs["forecast"], "0"), (runs["forecast"], "-3")):
        assert call("predict", source, new, *out, every).exit_code != 0
