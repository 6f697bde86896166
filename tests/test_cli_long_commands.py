"""What all long commands share: --threads, progress, Ctrl-C, and help pages that read well."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app
from lipschitz_rnn.commands import errors, progress, threads
from lipschitz_rnn.commands.errors import guarded
from lipschitz_rnn.commands.help import fill_paragraphs
from lipschitz_rnn.commands.progress import named, progress_bar, spinner

LONG = (
    ["train"],
    ["evaluate"],
    ["report"],
    ["quickstart"],
    ["certify"],
    ["bench"],
    ["reproduce", "mnist"],
    ["reproduce", "figures"],
    ["reproduce", "ablation"],
    ["reproduce", "robustness"],
    ["reproduce", "cifar"],
    ["reproduce", "ptb"],
    ["reproduce", "speech"],
    ["reproduce", "noise"],
    ["reproduce", "all"],
    ["robustness", "hessian"],
    ["robustness", "attack"],
    ["robustness", "noise"],
)
PAGES = ([], ["reproduce"], ["robustness"], ["tasks"], ["units"], *LONG)


def call(*arguments: str | Path, columns: int = 80) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def name(words: list[str]) -> str:
    return " ".join(words) or "start page"


@pytest.mark.parametrize("command", LONG, ids=name)
def test_every_long_command_takes_threads(command: list[str]) -> None:
    found: Any = get_command(app).load_all()  # type: ignore[attr-defined]
    for word in command:
        found = found.commands[word]
    assert "--threads" in [option for parameter in found.params for option in parameter.opts]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", PAGES, ids=name)
def test_help_pages_fill_the_line_and_cut_no_word(command: list[str], columns: int) -> None:
    page = call(*command, "--help", columns=columns).output
    assert max(len(line) for line in page.splitlines()) <= columns
    for odd in ("<bool>", "<str>", "<int>", "<float>", "<path>", "<Path>", "<paper|quick>", "None", "Literal", "…"):
        assert odd not in page, odd
    prose = [line.rstrip() for line in page.split("╭")[0].splitlines()]
    for line, following in itertools.pairwise(prose):
        if line.startswith("   "):  # an example, which must not break
            assert not following or following.startswith("   "), following
            continue
        first = following.strip().split(" ")[0]
        filled = len(line) + 1 + len(first) >= columns - 1
        assert not (line and first) or filled, line


def test_paragraphs_are_filled_and_examples_are_not() -> None:
    text = "First\n    line.\n\n    Second\n    one.\n\n      a\n      b\n    "
    assert fill_paragraphs(text) == "First line.\n\nSecond one.\n\n  a\n  b"


@pytest.mark.usefixtures("two_threads")
def test_threads_hold_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = []

    @threads.with_threads
    def command(size: int) -> None:
        threads.choose_threads(1, 1000, size)
        seen.append(torch.get_num_threads())

    command(128, threads=2)
    command(128, threads=1)
    command(128)  # small: one thread
    monkeypatch.setattr(threads, "idle_cores", lambda: 2)
    command(512)
    monkeypatch.setattr(threads, "idle_cores", lambda: 1)
    command(512)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    command(128)
    assert seen == [2, 1, 1, 2, 1, 2]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_resumed_run_takes_the_threads_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with threads.thread_limit(None):
        threads.choose_threads(1, 8, 8, recorded=2)
        assert torch.get_num_threads() == 2
    with threads.thread_limit(1):
        threads.choose_threads(1, 8, 8, recorded=2)
        assert torch.get_num_threads() == 1


def test_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= threads.idle_cores() <= threads.usable_cores() <= (os.cpu_count() or 1)
    files = {"thread_siblings_list": None, "cpu.max": "150000 100000", "loadavg": "0.1 0.1 0.1 9/500 77"}
    monkeypatch.setattr(threads, "_read", lambda path: files[path.name])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert threads.usable_cores() == 2  # one and a half, rounded up
    files["cpu.max"] = "max 100000"
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert threads.usable_cores() == 16
    assert threads.idle_cores() == 16 - 8
    files["thread_siblings_list"] = "0,8"
    assert threads.usable_cores() == 1
    monkeypatch.setattr(threads, "_read", lambda path: None)  # no Linux
    assert threads.idle_cores() == 16


def test_ctrl_c_ends_a_command_with_130_and_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    from safetensors.torch import save_file

    save_file({"A": -torch.eye(2), "W": torch.eye(2)}, tmp_path / "pair.safetensors")
    for where, arguments, hint in (
        ("lipschitz_rnn.tasks.load", ["train", "digits", "--out", tmp_path / "run"], "--resume"),
        ("lipschitz_rnn.tasks.load", ["quickstart", "-o", tmp_path / "quick"], "to continue, run the same command"),
        ("lipschitz_rnn.tasks.load", ["evaluate", "--pretrained", "ordered-mnist-128"], "run the same command again"),
        ("lipschitz_rnn.benchmark.measure", ["bench", "--device", "cpu"], "run the same command again"),
        ("lipschitz_rnn.commands.report.write_report", ["report", tmp_path], "run the same command again"),
        ("lipschitz_rnn.stability.certify", ["certify", tmp_path / "pair.safetensors"], "run the same command again"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, interrupt)
            done = call(*arguments, columns=200)
        assert done.exit_code == 130, (arguments, done.output)
        assert len(done.output.strip().splitlines()) == 1, done.output
        assert done.output.startswith("error: interrupted; ")
        assert hint in done.output


@pytest.mark.slow
def test_a_real_ctrl_c_while_a_command_measures() -> None:
    code = """
