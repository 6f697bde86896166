"""The benchmark of the parallel scan: it checks before it times, and says so if the check fails."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from lipschitz_rnn.benchmark import time_parallel
from lipschitz_rnn.benchmark.time_parallel import Size, measure_parallel, to_document, to_table
from lipschitz_rnn.cli import app
from lipschitz_rnn.ops.lipschitz.parallel import plan

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SHORTEST_CHUNK", {"cuda": 32, "cpu": 32})
    monkeypatch.setattr(plan, "USUAL_WARM_UP", 8)


def test_rows_are_checked_and_timed() -> None:
    sizes = [Size(400, 1, False), Size(400, 2, True)]
    rows = measure_parallel(sizes, CPU, hidden=6, rates=(3.0,), step_size=0.1, repeats=1)
    assert [row.wrong for row in rows] == ["", ""]
    assert all("chunks of" in row.plan for row in rows)
    assert rows[0].gradient_difference is None
    assert rows[1].gradient_difference is not None
    assert rows[1].gradient_difference < 1e-3
    document = to_document(rows, CPU)
    assert document["parallel"][1]["training"] is True
    assert rows[0].loss is None
    assert document["parallel"][1]["loss"]["median_ms"] > 0.0
    with io.StringIO() as text:
        Console(file=text, width=140).print(to_table(rows, CPU))
        assert "the loss is timed apart" in text.getvalue()
    with io.StringIO() as text:
        Console(file=text, width=80).print(to_table(rows, CPU))
        assert "…" not in text.getvalue()
        for row in rows:  # numbers and headings are whole
            assert f"{row.speed_up:.3g} ×" in text.getvalue()
            assert f"of {row.largest:.3g}" in text.getvalue()
        assert "sequential   parallel" in text.getvalue()


def test_a_training_step_starts_from_a_given_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one sequentially and in parallel; no loss is part of what is timed."""
    seen: list[torch.Tensor] = []
    real = torch.autograd.grad

    def recorded(outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> Any:
        if grad_outputs is not None:
            seen.append(grad_outputs)
        return real(outputs, inputs, grad_outputs, **options)

    monkeypatch.setattr(torch.autograd, "grad", recorded)
    size = Size(400, 2, True)
    measure_parallel([size], CPU, hidden=6, rates=(3.0,), step_size=0.1, repeats=1)
    assert len(seen) >= 4
    assert all(given is seen[0] for given in seen)
    assert seen[0].shape == (400, 2, 6)
    assert 0.5 <= float(seen[0].min()) <= float(seen[0].max()) <= 1.0


def test_a_wrong_result_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time_parallel.LipschitzRNN.forward

    def spoiled(self: Any, *args: Any, **options: Any) -> Any:
        output, last = real(self, *args, **options)
        return (output + 1.0 if self.parallel else output), last

    monkeypatch.setattr(time_parallel.LipschitzRNN, "forward", spoiled)
    (row,) = measure_parallel([Size(400, 1, False)], CPU, hidden=4, rates=(3.0,), step_size=0.1, repeats=1)
    assert "off" in row.wrong


def test_command() -> None:
    arguments = ["bench", "--parallel", "-t", "200", "-b", "1", "-n", "4", "--quick", "--repeats", "1", "--json", "-"]
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.output)["parallel"]) == 2


def test_a_run_folder_serves_as_weights(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["-u", "stability=contracting", "-u", "rate=3", "-n", "4", "-e", "1", "--device", "cpu"]
    task = ["adding", "-t", "length=5", "-t", "train_size=16", "-t", "eval_size=8"]
    result = CliRunner().invoke(app, ["train", *task, *options, "-o", str(run)])
    assert result.exit_code == 0, result.output
    (row,) = measure_parallel([Size(400, 1, False)], CPU, weights=str(run), repeats=1)
    assert (row.rate, row.wrong) == (3.0, "")
    assert row.factor == pytest.approx(math.exp(-3.0 * row.step_size))


def test_a_layer_that_does_not_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="not a contracting layer"):
        measure_parallel([Size(400, 1, False)], CPU, weights="ordered-mnist-64")
