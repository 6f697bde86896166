"""Mistakes of new users with `reproduce` and `report`: every one is answered before anything is trained or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app


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
    assert "Traceback" not in done.output
    assert sorted(os.walk(folder)) == before
