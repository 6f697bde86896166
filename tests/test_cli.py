"""The command line: help, exit codes, JSON, and a run from its start to a report."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app, main
from lipschitz_rnn.training import Settings

COMMANDS = (
    "quickstart",
    "train",
    "evaluate",
    "report",
    "reproduce",
    "predict",
    "export",
    "certify",
    "explore",
    "robustness",
    "bench",
    "tasks",
    "units",
)
SMALL = ["--preset", "quick", "-e", "2", "-n", "6", "--device", "cpu", "--log-steps", "3"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small complete run with two seeds."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    done = call("train", "digits", *SMALL, "--seeds", "0-1", "--out", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_worth_reading(command: str) -> None:
    done = call(command, "--help")
    assert done.exit_code == 0
    options = [option for option in get_command(app).load_all().commands[command].params if option.name != "help"]  # type: ignore[attr-defined]
    assert all(getattr(option, "help", None) for option in options)


def test_brackets_in_help_texts_are_no_markup() -> None:
    assert "[float16]" in call("bench", "--help").output


def test_the_start_page_lists_the_commands() -> None:
    text = call("--help").output
    assert all(command in text for command in COMMANDS)
    assert call("--version").output.strip()


def test_options_have_the_names_of_their_settings() -> None:
    """Typer 0.27 takes an option's name from its metavar unless the option names itself."""
    command = get_command(app).load_all()  # type: ignore[attr-defined]
    for name in COMMANDS:
        found = command.commands[name]  # type: ignore[attr-defined]
        for each in (found, *getattr(found, "commands", {}).values()):
            flags = [flag for option in each.params if option.param_type_name == "option" for flag in option.opts]
            assert all(flag == flag.lower() for flag in flags), flags


def test_every_setting_is_an_option_of_train() -> None:
    given = {option.name for option in get_command(app).load_all().commands["train"].params}  # type: ignore[attr-defined]
    renamed = {"unit_options": "unit_option", "task_options": "task_option", "variants": "variant"}
    assert {renamed.get(f.name, f.name) for f in dataclasses.fields(Settings)} <= given


