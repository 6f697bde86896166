"""The parts of a measurement: data, switches, clocks, memory, order, and fair comparisons."""

from __future__ import annotations

import gc
import io
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from lipschitz_rnn import lipschitz_scan
from lipschitz_rnn.benchmark import Effort, Report, Workload, contestants_for, measure
from lipschitz_rnn.benchmark.accuracy import Errors
from lipschitz_rnn.benchmark.compiled import steps_at_once
from lipschitz_rnn.benchmark.jobs import Job
from lipschitz_rnn.benchmark.measuring import Row
from lipschitz_rnn.benchmark.precision import BFLOAT16, FLOAT16, FLOAT32, TF32
from lipschitz_rnn.benchmark.tables import captions, comparison_table, print_report, time_table
from lipschitz_rnn.benchmark.timing import WARM_UP_SECONDS, Times, peak_memory, time_calls
from lipschitz_rnn.benchmark.workload import Data

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SMALL = Workload(batch=2, length=5, features=2, hidden=4)
ONCE = Effort(repeats=1, rounds=1)


def test_data_are_the_same_for_every_precision_and_every_run() -> None:
    before = torch.get_rng_state()
    first, second = Data(SMALL, CPU), Data(SMALL, CPU)
    for name in ("x", "U", "b", "M_A", "M_W"):
        values = getattr(first, name)
        torch.testing.assert_close(values, getattr(second, name), rtol=0, atol=0)
        torch.testing.assert_close(values, values.bfloat16().double(), rtol=0, atol=0)
        assert (values != 0).all()
    for contestant in contestants_for(CPU, compile_loop=False, streaming=True):
        job = contestant.job(first)
        job.forward() if "stream" in contestant.name else job.training()  # streams know no gradient
    assert torch.equal(before, torch.get_rng_state())  # the global generator is nobody's business here


def test_the_state_stays_bounded_on_long_sequences() -> None:
    data = Data(Workload(batch=1, length=4000, hidden=16), CPU)
    A, W = data.matrices
    states, _ = lipschitz_scan(data.x, A, W, input_weight=data.U, bias=data.b, step_size=0.03)
    assert states is not None
    assert 0.01 < float(states.abs().max()) < 100.0


def test_everything_is_checked_before_anything_is_timed() -> None:
    notes: list[str] = []
    measure(SMALL, CPU, contestants_for(CPU, compile_loop=False), ONCE, notes.append)
    kinds = [note.split()[0] for note in notes]
    assert kinds == ["checking"] * 6 + ["timing"] * 6


def test_what_a_graph_holds_all_the_time_is_not_counted_as_the_need_of_a_call() -> None:
    plain = next(row for row in contestants_for(CPU, compile_loop=False) if row.name == "cpu backend")
    rows = measure(SMALL, CPU, [plain, replace(plain, name="from a graph", graphed=True)], ONCE).rows
    assert [row.training is not None for row in rows] == [True, True]
    assert rows[1].memory is None


@pytest.mark.parametrize("same_thread", [False, True])
def test_backward_passes_run_in_the_thread_that_was_asked_for(same_thread: bool) -> None:
    plain = next(row for row in contestants_for(CPU, compile_loop=False) if row.name == "cpu backend")
    seen = set()

    def build(data: Data, dtype: torch.dtype) -> Job:
        seen.add(torch._C._is_multithreading_enabled())
        return plain.build(data, dtype)

    report = measure(SMALL, CPU, [replace(plain, build=build)], replace(ONCE, same_thread=same_thread))
    assert seen == {not same_thread}
    assert torch._C._is_multithreading_enabled()
    assert any("calling thread" in caption for caption in captions(report)) == same_thread


def test_precisions_set_their_switches_and_put_them_back() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with TF32.active():
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    with FLOAT32.active():
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


def test_repeats_are_bounded_in_number_and_in_time() -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(time.perf_counter())
        time.sleep(0.01)

    times = time_calls(call, CPU, repeats=7, most_seconds=60.0)
    assert len(times.seconds) == 7
    warm_up = calls[: len(calls) - 7]
    assert 2 <= len(warm_up) <= 6  # until 0.05 s have passed
    assert calls[len(warm_up)] - calls[0] >= WARM_UP_SECONDS
    assert 0.01 <= times.median < 1.0
    assert len(time_calls(call, CPU, repeats=1000, most_seconds=0.0).seconds) == 3
    assert len(time_calls(call, CPU, repeats=2, most_seconds=0.0).seconds) == 2


def test_nothing_is_collected_while_the_clock_runs() -> None:
    seen: list[bool] = []
    time_calls(lambda: seen.append(gc.isenabled()), CPU, repeats=3, most_seconds=1.0)
    assert seen[-3:] == [False] * 3
    assert gc.isenabled()


def test_median_and_spread() -> None:
    times = Times((1.0, 2.0, 3.0)) + Times((4.0, 100.0))
    assert times.median == 3.0
    assert times.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    assert times.to_dict() == {"median_ms": 3000.0, "spread": times.spread, "repeats": 5}


