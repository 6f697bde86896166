"""`lipschitz-rnn robustness` on small runs: tables of 80 columns, JSON, pictures and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("robustness")
    made = []
    for unit, seeds in (("lipschitz", "0-1"), ("gru", "3")):
        out = folder / f"digits-{unit}"
        options = ["--preset", "quick", "-e", "2", "-n", "4", "--device", "cpu", "--seeds", seeds, "--unit", unit]
        done = call("train", "digits", *options, "--out", out)
        assert done.exit_code == 0, done.output
        made.append(out)
    return made


def fits(text: str) -> bool:
    return "…" not in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", ["hessian", "attack", "noise"])
def test_help(command: str) -> None:
    done = call("robustness", command, "--help")
    assert done.exit_code == 0
    assert "Example lipschitz-rnn robustness" in " ".join(done.output.split())
    group = get_command(app).load_all().commands["robustness"]  # type: ignore[attr-defined]
    assert all(getattr(option, "help", None) for option in group.commands[command].params if option.name != "help")


@pytest.mark.slow
def test_hessian(runs: list[Path], tmp_path: Path) -> None:
    arguments = ["robustness", "hessian", runs[0], "--samples", "20"]
    shown = call(*arguments, "--plot", tmp_path / "density.png")
    assert shown.exit_code == 0, shown.output
    assert fits(shown.output)
    assert all(word in shown.output for word in ("λ_max", "mean", "spread", "full Hessian"))
    assert (tmp_path / "density.png").stat().st_size > 1000
    asked = ["--parameters", "all", "--float64", "--exact", "--seeds", "1", "--json"]
    done = call(*arguments, *asked)
    found = json.loads(done.stdout)
    assert (found["task"], found["unit"], found["split"], found["of"]) == ("digits", "lipschitz", "train", "all")
    (network,) = found["seeds"]
    assert network["seed"] == 1
    assert network["samples"] == 20
    assert network["exact"]
    assert network["lambda_min"] < network["lambda_max"]
    assert network["condition_number"] == pytest.approx(network["lambda_max"] / abs(network["lambda_min"]))
    assert sum(network["density"]["weights"]) == pytest.approx(1.0)


@pytest.mark.needs("foolbox")
def test_attack(runs: list[Path]) -> None:
    shown = call("robustness", "attack", runs[0], "--attacks", "pgd,fgsm,deepfool-l2,deepfool-linf", "--samples", "40")
    assert shown.exit_code == 0, shown.output
    assert fits(shown.output)
    assert all(
        word in shown.output for word in ("pgd: steps 7, step size 0.01, radius 0.07", "deepfool-linf", "spread")
    )
    assert shown.stderr == ""  # progress is for terminals
    done = call("robustness", "attack", runs[1], "--json", "--radius", "0.03", "--random-start")
    found = json.loads(done.stdout)
    (network,) = found["seeds"]
    assert [each["attack"] for each in network["attacks"]] == ["pgd", "deepfool-l2", "deepfool-linf"]
    evaluated = json.loads(call("evaluate", runs[1], "--json").stdout)
    for each in network["attacks"]:
        clean = pytest.approx(evaluated["seeds"][0]["accuracy"], abs=1.01 / 360)  # up to a sample at the border
        assert each["clean_accuracy"] == clean
        assert each["accuracy"] <= each["clean_accuracy"]
        assert each["radius"] == 0.03


def test_noise(runs: list[Path], tmp_path: Path) -> None:
    arguments = ["robustness", "noise", *runs, "--samples", "60"]
    shown = call(*arguments, "--plot", tmp_path / "noise.png")
    assert shown.exit_code == 0, shown.output
    assert fits(shown.output)
    assert all(word in shown.output for word in ("white noise", "salt-and-pepper noise", "digits-gru", "0.25", "±"))
    assert (tmp_path / "noise.png").stat().st_size > 1000
    done = call(*arguments, "--json", "--kind", "white", "--amounts", "0,0.5", "--noise-seeds", "4")
    first, second = json.loads(done.stdout)["runs"]
    assert [each["seed"] for each in first["seeds"]] == [0, 1]
    (curve,) = second["seeds"][0]["curves"]
    assert (curve["kind"], curve["amounts"], curve["seeds"]) == ("white", [0.0, 0.5], [4])


def test_wrong_usage(runs: list[Path], tmp_path: Path) -> None:
    for arguments, part in (
        (["attack", runs[0], "--attacks", "pgd,stare"], "stare"),
        (["attack", runs[0], "--seeds", "9"], "seeds 0, 1"),
        (["attack", runs[0], "--radius", "0"], "radius"),
        (["noise", runs[0], "--amounts", "little"], "0,0.1,0.2"),
        (["noise", runs[0], runs[0]], "twice"),
        (["noise", runs[0], "--kind", "pink"], "pink"),
        (["hessian", runs[0], "--tolerance", "2"], "tolerance"),
    ):
        done = call("robustness", *arguments)
        assert done.exit_code == 2, done.output
        assert part in done.output
    assert call("robustness", "attack", tmp_path / "nowhere").exit_code == 1
