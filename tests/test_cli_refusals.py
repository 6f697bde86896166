"""Wrong calls of the command line: what is refused, in the words of what was typed, with its exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app

QUICK = ("--preset", "quick", "-e", "1", "-n", "4", "--device", "cpu", "-t", "steps=8")
ON_FILE = ("--target", "state", "--series", "id", "--preset", "quick", "-e", "1", "-n", "4", "--no-report")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(done: Result) -> str:
    return " ".join(done.output.replace("│", " ").split())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, a model file with two networks, and files that are none."""
    folder = tmp_path_factory.mktemp("refusals")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = [f"{i // 20},{np.sin(i):.4f},{'ab'[i // 20 % 2]}" for i in range(400)]
        Path("log.csv").write_text("\n".join(["id,x,state", *rows]))
        done = [
            call("train", "digits", *QUICK, "-o", "runs/digits"),
            call("train", "digits", *QUICK, "--unit", "contracting", "-o", "runs/contracting"),
            call("train", "log.csv", *ON_FILE, "--seeds", "0-1", "-o", "runs/log"),
            call("export", "runs/log", "two.safetensors"),
        ]
        assert [each.exit_code for each in done] == [0] * len(done), [each.output for each in done]
        Path("cut.safetensors").write_bytes(Path("two.safetensors").read_bytes()[:200])
        Path("cut.npz").write_bytes(b"PK")
        Path("m.onnx").write_bytes(b"onnx")
        Path("swept").mkdir()
        Path("swept/sweep.json").write_text("{}")
        Path("beta.toml").write_text(
            '[settings]\ntask = "digits"\ntask_options = {steps = 8}\nepochs = 1\nhidden_size = 4\ndevice = "cpu"\n'
            "[space]\nlearning_rate = [0.1, 0.2]\n"
        )
    return folder


@pytest.mark.parametrize(
    ("command", "code", "part"),
    [
        # a run would hide what a folder holds, or mix with it
        ("train digits -o runs", 2, "runs already holds run folders: runs/contracting, runs/digits, runs/log; choose"),
        ("train log.csv --target state -o runs", 2, "runs already holds run folders:"),
        ("train digits -o swept", 2, "swept already holds a sweep; choose another --out"),
        ("train digits --resume -o swept", 2, "swept already holds a sweep; choose another --out"),
        ("train digits --jobs 2 -o swept", 2, "swept already holds a sweep; choose another --out"),
        ("sweep beta.toml -o runs/digits", 2, "runs/digits already holds a run; choose another --out"),
        # wrong settings come before the folder that is taken
        ("train digits --lr nan -o runs/digits", 2, "learning_rate is nan"),
        ("train digits --unit lipshitz -o runs/digits", 2, "no unit is called 'lipshitz' (did you mean 'lipschitz'?)"),
        ("train digits -n -4 -o runs/digits", 2, "hidden_size is -4"),
        ("train digits --device gpu -o runs/digits", 2, "device is 'gpu'"),
        ("train log.csv --target state --lr nan -o runs/log", 2, "learning_rate is nan"),
        ("train log.csv --target state --unit contracting -o runs/log", 2, "runs/log already holds a run; resume it"),
        # models
        ("export two.safetensors two.safetensors --seed 0", 2, "two.safetensors is the model to export; name another"),
        ("export m.onnx x.safetensors", 1, ".onnx is only a format of output; give the run folder"),
        ("export log.csv x.pt2", 1, "log.csv is a file of series; give the run folder of `lipschitz-rnn train FILE`"),
        ("export cut.safetensors x.onnx", 1, "cut.safetensors cannot be read as safetensors ("),
        ("certify cut.safetensors", 1, "cut.safetensors cannot be read as safetensors ("),
        ("explore cut.safetensors --no-open", 1, "it is damaged: save it again, or get another copy"),
        ("evaluate --pretrained cut.safetensors", 1, "it is damaged: save it again, or get another copy"),
        ("bench --parallel --device cpu --weights cut.safetensors", 1, "it is damaged: save it again, or get another"),
        ("certify cut.npz", 1, "it is damaged: save it again, or get another copy"),
        # missing files
        ("train digits --config no.toml", 1, "there is no no.toml; name a TOML file with settings"),
        ("sweep no.toml", 1, "there is no no.toml; name a TOML file of a sweep"),
        ("evaluate --pretrained no.safetensors", 1, "there is no no.safetensors; check the path"),
        ("report runs/digits -o log.csv", 1, "log.csv is a file; name a folder"),
        # the option that was typed, not the argument of a function
        ("certify runs/contracting --rounding -1", 2, "--rounding is -1; give a finite number, at least 0"),
        ("certify runs/contracting --rate -1", 2, "--rate is -1; give a positive number, or leave it out"),
        ("certify runs/contracting --rate nan", 2, "--rate is nan"),
        ("certify runs/contracting --accuracy 1", 2, "--accuracy is 1; give a number above 0 and below 1"),
        ("certify runs/contracting --time-limit nan", 2, "--time-limit is nan; give the seconds"),
        ("certify runs/contracting --continuous --step-size 0.5", 2, "--step-size says nothing with --continuous"),
        ("certify runs/contracting --continuous --integrator euler", 2, "--integrator says nothing with --continuous"),
        ("certify runs/contracting --seed 9", 2, "--seed is 9; runs/contracting has the seeds 0"),
        ("certify runs/contracting --seed 9 --radius 0.1", 2, "--seed is 9; runs/contracting has the seeds 0"),
        ("certify cut.npz --seed 9", 2, "--seed is 9, but cut.npz is not a run folder"),
        ("predict runs/log log.csv -o o.csv --interval 1.5", 2, "--interval is 1.5; give a probability between 0 and"),
        ("predict runs/log log.csv -o o.csv --every -1", 2, "--every is -1; give a positive time"),
        ("robustness attack runs/digits --radius nan", 2, "--radius is nan; give a positive number"),
        ("robustness attack runs/digits --step-size 0", 2, "--step-size is 0; give a positive number"),
        ("robustness noise runs/digits --amounts 0,-1", 2, "--amounts is -1; give finite numbers, at least 0"),
        ("robustness noise runs/digits --amounts 2", 2, "--amounts is 2; for salt-and-pepper, give fractions"),
        ("train digits --clip nan", 2, "--clip is nan; give at least 0; 0 does not clip"),
        ("train digits --epochs 0", 2, "--epochs is 0; give at least 1"),
        # misspelt names
        ("evaluate runs/digits --split tset", 2, "Invalid value for '--split': 'tset' is not one of"),
        ("evaluate runs/digits --which bst", 2, "Invalid value for '--which': 'bst' is not one of"),
        ("train digit", 2, "there is no task 'digit' (did you mean 'digits'?)"),
        ("tasks digit", 2, "there is no task 'digit' (did you mean 'digits'?)"),
        ("evaluate --pretrained ordered-mnist-12", 2, "(did you mean 'ordered-mnist-128'?)"),
        ("explore runs/digits --layer 3 --no-open", 2, "--layer is 3; digits has only layer 0"),
    ],
)
def test_wrong_calls(made: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, part: str) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "300")
    before = {path: path.stat().st_size for path in made.rglob("*") if path.is_file()}
    done = call(*command.split())
    assert done.exit_code == code, done.output
    assert part in said(done)
    assert before == {path: path.stat().st_size for path in made.rglob("*") if path.is_file()}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can make another")