import signal, time
import lipschitz_rnn.benchmark
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from lipschitz_rnn.cli import main
lipschitz_rnn.benchmark.measure = lambda *arguments: (print("ready", flush=True), time.sleep(100))
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, "bench", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(told.strip().splitlines()) == 1
    assert told.startswith("error: interrupted")


def test_progress_is_silent_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as show:
        show("scoring", 1, 2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_shows_on_a_terminal_unless_json_is_asked_for(
    quiet: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes standard error for a terminal
    with progress_bar(quiet) as show:
        named(show, "seed 3")("scoring", 1, 2)
    with spinner("drawing", quiet):
        pass
    out, told = capfd.readouterr()
    assert out == ""
    assert ("seed 3: scoring" in told) == ("drawing" in told) == (not quiet)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("size is 0;\n it must be 1"), 2, "error: size is 0; it must be 1"),
        (OverflowError("too large"), 2, "error: too large"),
        (
            RuntimeError("[enforce fail] can't allocate memory: 9 bytes"),
            1,
            "error: the sizes are too large for this machine: [",
        ),
        (MemoryError(), 1, "error: the sizes are too large for this machine: out of memory; choose smaller ones"),
        (IsADirectoryError(21, "Is a directory", "x"), 1, "error: x: Is a directory"),
        (KeyError("oops"), 1, "LIPSCHITZ_RNN_TRACEBACK=1"),
        (ValueError("a\x1b[31mred\udcff"), 2, r"error: a\x1b[31mred\udcff"),
        (KeyboardInterrupt(), 130, "error: interrupted; to start over"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_become_one_line_and_a_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    monkeypatch.delenv(errors.TRACEBACK, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    @guarded
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as stopped:
        command()
    assert stopped.value.exit_code == code
    printed = capsys.readouterr().err.strip()
    assert len(printed.splitlines()) == 1
    assert told in printed


def test_the_traceback_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(errors.TRACEBACK, "1")

    @guarded
    def command() -> None:
        raise KeyError("oops")

    with pytest.raises(KeyError, match="oops"):
        command()


def test_variants_can_be_told_apart_at_80_columns(tmp_path: Path) -> None:
    options = ["-e", "1", "-n", "3", "--seeds", "0-1", "--device", "cpu", "--out", tmp_path / "run"]
    variants = ["--variant", "beta=0.65 gamma=0.125", "--variant", "beta=0.65 gamma=0.25"]
    done = call("train", "digits", "--preset", "quick", *options, *variants)
    assert done.exit_code == 0, done.output
    for text in ("beta=0.65", "gamma=0.125", "gamma=0.25"):
        assert text in done.stdout
    scored = call("evaluate", tmp_path / "run")
    assert "gamma=0.125" in scored.stdout.replace("\n", "")
    assert max(len(line) for line in scored.stdout.splitlines()) <= 80


@pytest.mark.parametrize("columns", [80, 120])
def test_lists_cut_no_name(columns: int) -> None:
    for listing in ("units", "tasks"):
        names = json.loads(call(listing, "--json").stdout)
        page = call(listing, columns=columns).output
        assert max(len(line) for line in page.splitlines()) <= columns
        first = {re.split(r"\s", line.strip())[0] for line in page.splitlines() if line.strip()}
        assert set(names) <= first


@pytest.mark.parametrize(
    "columns", [pytest.param(40, marks=pytest.mark.full), 80, pytest.param(120, marks=pytest.mark.full)]
)
def test_the_list_of_studies_cuts_no_name_of_a_run(columns: int) -> None:
    runs = json.loads(call("reproduce", "--list", "--json").stdout)
    page = call("reproduce", "--list", columns=columns).output
    if columns >= 80:
        assert max(len(line) for line in page.splitlines()) <= columns
    first = {line.split()[0] for line in page.splitlines() if line.strip()}
    assert {run["name"] for run in runs if run["group"] == "paper"} <= first
    assert {f"--{run['group']}" for run in runs if run["group"] != "paper"} <= first
    assert {run["study"] for run in runs} <= first


def test_names_in_a_progress_bar_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=shown, force_terminal=True, width=100))
    with progress_bar() as show:
        show("timing nn.RNN [float16]", 1, 2)
        show("run m[/c]", 1, 2)
    assert "timing nn.RNN [float16]" in shown.getvalue()
    assert "run m[/c]" in shown.getvalue()
