"""The script behind docs/long-sequences.md: what it writes, in which order, and what it reads."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lipschitz_rnn.benchmark.time_parallel import Row, Size
from lipschitz_rnn.benchmark.timing import Times
from lipschitz_rnn.cli import app
from lipschitz_rnn.experiments.pretrained import export_pretrained
from lipschitz_rnn.ops.lipschitz.parallel import plan

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, on a CPU and with chunks that are as short as its sequences here."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(plan, "SHORTEST_CHUNK", {"cuda": 32, "cpu": 32})
    monkeypatch.setattr(plan, "USUAL_WARM_UP", 8)
    import long_sequence_times

    monkeypatch.setattr(long_sequence_times, "chosen_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(long_sequence_times, "LENGTHS", (200, 400))
    yield long_sequence_times
    sys.modules.pop("long_sequence_times")


def row(length: int, speed_up: float) -> Row:
    sequential, parallel = Times((speed_up,)), Times((1.0,))
    numbers: dict[str, Any] = dict.fromkeys(("rate", "step_size", "tau", "factor", "tolerance", "largest"), 1.0)
    return Row(
        Size(length, 1, False), **numbers, sequential=sequential, parallel=parallel, plan="", difference=0.0,
        bound=0.0, gradient_difference=None,
    )  # fmt: skip


def test_the_claim_is_about_one_length(times: ModuleType) -> None:
    assert times.CLAIMED == 1_048_576
    assert "8.5 times as fast, reached" in times.speed_up(row(1_048_576, 8.5))
    assert "not reached" in times.speed_up(row(1_048_576, 7.9))
    assert "for T = 1,048,576" in times.speed_up(row(131_072, 9.0))


@pytest.mark.parametrize("place", ["", "mnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_images_alone_are_read_from_a_plain_folder(
    place: str, packed: bool, times: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = bytes(range(2 * 16))
    data = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 4, 4) + values
    (tmp_path / place).mkdir(exist_ok=True)
    name = tmp_path / place / "t10k-images-idx3-ubyte"
    name.with_name(name.name + ".gz" * packed).write_bytes(gzip.compress(data) if packed else data)
    monkeypatch.setenv("LIPSCHITZ_RNN_DATA", str(tmp_path))
    x = times.pixels(40, None)
    assert x is not None
    assert x.shape == (40, 1, 1)
    expected = torch.tensor([*values, *values[:8]]) * (1.0 / 255.0)  # the first image again after the last
    assert torch.equal(x.flatten(), expected)


def test_without_images_the_input_is_noise_and_that_is_said(
    times: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIPSCHITZ_RNN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert times.pixels(40, None) is None
    assert "noise as input" in capsys.readouterr().out


@pytest.mark.slow
def test_a_page_with_a_trained_layer(times: ModuleType, tmp_path: Path) -> None:
    """The weights as a run folder and as a file; all files, and the numbers in them."""
    run = tmp_path / "run"
    options = ["-u", "stability=contracting", "-u", "rate=3", "-n", "4", "-e", "1", "--device", "cpu"]
    task = ["adding", "-t", "length=5", "-t", "train_size=16", "-t", "eval_size=8"]
    result = CliRunner().invoke(app, ["train", *task, *options, "-o", str(run)])
    assert result.exit_code == 0, result.output
    weights = export_pretrained(run, tmp_path / "weights.safetensors")
    found = list(times.trained_rows(str(run), 200, None, repeats=1))
    assert [one.size.training for one in found] == [False, True]

    out = tmp_path / "page"
    times.page(out, 4, str(weights), None, (100, 400), 400)
    document = json.loads((out / "times.json").read_text())
    assert [one["kind"] for one in document["rows"]] == 6 * ["fresh"] + 2 * ["trained"] + 6 * ["fresh"]
    assert {one["rate"] for one in document["rows"]} == {1.0, 0.01, 3.0}
    assert all(one["wrong"] == "" for one in document["rows"])
    assert (out / "times.md").read_text().count("\n") == 2 + 14
    points = json.loads((out / "lengths.json").read_text())["points"]
    seen = {(point["steps"], point["training"], point["way"]) for point in points}
    assert seen == {(n, kind, way) for n in (200, 400) for kind in (False, True) for way in ("sequential", "parallel")}
    pytest.importorskip("matplotlib")
    assert b"<svg" in (out / "lengths.svg").read_bytes()
    times.redraw(out / "lengths.json", out / "again.svg")
    assert (out / "again.svg").read_bytes() == (out / "lengths.svg").read_bytes()


def test_what_was_measured_is_kept_when_a_page_is_cut_off(
    times: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*args: Any, **options: Any) -> Iterator[Row]:
        yield row(400, 2.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(times, "table_rows", cut_off)
    with pytest.raises(KeyboardInterrupt):
        times.page(tmp_path, 4, None, None, (100, 400), 400)
    assert len(json.loads((tmp_path / "times.json").read_text())["rows"]) == 1


def test_long_sequential_calls_are_left_out(times: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "LONGEST_SEQUENTIAL", 0.0)  # all but the first length, whose time nobody knows before
    points: list[dict[str, Any]] = []
    times.time_lengths(400, 4, points.append)
    assert {point["steps"] for point in points if point["way"] == "sequential"} == {200}
    assert {point["steps"] for point in points if point["way"] == "parallel"} == {200, 400}
