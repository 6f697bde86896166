"""`lipschitz-rnn bench`: what it writes, what it refuses, and that nothing unchecked is timed."""

from __future__ import annotations

import functools
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from optional import needs
from typer.testing import CliRunner, Result

from lipschitz_rnn.benchmark import Effort, Report, Workload, compiled, jobs
from lipschitz_rnn.benchmark.growth import Growth, draw_growth
from lipschitz_rnn.benchmark.measuring import Row
from lipschitz_rnn.benchmark.timing import Times
from lipschitz_rnn.cli import app
from lipschitz_rnn.ops.lipschitz.cores import machine
from lipschitz_rnn.ops.lipschitz.scan import lipschitz_scan
from lipschitz_rnn.training.environment import describe_environment

FURTHEST_OFF = "Errors are relative to float64, of the state that is furthest off"
TINY = ["--device", "cpu", "--batch", "3", "--length", "8", "--hidden", "5"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *TINY, *map(str, arguments)])


def rows_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["rows"]}


def test_json_holds_errors_times_and_ratios() -> None:
    done = bench("--quick", "--networks", "2", "--json", "-")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    command = "lipschitz-rnn bench --batch 3 --length 8 --hidden 5 --networks 2 --device cpu --quick"
    assert document["command"].endswith(command)  # after the environment, if it changes what is measured
    sizes = {"batch": 3, "length": 8, "features": 1, "hidden": 5, "networks": 2, "integrator": "euler"}
    assert sizes.items() <= document["workload"].items()
    rows = rows_of(document)
    assert list(rows) == ["reference loop", "cpu backend", "LipschitzRNN layer", "nn.LSTM", "nn.GRU", "nn.RNN"]
    for row in rows.values():
        assert not row["wrong"]
        assert 0 < row["errors"]["states"] < 1e-5
        assert 0 < row["errors"]["gradients"] < 1e-5
        for kind in ("forward", "training"):
            assert row[kind]["repeats"] == 3
            assert row[kind]["median_ms"] > 0
        assert row["forward_replayed"] is None  # there is no CUDA graph on a CPU
        assert row["us_per_step"] == pytest.approx(1e3 * row["training"]["median_ms"] / 8)
    ours, lstm = rows["cpu backend"], rows["nn.LSTM"]
    ratio = ours["times_faster_than"]["nn.LSTM [float32 highest]"]
    assert ratio == pytest.approx(lstm["training"]["median_ms"] / ours["training"]["median_ms"])
    assert ours["limit"]["states"] >= ours["errors"]["states"]
    assert lstm["limit"] is None
    assert document["explanation"][0]["backend"] == "cpu"
    assert document["environment"]["torch"] == torch.__version__


def test_tables_in_the_terminal_and_as_markdown(tmp_path: Path) -> None:
    done = bench("--quick", "--readout", "all", "--integrator", "rk2", "--markdown", tmp_path / "cpu.md")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "cpu.md").read_text(encoding="utf-8")
    titles = {done.stdout: ("µs a ", " step ", " gradients "), page: ("| µs a step |", "| of gradients |")}
    for text, own in titles.items():  # in a terminal long titles take two lines
        for word in (*own, "cpu backend", "nn.LSTM", "× LSTM", "midpoint", "every state"):
            assert word in text, word
        assert FURTHEST_OFF + ", and of the gradients of all weights the largest, and were checked before" in (
            " ".join(text.split())
        )
    assert page.count("| nn.GRU | float32 highest |") == 2
    assert "`lipschitz-rnn bench --batch 3 --length 8 --hidden 5 --integrator rk2 --readout all" in page
    assert str(tmp_path) not in page
    assert bench("--quick", "--markdown", tmp_path / "cpu.md", "--append").exit_code == 0
    both = (tmp_path / "cpu.md").read_text(encoding="utf-8")
    assert both.startswith(page + "\n## ")
    assert both.count("Made by `") == 2


