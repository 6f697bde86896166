"""`lipschitz-rnn certify`: its answers, its exit codes, and never a traceback."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.runner import load_task
from lipschitz_rnn.stability import Certificate
from lipschitz_rnn.training import Settings, fit
from lipschitz_rnn.training.model import build_model
from lipschitz_rnn.units import build


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["certify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    np.savez(tmp_path / "pair.npz", A=np.diag([-1.0, 0.5]), W=0.1 * np.eye(2))
    return tmp_path / "pair.npz"


def test_a_failure_says_where_and_what_to_try(pair: Path) -> None:
    answer = call(pair, "--step-size", "0.1")
    assert answer.exit_code == 3
    words = " ".join(answer.output.split())
    assert "unit 1 (" in words
    assert "What to try: train with stability='contracting'" in words


def test_a_wrong_precision_is_answered_in_the_words_of_the_command_line(pair: Path) -> None:
    answer = call(pair, "--step-size", "0.1", "--precision", "float8")
    assert answer.exit_code == 2
    assert "precision is 'float8'; choose one of exact, float64, float32 (highest)" in " ".join(answer.output.split())
    assert "None" not in answer.output


def test_json_carries_all_fields(pair: Path) -> None:
    for arguments, code in (((), 3), (("--step-size", "0.1,0.2", "--precision", "medium"), 3)):
        answer = call(pair, "--json", *arguments)
        assert answer.exit_code == code
        found = json.loads(answer.stdout)["pair.npz"]
        assert set(found) >= set(Certificate.__dataclass_fields__) - {"parts"}
    np.savez(pair, A=-np.eye(2), W=0.1 * np.eye(2))
    good = call(pair, "--json", "--step-size", "0.1", "--precision", "bfloat16")
    assert good.exit_code == 0, good.output
    found = json.loads(good.stdout)["pair.npz"]
    assert (found["precision"], found["alpha"]) == ("bfloat16", 1.0)
    assert np.array(found["metric"]).shape == (2, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--accuracy", "0"),
        ("--time-limit", "-1"),
        ("--rate", "nan"),
        ("--precision", "int4"),
        ("--solver", "mosek"),
        ("--step-size", "1,2,3"),
        ("--step-size", "inf"),
        ("--integrator", "leapfrog"),
        ("--nonlinearity", "swish"),
        ("--step-size", "0.1", "--continuous"),
    ],
)
def test_wrong_usage_is_answered_in_one_line(pair: Path, arguments: tuple[str, ...]) -> None:
    answer = call(pair, *arguments)
    assert answer.exit_code == 2
    assert "error:" in answer.output


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt", "txt"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x80\x04N.", bytes(range(256))])
def test_damaged_files_are_answered_in_one_line(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"données [x].{suffix}"
    path.write_bytes(content)
    answer = call(path)
    assert answer.exit_code == (2 if suffix == "txt" else 1)
    assert "error:" in answer.output


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    missing = call(tmp_path / "missing")
    assert missing.exit_code == 1
    assert "give a run folder, a model file, or" in missing.output
    empty = call(tmp_path)
    assert empty.exit_code == 1
    assert "not a run folder" in empty.output
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("{")
    assert str(tmp_path / "one") in "".join(call(tmp_path).output.split())
    assert call(tmp_path / "one").exit_code == 1


def test_a_run_of_another_unit_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(task="digits", unit="lipschitz-gated", seeds=(0,))
    (tmp_path / "config.json").write_text("{}")
    networks = (build("lipschitz-gated", 1, 4),)
    shapes = SimpleNamespace(series=None)
    found = SimpleNamespace(settings=settings, shapes=shapes, checkpoint=lambda which: networks)
    monkeypatch.setattr("lipschitz_rnn.training.runs.load_run", lambda *_: found)
    gated = call(tmp_path)
    assert gated.exit_code == 2
    assert "the unit 'lipschitz-gated'" in gated.output


def test_a_run_with_a_model_of_its_own_is_told_the_way(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
            return self.inner(*args, **options)

    settings = Settings(task="digits", unit="lipschitz", hidden_size=4, epochs=1, batch_size=512, seeds=(0,))
    task = load_task(settings)
    fit(settings, task, tmp_path / "own", build=lambda *arguments: Own(build_model(*arguments)))
    own = call(tmp_path / "own")
    assert own.exit_code == 1
    assert "build=" in own.output


def test_the_rounding_is_shown_when_asked_for(pair: Path) -> None:
    np.savez(pair, A=-np.eye(2), W=0.1 * np.eye(2))
    answer = call(pair, "--step-size", "0.1", "--rounding", "3")
    assert answer.exit_code == 0, answer.output
    words = " ".join(answer.output.split())
    assert "For inputs of at most 3 and computation in float32, no coordinate of a computed state is further" in words
    found = json.loads(call(pair, "--step-size", "0.1", "--rounding", "3", "--json").stdout)["pair.npz"]["rounding"]
    assert found["precision"] == "float32"
    assert 0 < found["added"] < found["peak"] < 1e-3
    coarse = call(pair, "--step-size", "0.1", "--rounding", "3", "--precision", "bfloat16", "--json")
    assert json.loads(coarse.stdout)["pair.npz"]["rounding"]["peak"] > 1000 * found["peak"]
    # An infinite bound is said in words, and continuous time has no rounding.
    huge = call(pair, "--step-size", "0.1", "--rounding", "1e300")
    assert "nothing bounds the rounding" in " ".join(huge.output.split()) or "further than" in huge.output
    for wrong in (("--rounding", "-1", "--step-size", "0.1"), ("--rounding", "nan", "--step-size", "0.1")):
        assert call(pair, *wrong).exit_code == 2
    assert call(pair, "--rounding", "1").exit_code == 2