@pytest.mark.parametrize(
    "command",
    ["train digits --preset quick -e 1", "train digits --preset quick --jobs 2", "sweep beta.toml",
     "report runs/digits", "compare runs/digits runs/contracting"],
)  # fmt: skip
def test_a_folder_that_cannot_be_made(made: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(made)
    done = call(*command.split(), "-o", "/proc/foo")
    assert done.exit_code == 1
    assert "cannot write to /proc/foo: " in said(done)
    assert "choose another" in said(done)
    assert "resume" not in said(done)
    assert "kept" not in said(done)


def test_a_damaged_run_goes_on_beside_others(made: Path, tmp_path: Path) -> None:
    """Run folders in a run are found only where another run would hide them."""
    shutil.copytree(made / "runs" / "digits", tmp_path / "run")
    shutil.copytree(made / "runs" / "digits", tmp_path / "run" / "copy")
    assert call("train", "--resume", "-o", tmp_path / "run").exit_code == 0
    (tmp_path / "other" / "app").mkdir(parents=True)
    (tmp_path / "other" / "app" / "config.json").write_text("{}")  # of some other program
    assert call("train", "digits", *QUICK, "--dry-run", "-o", tmp_path / "other").exit_code == 0


def test_certify_says_which_precision_it_is_about(made: Path) -> None:
    run = made / "runs" / "contracting"
    note = "This is about matrices in float32, not bfloat16"
    assert note in said(call("certify", run, "--precision", "bfloat16"))
    assert "This is about" not in said(call("certify", run, "--precision", "highest"))
    assert "This is about" not in said(call("certify", run))


def test_options_without_effect_are_told(tmp_path: Path) -> None:
    idle = ("--warmup", "0.5", "--momentum", "0.1", "--decay-epochs", "3")
    done = call("train", "digits", *QUICK, "--schedule", "constant", *idle, "--dry-run")
    assert json.loads(done.stdout)["warmup"] == 0.5
    for name in ("warmup", "momentum", "decay-epochs"):
        assert f"warning: --{name} has no effect with --" in said(done)
    acting = ("--schedule", "step", "--decay-epochs", "3", "--optimiser", "sgd", "--momentum", "0.1")
    assert "warning" not in call("train", "digits", *QUICK, *acting, "--dry-run").output


def test_the_short_name_of_a_contracting_unit_is_explained() -> None:
    assert "--unit lipschitz -u stability=contracting" in said(call("units", "contracting"))
    assert json.loads(call("units", "contracting", "--json").stdout)["name"] == "contracting"
    assert "--unit contracting is short for" in said(call("units"))


def test_the_details_of_a_task_are_words() -> None:
    text = said(call("tasks", "digits"))
    assert "metric accuracy, higher is better" in text
    assert "vocabulary" not in text
    assert not any(word in text for word in ("None", "True", "False"))