@pytest.mark.full
@pytest.mark.slow
def test_scaling_writes_a_plot_and_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = bench("--quick", "--repeats", "1", "--scaling", tmp_path / "plot.png", "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    scaling = json.loads((tmp_path / "out.json").read_text())["scaling"]
    assert scaling["length"]["values"] == [2, 8]
    assert scaling["batch"]["values"] == [1, 3]
    assert scaling["networks"]["values"] == [1, 2]
    for axis in scaling.values():
        assert list(axis["seconds"])[:2] == ["reference loop [float32 highest]", "cpu backend [float32 highest]"]
        assert all(seconds > 0 for line in axis["seconds"].values() for seconds in line)


@pytest.mark.slow
def test_growth_writes_a_picture_and_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = bench("--quick", "--growth", tmp_path / "growth.svg", "--json", tmp_path / "growth.json")
    assert done.exit_code == 0, done.output
    assert b"<svg" in (tmp_path / "growth.svg").read_bytes()
    document = json.loads((tmp_path / "growth.json").read_text())
    growth = document["growth"]
    assert {axis: line["values"] for axis, line in growth.items()} == {
        "hidden": [4, 8],
        "length": [3, 6],
        "networks": [1, 2],
    }
    for line in growth.values():
        assert [key.split(" [")[0] for key in line["seconds"]] == ["cpu backend", "nn.RNN", "nn.LSTM"]
        assert all(seconds > 0 for each in line["seconds"].values() for seconds in each)
        assert line["wrong"] == []
    assert document["environment"]["torch"] == torch.__version__


def test_the_steepest_part_of_a_line_is_found() -> None:
    line = Growth(
        "hidden", Workload(), [16, 32, 64, 128], {"ours": [1.0, 2.0, 16.0, 16.0], "peer": [1.0, math.nan, 4.0, 8.0]}
    )
    assert line.steepest("ours") == (32, 64, pytest.approx(3.0))
    assert line.steepest("peer") == (16, 64, pytest.approx(1.0))


@needs("matplotlib")
def test_a_panel_names_the_sizes_that_are_held_and_explains_the_dotted_line() -> None:
    lines = [
        Growth("hidden", Workload(), [16, 32, 2048], {"ours": [1.0, 2.0, 16.0]}),
        Growth("length", Workload(), [256, 1024], {"ours": [1.0, math.nan]}),
    ]
    figure = draw_growth(lines, "Times")
    hidden, length = figure.axes
    assert hidden.get_title() == "B = 128, T = 784, S = 1"
    assert length.get_title() == "B = 128, N = 128, S = 1"
    figure.draw_without_rendering()
    assert {"16", "32", "512", "2048"} <= {label.get_text() for label in hidden.get_xticklabels()}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "proportional"]


