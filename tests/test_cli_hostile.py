"""Absurd command lines: a documented exit code and a message, no traceback, and no file that was not asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app

CODES = (0, 1, 2, 3, 130, 143)
ODD = ("", "-1", "nan", "inf", "9" * 400, "ü/ñ\u2603", "a" * 5000, "/dev/full", "\n", "[bold]x[/]", "a\x1b[31m", "x=,=")
# What runs quickly, or stops before it runs; one option of each is then replaced.
BASES = {
    "train": ["digits", "--dry-run"],
    "evaluate": ["no-such-run"],
    "report": ["no-such-run"],
    "predict": ["no-such-run", "no.csv", "-o", "out.csv"],
    "export": ["no-such-run", "model.onnx"],
    "certify": ["pair.safetensors", "--time-limit", "1"],
    "explore": ["no-such-run", "--no-open"],
    "bench": ["--device", "cpu", "--explain"],
    "reproduce mnist": ["--dry-run", "--quick"],
    "reproduce figures": ["--dry-run"],
    "reproduce ablation": ["--dry-run", "--quick"],
    "reproduce robustness": ["--dry-run", "--quick"],
    "reproduce cifar": ["--dry-run", "--quick"],
    "reproduce ptb": ["--dry-run", "--quick"],
    "reproduce speech": ["--dry-run", "--quick"],
    "reproduce noise": ["--dry-run", "--quick"],
    "reproduce all": ["--dry-run", "--quick"],
    "robustness hessian": ["no-such-run"],
    "robustness attack": ["no-such-run"],
    "robustness noise": ["no-such-run"],
    "tasks": [],
    "units": [],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LIPSCHITZ_RNN_TRACEBACK", raising=False)
    save_file({"A": -2.0 * torch.eye(2), "W": 0.1 * torch.eye(2)}, tmp_path / "pair.safetensors")
    yield tmp_path
    assert set(os.listdir(tmp_path)) <= {"pair.safetensors", *ODD}  # nothing but what was named


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def check(done: Result, arguments: Any) -> None:
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
    assert done.exit_code in CODES, arguments
    assert "Traceback" not in done.output
    assert "LIPSCHITZ_RNN_TRACEBACK" not in done.output, (arguments, done.output)  # an error that nobody thought of
    assert done.exit_code == 0 or done.output.strip(), arguments
    assert "\x1b[31m" not in done.output  # what was given does not reach the terminal as a control sequence


def options(name: str) -> list[str]:
    command: Any = get_command(app).load_all()
    for word in name.split():
        command = command.commands[word]
    found = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "is_flag", False)]
    return [next(option for option in p.opts if option.startswith("--")) for p in found]


@pytest.mark.parametrize("name", BASES)
def test_every_option_bears_an_odd_value(name: str) -> None:
    """Each option with one of the odd values, another one for the next option; `make test-full` tries all."""
    for number, option in enumerate(options(name)):
        arguments = [*name.split(), *BASES[name], f"{option}={ODD[number % len(ODD)]}"]
        check(call(*arguments), arguments)


@pytest.mark.full
@pytest.mark.parametrize("name", BASES)
def test_every_option_bears_every_odd_value(name: str) -> None:
    for option in options(name):
        for value in ODD:
            arguments = [*name.split(), *BASES[name], f"{option}={value}"]
            check(call(*arguments), arguments)


@pytest.mark.parametrize("value", [*ODD[:8], ".", "pair.safetensors"], ids=lambda value: repr(value[:8]))
def test_every_argument_bears_an_odd_value(value: str) -> None:
    for name in ("evaluate", "certify", "explore", "robustness hessian", "train", "tasks", "units"):
        arguments = [*name.split(), *(["--time-limit", "1"] if name == "certify" else []), "--", value]
        if name in ("train", "explore"):
            arguments.insert(1, {"train": "--dry-run", "explore": "--no-open"}[name])
        check(call(*arguments), arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["train", "digits", "--config", "/dev/full"], 2, "/dev/full is not a regular file; name a TOML file"),
        (["train", "--task", "digits"], 2, "the task is named without an option: lipschitz-rnn train digits; --task"),
        (["train", "--task", "a b.csv"], 2, "the file is named without an option: lipschitz-rnn train 'a b.csv';"),
        (["train", "--task", "digit"], 2, "needs no option: lipschitz-rnn train TASK"),
        (["train", "a.csv", "--task", "digits"], 2, "it says what to do with a file, and is one of classify, regress,"),
        (["train", "--task", "classify"], 2, "--task is for a file, but none is given; name it: lipschitz-rnn train"),
        (["train", "digits", "--config", "."], 2, ". is a folder; name a TOML file"),
        (["train", "digits", "--seeds", "0-99999999"], 2, "at most 10,000 seeds"),
        (["train", "digits", "--seeds", "9" * 30], 2, "below 2**63"),
        (["train", "digits", "-n", "many"], 2, "'many'"),
        (["train", "digits", "--lr", "x" * 99], 2, "x" * 60),
        (["train", "digits", "--dry-run", "--address", "x"], 2, "--address x is for --engine ray; leave it out, or"),
        (["train", "digits", "--jobs", "-7"], 2, "-7"),
        (["robustness", "hessian", ".", "--probes", "x"], 2, "'x'"),
        (["robustness", "tickle"], 2, "No such command 'tickle'. The commands are hessian, attack, noise."),
        (["certfy"], 2, "The commands are quickstart, train, sweep,"),
        (["robustness", "noise", "no-such-run", "--noise-seeds", "x"], 1, "it does not exist; give the folder that"),
        (["certify", "pair.safetensors", "--step-size=0.1", "--rounding=-7"], 2, "--rounding is -7; give a finite"),
        (["bench", "--weights", "x"], 2, "--weights is 'x', but it chooses the layer of --parallel; pass both"),
        (["evaluate"], 2, "give either a run folder or --pretrained NAME; none is given"),
        (["evaluate", ".", "--pretrained", "x"], 2, "--pretrained NAME; '.' and --pretrained 'x' are both given"),
        (["bench", "--device", "cpu", "--hidden", "10000000"], 2, "GB are free; choose smaller sizes"),
        (["bench", "--device", "cpu", "--markdown", "."], 2, ". cannot be written: it is a folder; name a file"),
        (["bench", "--threads", "99999999999"], 2, "--threads"),
        (["robustness", "attack", ".", "-a", "tickle"], 2, "--attacks names 'tickle'; choose among pgd"),
        (["robustness", "noise", ".", "."], 2, "the same run is given twice"),
        (["robustness", "hessian", ".", "--plot", "no/where.png"], 2, "there is no folder"),
        (["reproduce", "nosuch"], 2, "there is no study 'nosuch' (did you mean 'noise'?); the studies are mnist, "),
        (["reproduce", "permuted-mnist", "--quick"], 2, "(did you mean 'mnist'?)"),
        (["reproduce", "???"], 2, "there is no study '???'; the studies are mnist, robustness, curvature, ablation,"),
        (["reproduce", "mnist", "--seeds", "x"], 2, "--seeds is 'x'; write seeds e.g. as 0-11"),
        (["quickstart", "--seeds", ""], 2, "--seeds is ''"),
        (["report", "a", "b", "--check"], 2, "2 folders are given; give one folder of JSON results"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_one_line_says_what_is_wrong(arguments: list[str], code: int, told: str) -> None:
    done = call(*arguments)
    check(done, arguments)
    assert done.exit_code == code, done.output
    assert told in done.output, done.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_empty_run_folder_is_refused(folder: Path) -> None:
    """As a path an empty name is the current folder, and the run's files would be scattered there."""
    done = call("train", "digits", "-n", "4", "--epochs", "0", "--out", "")
    assert done.exit_code == 2
    assert "--out" in done.output


def test_a_full_disk_is_named() -> None:
    done = call("bench", "--device", "cpu", "--explain", "--json", "/dev/full")
    check(done, "bench")
    assert done.exit_code == 1
    assert "No space left on device" in done.output
