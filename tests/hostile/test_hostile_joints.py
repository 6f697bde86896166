"""Where commands meet: what cannot run is refused before anything is written, in the words of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lipschitz_rnn.cli import app


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("parallel=4",), "parallel needs a network that is known to contract"),
        (("parallel=4", "stability=contracting", "noise=0.1"), "parallel was given with noise on the state"),
    ],
)
def test_chunks_that_training_refuses_leave_no_run_folder(
    tmp_path: Path, dry: bool, options: tuple[str, ...], message: str
) -> None:
    given = [word for option in options for word in ("-u", option)]
    code, words = call("train", "digits", "-n", 4, "-o", tmp_path / "run", *given, *(["--dry-run"] if dry else []))
    assert code == 2
    assert message in words
    assert not (tmp_path / "run").exists()


def test_folders_and_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file.csv").write_text("a\n1\n")
    for command in ("compare", "report"):
        code, words = call(command, tmp_path, "-o", tmp_path / "file.csv")
        assert code == 1
        assert "is a file; name a folder" in words
    code, words = call("train", tmp_path, "--target", "a", "-o", tmp_path / "run")
    assert code == 2
    assert "is not a file; give a file that ends in" in words


def test_a_table_that_is_a_folder_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="tables need pandas")
    (tmp_path / "folder.csv").mkdir()
    code, words = call("train", tmp_path / "folder.csv", "--target", "a", "-o", tmp_path / "run")
    assert code == 1
    assert "is a folder, not a file" in words