def test_batch_one_is_forward_only_and_steps_cells() -> None:
    done = CliRunner().invoke(
        app, ["bench", "--device", "cpu", "-t", "6", "-n", "4", "--batch-one", "--quick", "--json=-"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["workload"]["batch"] == 1
    rows = rows_of(document)
    assert {"LipschitzRNNCell", "nn.LSTMCell", "nn.LSTM"} <= set(rows)
    for row in rows.values():
        assert row["training"] is None
        assert row["forward"]["median_ms"] > 0
        assert row["errors"]["states"] < 1e-5
        assert row["errors"]["gradients"] is None


@pytest.mark.parametrize(("options", "sizes"), [((), 3), (("--hidden", "128"), 1)], ids=["default", "chosen"])
def test_small_sizes_follow_the_default_ones_on_a_cpu(
    options: tuple[str, ...], sizes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Workload, bool]] = []
    environment = describe_environment(torch.device("cpu")) | {"cpu_backend": "kernels compiled for a test"}
    ours = Row("cpu backend", "float32 highest", "float32", ours=True, forward=Times((1.0,)))
    machine.obstacle()  # reads the environment, once, before it changes
    monkeypatch.setenv(machine.CPU_NAME, "haswell")

    def measure(work: Workload, device: torch.device, rows: object, effort: Effort, note: object) -> Report:
        measured.append((work, effort.backward))
        return Report(work, device, effort, [ours], environment)

    monkeypatch.setattr("lipschitz_rnn.benchmark.measure", measure)
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    arguments = ["bench", "--device", "cpu", *options, "--markdown", str(page), "--json", str(record)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = [(work.batch, work.length, work.hidden, backward) for work, backward in measured]
    assert found == [(128, 784, 128, True), (32, 200, 32, True), (1, 784, 128, False)][:sizes]
    document = json.loads(record.read_text())
    assert [report["workload"]["batch"] for report in document.get("small_sizes", [])] == [32, 1][: sizes - 1]
    text = page.read_text()
    assert text.count("## ") == text.count(environment["device"]) == sizes
    assert text.count("kernels compiled for a test") == sizes
    assert text.count(f"Made by `{machine.CPU_NAME}=haswell lipschitz-rnn bench ") == sizes
    assert text.count(FURTHEST_OFF + ", and were checked before anything was timed: ") == (1 if sizes == 3 else 0)
    assert ",," not in text


def test_explain_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("lipschitz_rnn.benchmark.measure", never)
    done = bench("--explain")
    assert done.exit_code == 0, done.output
    assert "float32: cpu, fastest on cpu" in done.stdout
    assert "triton cannot" in done.stdout
    answers = json.loads(bench("--explain", "--json", "-").stdout)["explanation"]
    assert [answer["dtype"] for answer in answers] == ["float32", "bfloat16", "float16", "float64"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--batch", "0"], "batch is 0"),
        (["--networks", "-1"], "networks is -1"),
        (["--integrator", "leapfrog"], "leapfrog"),
        (["--readout", "first"], "first"),
        (["--repeats", "0"], "repeats is 0"),
        (["--threads", "0"], "--threads"),
        (["--device", "abacus"], "abacus"),
        (["--json", "no/such/folder/out.json"], "no folder"),
        (["--scaling", "no/such/folder/plot.png"], "no folder"),
        (["--batch-one"], "--batch-one"),
        (["--fast"], "--fast"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_usage_exits_with_2(arguments: list[str], named: str) -> None:
    done = bench("--quick", *arguments)
    assert done.exit_code == 2
    assert named in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    done = bench("--quick", "--device", "cuda")
    assert done.exit_code == 2
    assert "no CUDA device" in done.output


@pytest.mark.parametrize("factor", [1.001, float("nan")], ids=["a little off", "nan"])
def test_a_wrong_result_gets_no_times(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(*arguments: Any, backend: str, **options: Any) -> tuple[torch.Tensor | None, torch.Tensor]:
        kept, last = lipschitz_scan(*arguments, backend=backend, **options)
        return kept, last * factor if backend == "cpu" else last

    monkeypatch.setattr(jobs, "lipschitz_scan", spoiled)
    done = bench("--quick", "--json", "-")
    assert done.exit_code == 1
    line = " ".join(done.stderr.split())
    assert "cpu backend [float32 highest]: differs from float64 by" in line
    assert "rounding explains at most" in line
    rows = rows_of(json.loads(done.stdout))
    assert rows["cpu backend"]["wrong"]
    assert "not timed" in rows["cpu backend"]["reason"]
    assert rows["cpu backend"]["training"] is rows["cpu backend"]["forward"] is None
    assert rows["nn.LSTM"]["training"]["median_ms"] > 0
    assert "cpu backend [float32 highest]" not in rows["nn.LSTM"]["times_faster_than"]


def test_our_backend_that_does_not_run_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, backend: str, **options: Any) -> Any:
        if backend == "cpu":
            raise RuntimeError("out of order")
        return lipschitz_scan(*arguments, backend=backend, **options)

    monkeypatch.setattr(jobs, "lipschitz_scan", broken)
    done = bench("--quick")
    assert done.exit_code == 1
    assert "RuntimeError: out of order" in done.output


def test_a_warning_about_one_row_becomes_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def talkative(*arguments: Any, backend: str, **options: Any) -> Any:
        if backend == "cpu":
            warnings.warn("weights lie scattered. They are compacted at every call.", UserWarning, stacklevel=1)
        return lipschitz_scan(*arguments, backend=backend, **options)

    monkeypatch.setattr(jobs, "lipschitz_scan", talkative)
    done = bench("--quick", "--json", "-")
    assert done.exit_code == 0, done.output
    rows = rows_of(json.loads(done.stdout))
    assert [len(row["notes"]) for row in rows.values()] == [name == "cpu backend" for name in rows]
    assert "weights lie scattered" in rows["cpu backend"]["notes"][0]
    assert rows["cpu backend"]["training"]["median_ms"] > 0


@pytest.mark.full
def test_a_compiler_that_fails_costs_one_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(compiled, "require", lambda device: None)
    done = bench("--repeats", "1", "--json", "-")
    assert done.exit_code == 0, done.output
    row = rows_of(json.loads(done.stdout))["torch.compile"]
    assert "no compiler today" in row["reason"]
    assert row["training"] is None


def test_a_compiler_that_hangs_is_stopped() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.05 s"), compiled.within(0.05):
        time.sleep(30.0)
    assert time.monotonic() - started < 10.0
    with compiled.within(0.2):
        pass
    time.sleep(0.3)  # the timer is off again


@pytest.mark.full
@pytest.mark.slow
def test_the_compiled_loop_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated ahead of time, but without generated code, which takes a minute to build."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(compiled, "require", lambda device: None)
    done = bench("--repeats", "1", "--readout", "all", "--json", "-")
    assert done.exit_code == 0, done.output
    row = rows_of(json.loads(done.stdout))["torch.compile"]
    assert row["reason"] is None
    assert row["notes"] == ["8 steps in one compiled program"]
    assert row["errors"]["gradients"] < 1e-5
    assert row["training"]["median_ms"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_times_come_with_and_without_python() -> None:
    done = bench("--quick", "--device", "cuda", "--hidden", "32", "--json", "-")
    assert done.exit_code == 0, done.output
    rows = [row for row in json.loads(done.stdout)["rows"] if row["name"] == "triton backend"]
    precisions = ["bfloat16", "float16", "float32 medium", "float32 high", "float32 highest"]
    assert [row["precision"] for row in rows] == precisions
    for row in rows:
        assert row["notes"] == []
        assert 0 < row["training_replayed"]["median_ms"] < row["training"]["median_ms"]
        assert row["training"]["host_us"] > 0
        assert row["memory_bytes"] > 0


def test_only_measures_the_rows_that_it_names() -> None:
    done = bench("--quick", "--only", "LAYER", "--only", "nn.RNN [float32", "--json", "-")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert list(rows_of(document)) == ["LipschitzRNN layer", "nn.RNN"]
    assert document["command"].endswith("--only LAYER --only 'nn.RNN [float32'")
    assert "The cpu backend" in bench("--quick", "--only", "LAYER").stdout
    assert "The cpu backend" not in bench("--quick", "--only", "nn.RNN").stdout  # nothing of ours ran
    wrong = bench("--quick", "--only", "nn.Transformer")
    assert wrong.exit_code == 2
    assert "'nn.Transformer'" in wrong.output
    assert "nn.GRU [float32 highest]" in " ".join(wrong.output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--growth", "g.svg", "--scaling", "s.png"], "--scaling cannot be used with --growth"),
        (["--growth", "g.svg", "--markdown", "m.md"], "--markdown cannot be used with --growth"),
        (["--parallel", "--markdown", "m.md"], "--markdown cannot be used with --parallel"),
        (["--explain", "--markdown", "m.md"], "--markdown cannot be used with --explain"),
        (["--growth", "g.svg", "--only", "nn.RNN"], "--only cannot be used with --growth"),
        (["--growth", "g.svg", "--repeats", "3"], "--repeats cannot be used with --growth"),
        (["--parallel", "--only", "layer"], "--only cannot be used with --parallel"),
        (["--explain", "--no-compile"], "--compile cannot be used with --explain"),
        (["--explain", "--quick"], "--quick cannot be used with --explain"),
        (["--parallel", "--features", "2"], "--features cannot be used with --parallel"),
        (["--parallel", "--networks", "2"], "--networks cannot be used with --parallel"),
        (["--parallel", "--readout", "all"], "--readout cannot be used with --parallel"),
        (["--parallel", "--batch-one"], "--batch-one cannot be used with --parallel"),
        (["--parallel", "--weights", "run"], "--hidden cannot be used with --weights"),
        (["--growth", "g.svg", "--batch-one"], "--batch-one cannot be used with --growth"),
        (["--batch-one"], "--batch cannot be used with --batch-one"),
        (["--quick", "--compile"], "--compile cannot be used with --quick"),
        (["--scaling", "s.png", "--only", "nn.GRU"], "no row matches 'nn.GRU'"),
        (["--append"], "--append is about the file of --markdown"),
        (["--growth", "g.png"], "--growth is 'g.png'; it draws into a .svg file"),
        (["--scaling", "s.txt"], "--scaling is 's.txt'; it draws into a .png file"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_what_would_be_ignored_or_not_written_is_refused(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = bench(*options)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