class QueuedEvent:
    """A CUDA event on a GPU that takes one second for every call, long after it was submitted."""

    submitted = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = QueuedEvent.submitted

    def elapsed_time(self, end: QueuedEvent) -> float:
        return 1e3 * (end.at - self.at)


def test_host_time_is_apart_from_gpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", QueuedEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)

    def call() -> None:
        QueuedEvent.submitted += 1
        time.sleep(0.002)

    times = time_calls(call, CUDA, repeats=4, most_seconds=60.0)
    assert times.seconds == (1.0,) * 4
    assert len(times.host) == 4
    assert all(0.002 <= host < 0.5 for host in times.host)
    both = times + times
    assert len(both.host) == 8
    assert both.to_dict()["host_us"] == pytest.approx(1e6 * both.host_median)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_peak_memory_sees_what_is_freed_again() -> None:
    def allocate() -> None:
        torch.full((8 << 20,), 1.0)  # 32 MiB

    found = peak_memory(allocate, CPU)
    assert found is not None
    assert 0.9 * (32 << 20) < found < 2 * (32 << 20)


def test_nan_is_within_no_limit() -> None:
    limit = Errors(1e-6, 1e-6)
    assert Errors(1e-7, 1e-7).within(limit)
    assert Errors(1e-7, None).within(limit)
    assert not Errors(1e-7, 1e-5).within(limit)
    assert not Errors(float("nan"), 1e-7).within(limit)
    assert not Errors(1e-7, float("nan")).within(limit)


def test_rows_on_a_gpu() -> None:
    rows = [contestant.key for contestant in contestants_for(CUDA)]
    for name, precisions in {
        "triton backend": ["bfloat16", "float16", "float32 medium", "float32 high", "float32 highest"],
        "nn.LSTM": ["bfloat16", "float16", "float32 high", "float32 highest"],
        "torch.compile": ["float32 high"],
        "LipschitzRNN layer": ["bfloat16", "float16"],
        "LipschitzRNN, graphed": ["bfloat16"],
    }.items():
        assert [row for row in rows if row.startswith(f"{name} [")] == [f"{name} [{each}]" for each in precisions]
    assert len(set(rows)) == len(rows)


def test_a_peer_is_compared_at_its_fastest_fair_precision() -> None:
    """Faster and coarser does not count; slower and coarser, as cuDNN's bfloat16, does not flatter us either."""
    speeds = [
        ("triton backend", BFLOAT16, 1.0),
        ("triton backend", FLOAT32, 6.0),
        ("nn.LSTM", BFLOAT16, 30.0),
        ("nn.LSTM", TF32, 4.0),
        ("nn.LSTM", FLOAT32, 12.0),
        ("nn.LSTM", FLOAT16, 3.0),
        ("LipschitzRNN, graphed", FLOAT32, 24_000.0),
    ]
    rows = []
    for name, precision, ms in speeds:
        times = Times((ms / 1e3,), host=(ms / 4e3,))
        rows.append(
            Row(
                name,
                precision.name,
                precision.operands,
                name == "triton backend",
                Errors(1e-3, 1e-3),
                forward=times,
                training=times,
                training_replayed=Times((ms / 2e3,)),
                memory=5_000_000,
            )
        )
    environment = {"device": "NVIDIA H200", "torch": "2.11.0+cu130", "cuda": "13.0"}
    report = Report(SMALL, CUDA, Effort(), rows, environment)
    shown = io.StringIO()
    print_report(Console(width=80, file=shown), report)
    assert "…" not in shown.getvalue()  # no column is cut
    table = comparison_table(report)
    ratios = [row[table.header.index("× LSTM")] for row in table.rows]
    assert ratios == ["3.00", "2.00", "0.10", "0.75", "1.00", "1.00", "0.00"]
    times_shown = time_table(report)
    assert times_shown.rows[0][times_shown.header.index("GPU alone, ms")] == "0.50"
    assert times_shown.rows[0][times_shown.header.index("host, µs")] == "250"
    assert times_shown.rows[0][-1] == "5.0"
    assert "CUDA graph" in captions(report)[0]


@pytest.mark.parametrize("streaming", [False, True])
def test_the_tables_of_a_cpu_fit_into_80_columns(streaming: bool) -> None:
    contestants = contestants_for(CPU, compile_loop=False, streaming=streaming)
    report = measure(replace(SMALL, batch=1), CPU, contestants, replace(ONCE, backward=not streaming))
    shown = io.StringIO()
    print_report(Console(width=80, file=shown), report)
    lines = shown.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    for row in report.rows:  # in one line of each table
        assert sum(line.startswith(f" {row.name} ") for line in lines) == 2
    assert " ".join(shown.getvalue().split()).count("float32 highest") == 1  # in the heading, not in every row


def test_compiled_steps_divide_the_length() -> None:
    assert [steps_at_once(length) for length in (784, 63, 101, 6)] == [8, 7, 1, 6]
