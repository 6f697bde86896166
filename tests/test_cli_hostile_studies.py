"""Mistakes of new users with `reproduce` and `report`: every one is answered before anything is trained or written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app
from lipschitz_rnn.commands import reproduce as commands_reproduce

QUICK = ["reproduce", "mnist", "--quick", "--only", "16/euler", "--seeds", "0", "--epochs", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a file, an empty folder, something like a run, something like a record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("empty", "runs/one", "records/mnist"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a-file", "runs/one/config.json", "records/mnist/one.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["reproduce", "--list", "--results", "nowhere"], 2, "--results is nowhere, which is missing; name a folder"),
        (["reproduce", "--list", "--results", "a-file"], 2, "--results is a-file, which is a file; name a folder"),
        (["reproduce", "--list"], 0, "there is no folder results here, so nothing is committed; name another with"),
        (["reproduce", "--results", "empty", "mnist", "--dry-run"], 2, "--results stands before the study, where it"),
        (["reproduce", "--json"], 2, "--json is for --list; add it, or name a study first"),
        (["reproduce", "cifar", "--dry-run", "--gpus", "1"], 2, "--gpus 1 is for --engine ray; leave it out, or"),
        (["reproduce", "cifar", "--only", "noise", "--dry-run"], 2, "but the pattern '*noise*' would"),
        (["reproduce", "mnist", "--only", "baselines"], 2, "--baselines adds the runs of that group"),
        (["reproduce", "mnist", "--only", "ordered-mnst"], 2, "--only 'ordered-mnst' (did you mean 'ordered-mnist'?);"),
        (["reproduce", "mnist", "--only", "lstmm"], 2, "--only 'lstmm' (did you mean 'lstm'?); the runs are"),
        (["reproduce", "all", "--only", "ordered-mnst"], 2, "(did you mean 'ordered-mnist'?); `lipschitz-rnn"),
        ([*QUICK, "--out", "a-file"], 1, "a-file is a file, not a folder; choose another folder for the run"),
        ([*QUICK, "--results", "a-file"], 1, "a-file is a file; choose another --results"),
        ([*QUICK, "--out", ""], 2, "the name is empty; give a folder"),
        ([*QUICK, "--results", ""], 2, "the name is empty; give a folder"),
        (["report", "nowhere"], 1, "there is no folder nowhere; name a run folder"),
        (["report", "a-file"], 1, "a-file is a file; name a run folder"),
        (["report", "--check", "nowhere"], 1, "there is no folder nowhere"),
        (["report", "--check", "empty"], 0, "nothing to compare: empty holds no STUDY/NAME.json, and "),
        (["report", "--check", "runs"], 1, "runs is not a folder of JSON results: it holds run folders"),
        (["report", "records", "runs"], 2, "records is a folder of JSON results; give it alone, or give only run"),
        (["report", "runs", "--out", ""], 2, "the name is empty"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_one_line_says_what_is_wrong(arguments: list[str], code: int, told: str, folder: Path) -> None:
    before = sorted(os.walk(folder))
    done = call(*arguments)
    assert told in done.output, done.output
    assert done.exit_code == code, done.output
    assert "failed: " not in done.output  # nothing was started
    assert "Traceback" not in done.output
    assert sorted(os.walk(folder)) == before


@pytest.mark.parametrize("study", ["figures", "all"])
def test_a_list_trains_nothing_even_with_a_study(study: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_reproduce, "run_study", None)  # it would train for hours
    before = sorted(os.walk(folder))
    done = call("reproduce", "--list", study)
    assert done.exit_code == 0, done.output
    assert "ordered-mnist/spectra" in done.output
    assert ("permuted-mnist/lipschitz/64/euler" in done.output) == (study == "all")
    assert sorted(os.walk(folder)) == before


def test_an_empty_pattern_does_not_list_the_runs_of_groups() -> None:
    done = call("reproduce", "mnist", "--only", "")
    assert done.exit_code == 2
    assert done.output.split()[-1] == "permuted-mnist/lipschitz/128/midpoint"


def test_a_results_folder_that_is_not_writable_is_refused_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superuser may write anywhere, so that the answer of the system is invented."""
    locked = folder / "locked"
    locked.mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and allowed(path, mode))
    done = call(*QUICK, "--out", "out", "--results", "locked")
    assert done.exit_code == 1
    assert f"cannot be written to locked: {locked} is not writable; change its permissions" in done.output
    assert not (folder / "out").exists()


def test_resume_cuts_off_damaged_metrics_and_keeps_a_run_without_settings(folder: Path) -> None:
    run = folder / "out" / "quick" / "digits" / "lipschitz" / "16" / "euler"
    assert call(*QUICK, "--out", "out").exit_code == 0
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + "garbage\n")
    (run / "result.json").unlink()
    mended = call(*QUICK, "--out", "out", "--resume")
    assert mended.exit_code == 0, mended.output
    assert "garbage" not in (run / "metrics.jsonl").read_text()
    (run / "config.json").unlink()
    weights = {path: path.stat().st_mtime_ns for path in (run / "checkpoints").iterdir()}
    for more in ([], ["--resume"]):
        lost = call(*QUICK, "--out", "out", *more)
        assert lost.exit_code == 2
        assert "euler holds a finished run without its config.json; restore it from a copy, or" in lost.output
    assert {path: path.stat().st_mtime_ns for path in (run / "checkpoints").iterdir()} == weights


def test_with_json_a_run_that_fails_still_says_why(folder: Path) -> None:
    run = folder / "out" / "quick" / "digits" / "lipschitz" / "16" / "euler"
    made = call(*QUICK, "--out", "out", "--json")
    assert made.exit_code == 0, made.output
    assert (made.stderr, json.loads(made.stdout)["failed"]) == ("", [])
    (run / "result.json").write_text("{")
    done = call(*QUICK, "--out", "out", "--resume", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"runs": [], "written": [], "failed": ["quick/digits/lipschitz/16/euler"]}
    assert "quick/digits/lipschitz/16/euler: failed: " in done.stderr
    assert "result.json is not JSON" in done.stderr
    assert "the reasons are above; when they are gone, continue with --resume" in done.stderr
