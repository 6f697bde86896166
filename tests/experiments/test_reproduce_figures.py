"""``reproduce figures``: every study ends as a picture, and a second call finds its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lipschitz_rnn.cli import app

NAMES = {"pendulum", "spectrum-against-beta", "lemma2", "spectrum-over-training"}


@pytest.mark.slow
def test_all_studies_are_drawn(tmp_path: Path) -> None:
    arguments = ["reproduce", "figures", "-o", str(tmp_path), "--epochs", "2", "--device", "cpu", "--offline", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert set(written) == NAMES
    for path in written.values():
        assert Path(path).read_bytes().startswith(b"\x89PNG")
    for beta in (0.65, 0.95):
        config = json.loads((tmp_path / "runs" / f"digits-beta{beta:g}" / "config.json").read_text())
        assert config["unit_options"]["beta"] == beta


def test_unknown_task_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "figures", "-o", str(tmp_path), "--task", "imagenet"])
    assert result.exit_code in (1, 2)
    assert "imagenet" in result.output