def test_every_option_of_train_reaches_its_setting(tmp_path: Path) -> None:
    """Zeros, too; what is not given stays the preset's, or the file's."""
    given = {
        "seeds": ("3,5-6", [3, 5, 6]), "unit": ("lipschitz", "lipschitz"), "hidden-size": ("7", 7),
        "num-layers": ("2", 2), "dropout": ("0", 0.0), "embedding-dropout": ("0.5", 0.5),
        "epochs": ("2", 2), "patience": ("4", 4), "batch-size": ("9", 9),
        "eval-batch-size": ("11", 11),
        "optimiser": ("sgd", "sgd"), "lr": ("0.5", 0.5), "momentum": ("0", 0.0), "smoothing": ("0.25", 0.25),
        "matrix-rate": ("2", 2.0), "bias-rate": ("3", 3.0),
        "weight-decay": ("0.1", 0.1), "clip": ("0", None), "schedule": ("step", "step"), "decay-factor": ("0", 0.0),
        "decay-epochs": ("3,4", [3, 4]), "warmup": ("0", 0.0), "final-rate": ("0.5", 0.5), "averaging": ("0.01", 0.01),
        "margin": ("2", 2.0), "train-radius": ("0", 0.0), "gain-penalty": ("0", 0.0), "head-penalty": ("0", 0.0),
        "robust-ramp": ("0.25", 0.25),
        "precision": ("high", "high"), "ensemble": ("vmap", "vmap"), "device": ("cpu", "cpu"),
        "cuda-graph": ("off", "off"), "log-steps": ("2", 2), "checkpoint-minutes": ("inf", math.inf),
        "data-dir": ("there", "there"),
        "unit-option": ("gamma=0.5", {"gamma": 0.5}), "task-option": ("steps=8", {"steps": 8}),
        "variant": ("beta=0.5 alpha=0", [{"beta": 0.5, "alpha": 0}]),
    }  # fmt: skip
    arguments = [part for flag, (text, _) in given.items() for part in (f"--{flag}", text)]
    done = call("train", "digits", *arguments, "--offline", "--dry-run")
    assert done.exit_code == 0, done.output
    renamed = {"lr": "learning_rate", "unit-option": "unit_options", "task-option": "task_options"}
    expected = {renamed.get(flag, flag.replace("-", "_")): value for flag, (_, value) in given.items()}
    expected |= {"variants": expected.pop("variant"), "offline": True, "task": "digits"}
    found = json.loads(done.stdout)
    assert expected.pop("unit_options").items() <= found.pop("unit_options").items()
    assert found == expected
    file = tmp_path / "some.toml"
    file.write_text('task = "digits"\noffline = true\nvariants = [{beta = 0.5}]\nepochs = 4\n')
    kept = json.loads(call("train", "-c", file, "--dry-run").stdout)
    assert (kept["offline"], kept["variants"], kept["epochs"]) == (True, [{"beta": 0.5}], 4)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train", "digits", "--schedule", "stairs"], "stairs"),
        (["train", "digits", "--no-such-option"], "no-such-option"),
        (["train", "nothing"], "digits"),
        (["train"], "no task"),
        (["train", "nowhere", "--dry-run"], "no task 'nowhere'"),
        (["train", "digits", "--seeds", "3-1"], "backwards"),
        (["train", "digits", "--seeds", "many"], "0-11"),
        (["train", "digits", "-u", "beta"], "name=value"),
        (["train", "digits", "-u", "betta=1"], "betta"),
        (["train", "digits", "--lr", "-1"], "positive"),
        (["train", "digits", "--unit", "lstmm"], "lstm"),
        (["train", "digits", "--resume"], "--out"),
        (["train", "digits", "--device", "toaster"], "toaster"),
        (["tasks", "nothing"], "nothing"),
        (["units", "nothing"], "nothing"),
        (["certify"], "target"),
        (["nothing"], "nothing"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_fault(arguments: list[str], part: str, tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        done = call(*arguments)
    finally:
        os.chdir(before)
    assert done.exit_code == 2, done.output
    assert part.lower() in done.output.lower()
    assert "Traceback" not in done.output
    assert "run folder: runs" not in done.output  # there is none
    assert not list(tmp_path.iterdir())


def test_a_failed_run_exits_with_1(tmp_path: Path) -> None:
    done = call("train", "digits", *SMALL, "--lr", "1e30", "--optimiser", "sgd", "--out", tmp_path / "run")
    assert done.exit_code == 1
    assert "NaN or infinite at step" in done.output
    assert call("evaluate", tmp_path / "nowhere").exit_code == 1
    assert call("report", tmp_path / "nowhere").exit_code == 1


def test_train_writes_a_run_and_refuses_to_overwrite_it(run: Path) -> None:
    again = call("train", "digits", *SMALL, "--out", run)
    assert again.exit_code == 2
    assert "--resume" in again.output
    other = call("train", "--resume", "--out", run, "--lr", "0.5")
    assert other.exit_code == 2
    assert "learning_rate" in other.output


def test_a_folder_of_runs_is_not_resumed_but_its_runs_are_named(run: Path) -> None:
    done = call("train", "--resume", "--out", run.parent)
    assert (done.exit_code, f"is not a run folder; the run folders in it are {run}" in done.output) == (1, True)


def test_a_finished_run_resumes_to_its_result_as_json(run: Path) -> None:
    done = call("train", "--resume", "--out", run, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [seed["seed"] for seed in result["seeds"]] == [0, 1]
    assert result["metric"] == "accuracy"
    assert result == json.loads((run / "result.json").read_text()) | {"folder": str(run), "paper": None}


def test_evaluate_finds_the_scores_of_training(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    best = json.loads(call("evaluate", run, "--json").stdout)
    last = json.loads(call("evaluate", run, "--json", "--which", "last").stdout)
    assert [seed["accuracy"] for seed in best["seeds"]] == [seed["test"] for seed in result["seeds"]]
    assert [seed["accuracy"] for seed in last["seeds"]] == [seed["test_last"] for seed in result["seeds"]]
    assert "test accuracy" in call("evaluate", run).output


def test_a_toml_file_gives_settings_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "digits"\nepochs = 7\nseeds = [3]\nlearning_rate = 0.5\n[unit_options]\nbeta = 0.9\n')
    done = call("train", "--config", file, "--lr", "0.25", "-u", "gamma=[0.5, 0.1]", "--dry-run")
    settings = json.loads(done.stdout)
    assert (settings["task"], settings["epochs"], settings["seeds"]) == ("digits", 7, [3])
    assert settings["learning_rate"] == 0.25
    assert settings["unit_options"]["beta"] == 0.9
    assert settings["unit_options"]["gamma"] == [0.5, 0.1]
    file.write_text("epoch = 7\n")
    assert call("train", "digits", "--config", file).exit_code == 2


def test_the_defaults_are_the_papers() -> None:
    settings = json.loads(call("train", "ordered-mnist", "--dry-run").stdout)
    assert settings["hidden_size"] == 128
    assert (settings["learning_rate"], settings["decay_epochs"], settings["epochs"]) == (0.003, [90], 100)
    assert settings["unit_options"]["step_size"] == 0.03
    quick = json.loads(call("train", "ordered-mnist", "--preset", "quick", "--dry-run").stdout)
    assert quick["epochs"] < 10
    lstm = json.loads(call("train", "ordered-mnist", "--unit", "lstm", "--dry-run").stdout)
    assert lstm["unit_options"] == {}


def test_listings_as_json_and_as_tables() -> None:
    tasks = json.loads(call("tasks", "--json").stdout)
    assert tasks["digits"]["sequence_length"] == 64
    assert "ordered-mnist" in call("tasks").output
    assert "scikit-learn" in call("tasks", "digits").output
    units = json.loads(call("units", "--json").stdout)
    assert units["lipschitz"]["parameters"] == 34314
    assert [units[name]["timespans"] for name in ("lipschitz", "lem", "lstm")] == [True, True, False]
    assert "lstm" in call("units").output
    assert "beta" in call("units", "lipschitz").output


def test_certify_exits_with_0_or_3(run: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"A": -2.0 * torch.eye(3), "W": 0.1 * torch.eye(3)}, tmp_path / "good.safetensors")
    good = call("certify", tmp_path / "good.safetensors", "--json")
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["good.safetensors"]["rate"] == pytest.approx(1.9, rel=0.01)
    save_file({"A": 2.0 * torch.eye(3), "W": 0.1 * torch.eye(3)}, tmp_path / "bad.safetensors")
    bad = call("certify", tmp_path / "bad.safetensors")
    assert bad.exit_code == 3
    assert "not certified" in bad.output
    trained = call("certify", run, "--seed", "1", "--time-limit", "5", "--json")
    assert trained.exit_code in (0, 3)
    assert list(json.loads(trained.stdout)) == ["seed 1"]
    assert call("certify", run, "--seed", "9").exit_code == 2


def test_report_from_the_command_line(run: Path, tmp_path: Path) -> None:
    done = call("report", run, "-o", tmp_path / "page", "--json")
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    assert Path(written["html"]).read_text().startswith("<!doctype html>")


@pytest.mark.full  # a real Ctrl-C in test_cli_long_commands is the sample
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_exit_with_130_and_143_and_say_what_is_saved(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-m", "lipschitz_rnn", "train", "digits", "-n", "6", "-e", "10000", "--out"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "run")], stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert process.stderr is not None
    told = ""
    while "epoch 2/" not in told:
        told = process.stderr.readline()
        assert told, "the run ended by itself"
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(timeout=60) == code
    assert "saved as" in rest
    assert "Traceback" not in rest
    process.stderr.close()


def test_brackets_in_names_are_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "[/red]run[bold]"
    sizes = ["-t", "length=4", "-t", "train_size=32", "-t", "eval_size=16", "-n", "3", "-e", "1"]
    result = call("train", "adding", *sizes, "--device", "cpu", "-o", folder)
    assert result.exit_code == 0, result.output
    assert f"run folder: {folder}" in result.output
    assert f"lipschitz-rnn report '{folder}'" in result.output


def test_a_log_in_ascii_does_not_end_a_command_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["lipschitz-rnn", "units", "lipschitz"])
    with pytest.raises(SystemExit) as end:
        main()
    sys.stdout.flush()
    assert end.value.code == 0
    assert b"tanh(W h + U x + b)" in log.getvalue()
