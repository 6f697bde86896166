"""`lipschitz-rnn certify --radius`: certified accuracy as a table, a picture and JSON, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.certified import Samples, certified_curve
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.training import Settings, fit
from lipschitz_rnn.training.runs import load_run

ROWS = {"steps": 8}


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], terminal_width=200)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small contracting networks on digits in eight rows."""
    folder = tmp_path_factory.mktemp("radius") / "run"
    options = {"stability": "contracting", "step_size": 0.3, "rate": 0.1}
    settings = Settings(
        task="digits", task_options=ROWS, unit_options=options, hidden_size=12, epochs=3, learning_rate=0.03,
        seeds=(0, 1), train_radius=0.01,
    )  # fmt: skip
    fit(settings, load_task(settings), folder)
    return folder


@pytest.mark.needs("foolbox")
def test_the_curve_lies_below_what_attacks_leave(run: Path) -> None:
    answer = call(
        "certify", run, "--radius", "0.03,0.1", "-r", "0.001", "--json", "--samples", 60, "--attack-samples", 12,
        "--attack-steps", 5, "--restarts", 1,
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["radii"] == [0.001, 0.03, 0.1]
    assert [network["network"] for network in found["networks"]] == ["seed 0", "seed 1"]
    for network in found["networks"]:
        assert (network["samples"], network["attacked_samples"], network["contradictions"]) == (60, 12, 0)
        certified = [row["certified"] for row in network["curve"]]
        assert network["clean_accuracy"] >= certified[0] >= certified[1] >= certified[2]
        for row, proved in zip(network["curve"], network["certified_of_attacked"], strict=True):
            assert proved <= min(row["pgd"], row["deepfool"])
        assert 0 < network["factor"] < 1


@pytest.mark.needs("matplotlib")
def test_the_table_and_the_picture(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    few = ("--samples", 30, "--attack-samples", 0, "--seed", 1)
    answer = call("certify", run, "--radius", "0.01", "--norm", "linf", "--plot", picture, *few)
    assert answer.exit_code in (0, 3)
    words = " ".join(answer.output.split())
    assert "seed 1: 30 samples, clean accuracy" in words
    assert "norm linf" in words
    assert "radius certified" in words
    assert "attacks: none (--attack-samples 0)" in words
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs("foolbox")
def test_the_precision_is_the_one_asked_for(run: Path) -> None:
    """The table says what it is about; coarser arithmetic certifies less, and attacks in it succeed nowhere inside."""
    few = ("--samples", 30, "--attack-samples", 6, "--attack-steps", 3, "--restarts", 1, "--seed", 0)
    found = {}
    for name in ("exact", "high", "bfloat16"):
        answer = call("certify", run, "--radius", "0.02", "--json", "--precision", name, *few)
        assert answer.exit_code in (0, 3), answer.output
        found[name] = json.loads(answer.stdout)["networks"][0]
        assert found[name]["contradictions"] == 0
    assert [each["arithmetic"] for each in found.values()] == ["exact", "high", "bfloat16"]
    medians = [each["median_radius"] for each in found.values()]
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] < medians[0]
    assert "products in TF32 (high), on a CPU or a GPU, is right" in found["high"]["statement"]
    assert "the class of the exact network of these weights is right" in found["exact"]["statement"]
    answer = call("certify", run, "--radius", "0.02", "--precision", "highest", *few)
    assert "comes out in float32 (highest), on a CPU or a GPU, is right and stays so" in " ".join(answer.output.split())
    assert torch.get_float32_matmul_precision() == "highest"


def test_nothing_certified_is_exit_code_3(run: Path, tmp_path: Path) -> None:
    few = ("--samples", 20, "--attack-samples", 0)
    far = call("certify", run, "--radius", "1000", *few)
    assert far.exit_code == 3
    assert "0.00 %" in far.output
    assert "What to try: ask for less; or train for a radius" in " ".join(far.output.split())
    free = Settings(task="digits", task_options=ROWS, hidden_size=6, epochs=1, batch_size=512)
    fit(free, load_task(free), tmp_path / "free")
    answer = call("certify", tmp_path / "free", "--radius", "0.1", *few)
    assert answer.exit_code == 3
    words = " ".join(answer.output.split())
    assert "not certified" in words
    assert "What to try: " in words
    assert "train with stability='contracting' (on the command line: -u stability=contracting)" in words
    assert "lower rate" not in words  # none was asked for
    found = json.loads(call("certify", tmp_path / "free", "--radius", "0.1", "--json", *few).stdout)
    assert not found["networks"][0]["certified"]
    assert found["networks"][0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--radius", "0"), "--radius is '0'; write positive numbers"),
        (("--radius", "-1"), "--radius is '-1'"),
        (("--radius", "wide"), "--radius is 'wide'"),
        (("--radius", "nan"), "--radius is 'nan'"),
        (("--radius", "0.1", "--rate", "0.1"), "--rate says nothing with --radius"),
        (("--radius", "0.1", "--continuous"), "--continuous says nothing with --radius"),
        (("--radius", "0.1", "--rounding", "5"), "--rounding says nothing with --radius"),
        (("--radius", "0.1", "--file", "x.csv", "--which", "last"), "--which says nothing with --file"),
        (("--radius", "0.1", "--plot", "x.doc"), "x.doc cannot be drawn; its name must end in .png, .pdf or .svg"),
        (("--norm", "l2"), "--norm goes with --radius; add --radius 0.1"),
        (("--attack-samples", "5"), "--attack-samples goes with --radius"),
        (("--radius", "0.1", "--seed", "7"), "seed is 7"),
        (("--radius", "0.1", "--precision", "float8"), "precision is 'float8'; choose one of exact, float64, float32"),
        (("--radius", "0.1", "--norm", "l1"), "'l1' is not one of 'l2', 'linf'"),
        (("--radius", "0.1", "--plot", "/nowhere/x.png"), "cannot be written"),
    ],
)
def test_wrong_usage_is_answered_in_one_line(run: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = call("certify", run, *arguments)
    assert answer.exit_code == 2
    assert message in " ".join(answer.output.split())


def test_what_is_not_there_is_exit_code_1(tmp_path: Path) -> None:
    assert call("certify", tmp_path / "missing", "--radius", "0.1").exit_code == 1


def waves(path: Path, seed: int, unit: float = 1.0) -> Path:
    """Slow and fast waves of different lengths, in a file of one's own."""
    rng = np.random.default_rng(seed)
    lines = ["id,kind,value"]
    for name in range(24):
        kind, steps = ("slow", "fast")[name % 2], int(rng.integers(8, 14))
        phase = rng.uniform(0, 6)
        for t in range(steps):
            value = np.sin((0.3 if kind == "slow" else 1.5) * t + phase) + 0.05 * rng.normal()
            lines.append(f"s{name},{kind},{unit * value:.6f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_radii_of_own_data_are_in_its_units(tmp_path: Path) -> None:
    """A file in thousandths: the radii are a thousand times as large. A run, its model file and another file agree."""
    found = {}
    for name, unit in (("volts", 1.0), ("millivolts", 1000.0)):
        file = waves(tmp_path / f"{name}.csv", 0, unit)
        out = tmp_path / name
        trained = call(
            "train", file, "--target", "kind", "--series", "id", "--unit", "contracting", "-n", 4, "-e", 2, "--out", out
        )
        assert trained.exit_code == 0, trained.output
        given = ("--radius", 0.02 * unit, "--json", "--attack-samples", 4, "--attack-steps", 3)
        answer = call("certify", out, *given)
        assert answer.exit_code in (0, 3), answer.output
        found[name] = json.loads(answer.stdout)["networks"][0]
        assert found[name]["contradictions"] == 0
    ratio = found["millivolts"]["median_radius"] / found["volts"]["median_radius"]
    assert 990 < ratio < 1010
    model = tmp_path / "model.safetensors"
    assert call("export", tmp_path / "volts", model).exit_code == 0
    other = waves(tmp_path / "other.csv", 1)
    of_model, of_run = (
        json.loads(call("certify", source, "--radius", 0.02, "--json", "--attack-samples", 0, "--file", other).stdout)
        for source in (model, tmp_path / "volts")
    )
    assert of_model["networks"][0]["samples"] == 24
    assert of_model["networks"][0] == of_run["networks"][0]
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(other.read_text().replace("kind", "sort", 1))
    answer = call("certify", model, "--radius", 0.02, "--file", wrong)
    assert answer.exit_code == 1
    assert "kind" in answer.output


def test_a_curve_counts_what_the_radii_say(run: Path) -> None:
    task = load_task(load_run(run).settings)
    samples = Samples.of_task(task, "test", 40)
    network = load_run(run).networks[0]
    curve = certified_curve(network, samples, (0.01, 0.05), "step")
    right = (curve.found.prediction == samples.targets) & (curve.found.margin > 0)
    for radius, certified in zip(curve.radii, curve.certified, strict=True):
        assert certified == float((right & (curve.found.radius >= radius)).double().mean())
    with pytest.raises(ValueError, match="radius is 0; give positive"):
        certified_curve(network, samples, (0.0,))
    doubled = Samples(2 * samples.inputs, samples.targets, bounds=(0.0, 2.0))
    assert torch.allclose(doubled.scale, torch.tensor(2.0, dtype=torch.float64))
