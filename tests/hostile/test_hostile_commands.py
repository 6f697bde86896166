"""Whatever stands on the command line or in the files that it names: a documented exit code and a message.

Never a traceback, a hang, or a file changed that the command was not asked to write.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_values import campaign, limits
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lipschitz_rnn.cli import app

EXIT_CODES = (0, 1, 2, 3)  # success, failed, wrong usage, not certified
WORDS = (
    "", " ", "-1", "0", "1", "2", "1e9", "99999999999999999999", "nan", "inf", "-inf", "1e-400", "0x10", "ε̈ü🙂", "None",
    "a" * 500, "../../..", "/", "/dev/null", "/dev/full", "/proc/self/mem", ".", "~", "*", "--", "-", "a=b", "=", "a=",
    "=b", "0-", "-0", "3-1", "0-99999999", "0,0", "0,,1", "[]", "{}", "\n", "%s", "{x}", "[bold]", "true",
)  # fmt: skip
FILES = (
    "run",
    "run/config.json",
    "empty.json",
    "half.safetensors",
    "text.npz",
    "pair.npz",
    "wrong.npz",
    "a.csv",
    "none",
)
# What each command is given so that it ends soon where nothing is wrong with the rest.
SMALL: dict[str, tuple[str, ...]] = {
    "train": ("digits", "--preset", "quick", "-e", "1", "-n", "4", "--device", "cpu", "--out", "new"),
    "evaluate": ("run", "--device", "cpu"),
    "report": ("run", "-o", "page"),
    "compare": ("run", "-o", "page"),
    "sweep": ("tiny.toml", "--dry-run", "-o", "new"),
    "reproduce mnist": ("--dry-run", "--quick"),
    "reproduce robustness": ("--dry-run", "--quick"),
    "reproduce ablation": ("--dry-run", "--quick"),
    "certify": ("run", "--time-limit", "1"),
    "robustness attack": ("run", "--samples", "4", "--device", "cpu"),
    "robustness noise": ("run", "--samples", "4", "--device", "cpu"),
    "bench": ("--hidden", "4", "--length", "4", "--batch", "2", "--repeats", "1", "--no-compile", "--device", "cpu"),
    "tasks": (),
    "units": (),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run and with files that are not what their names say."""
    folder = tmp_path_factory.mktemp("hostile")
    done = CliRunner().invoke(app, ["train", *SMALL["train"][:-1], str(folder / "run"), "-e", "1"])
    assert done.exit_code == 0, done.output
    (folder / "empty.json").write_text("")
    whole = (folder / "run/checkpoints/best.safetensors").read_bytes()
    (folder / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "text.npz").write_text("not an archive")
    import numpy as np

    np.savez(folder / "pair.npz", A=-np.eye(2), W=np.zeros((2, 2)))
    np.savez(folder / "wrong.npz", A=np.full((2, 3), np.nan), W=np.array(["x"]))
    (folder / "a.csv").write_text("time,value\n0,1\n")
    fixed = 'task = "digits"\ntask_options = {steps = 8}\nepochs = 1\nhidden_size = 4\ndevice = "cpu"'
    (folder / "tiny.toml").write_text(f"[settings]\n{fixed}\n[space]\nlearning_rate = [0.1, 0.2]\n")
    return folder


def state(folder: Path) -> dict[str, str]:
    """Names and contents of all that was there before, without what the commands are asked to write."""
    kept = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(("new", "page")) and path.name != "run.lock":
            kept[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return kept


def options_of(command: str) -> list[str]:
    import typer.main

    found: Any = typer.main.get_command(app).load_all()  # type: ignore[attr-defined]
    for part in command.split():
        found = found.commands[part]
    names = [max(option.opts, key=len) for option in found.params if option.opts[0].startswith("-")]
    # A run of ten thousand epochs is no wrong input; and what follows is written where a hostile path says.
    written = (
        "--out",
        "--results",
        "--plot",
        "--scaling",
        "--growth",
        "--markdown",
        *(["--json"] if command == "bench" else []),
    )
    return [name for name in names if name not in ("--help", "--epochs", "--commit", "--repeats", *written)]


def check(draw: st.DrawFn, place: Path, command: str) -> None:
    arguments = list(SMALL[command])
    for _ in range(draw(st.integers(1, 3))):
        word = draw(st.sampled_from(WORDS + FILES))
        kind = draw(st.sampled_from(("option", "option", "option", "flag", "replace", "add")))
        names = options_of(command)
        if kind in ("option", "flag") and names:
            arguments += [draw(st.sampled_from(names)), *([word] if kind == "option" else [])]
        elif kind == "replace" and arguments and not arguments[0].startswith("-"):
            arguments[0] = word
        else:
            arguments.append(word)
    before, threads = state(place), torch.get_num_threads()
    with limits():
        done = CliRunner().invoke(app, [*command.split(), *arguments])
    told = done.output + (done.stderr if done.stderr_bytes is not None else "")
    problem = f"{[*command.split(), *arguments]}: exit code {done.exit_code}: {told[-600:]} {done.exception!r}"
    assert done.exception is None or isinstance(done.exception, SystemExit), problem
    assert done.exit_code in EXIT_CODES, problem
    assert told.strip(), problem
    assert "LIPSCHITZ_RNN_TRACEBACK" not in told, problem  # an error that nobody thought of
    assert "Traceback" not in told, problem
    assert state(place) == before, problem
    assert torch.get_num_threads() == threads, problem


@pytest.fixture(autouse=True)
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("LIPSCHITZ_RNN_DATA", str(place))
    monkeypatch.delenv("LIPSCHITZ_RNN_TRACEBACK", raising=False)


@pytest.mark.parametrize("command", SMALL)
@campaign(6)
@given(data=st.data())
def test_a_sample_of_hostile_command_lines(place: Path, command: str, data: st.DataObject) -> None:
    check(data.draw, place, command)


@pytest.mark.full
@pytest.mark.parametrize("command", SMALL)
@campaign(50)
@given(data=st.data())
def test_hostile_command_lines(place: Path, command: str, data: st.DataObject) -> None:
    check(data.draw, place, command)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(
    "name", ["config.json", "task.json", "result.json", "metrics.jsonl", "checkpoints/best.safetensors"]
)
def test_runs_with_a_file_cut_off(place: Path, tmp_path: Path, name: str, share: float) -> None:
    """Every command that reads a run says which file is damaged, or does without it."""
    import shutil

    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    whole = (run / name).read_bytes()
    (run / name).write_bytes(whole[: int(share * len(whole))])
    before = state(run)
    for command in (
        ["evaluate", str(run), "--device", "cpu"],
        ["certify", str(run), "--time-limit", "1"],
        ["report", str(run), "-o", str(tmp_path / "page")],
    ):
        with limits():
            done = CliRunner().invoke(app, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.output, done.exception)
        assert done.exit_code in EXIT_CODES
        assert "LIPSCHITZ_RNN_TRACEBACK" not in done.output + done.stderr, (command, done.output, done.stderr)
        assert state(run) == before


def test_json_answers_are_json(place: Path) -> None:
    for command in ("tasks", "units", "evaluate", "certify"):
        done = CliRunner().invoke(app, [command, *SMALL[command], "--json"])
        assert done.exit_code in (0, 3), done.output
        json.loads(done.stdout)


def test_a_read_only_place_is_named(place: Path) -> None:
    done = CliRunner().invoke(app, ["train", *SMALL["train"][:-1], "/proc/nowhere/run"])
    assert done.exit_code == 1
    assert "/proc/nowhere" in done.output + done.stderr
    assert not os.path.exists("/proc/nowhere")
