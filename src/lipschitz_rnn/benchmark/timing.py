"""Clocks and memory counters for CPUs and CUDA devices."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from lipschitz_rnn.ops.common import buffers

WARM_UP = 2
WARM_UP_SECONDS = 0.05  # short calls of another contestant leave caches, allocator and interpreter set up for it
FEWEST = 3  # repeats, however long a call takes

Call = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of single calls.

    Attributes:
        host: of calls on a GPU, seconds until each was submitted; the GPU may still be at work then.
    """

    seconds: tuple[float, ...]
    host: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the interquartile range, as a fraction of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    @property
    def host_median(self) -> float | None:
        return statistics.median(self.host) if self.host else None

    def __add__(self, other: Times) -> Times:
        return Times(self.seconds + other.seconds, self.host + other.host)

    def to_dict(self) -> dict[str, float]:
        found = {"median_ms": 1e3 * self.median, "spread": self.spread, "repeats": len(self.seconds)}
        host = self.host_median
        return found if host is None else {**found, "host_us": 1e6 * host}


def time_calls(call: Call, device: torch.device, repeats: int, most_seconds: float) -> Times:
    """Time ``repeats`` calls after a warm-up, or fewer if they would take longer than ``most_seconds``.

    On a GPU the calls follow each other without a pause, and CUDA events mark where each begins and ends.
    """
    first = _now(device)
    for _ in range(WARM_UP - 1):
        call()
    while True:
        started = _now(device)
        call()
        once = max(_now(device) - started, 1e-9)
        if started + once - first >= min(WARM_UP_SECONDS, repeats * once, most_seconds):  # no longer than what is timed
            break
    repeats = max(min(repeats, FEWEST), min(repeats, int(most_seconds / once)))
    with _no_garbage_collection():
        return _with_events(call, repeats) if device.type == "cuda" else _with_clock(call, repeats)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Garbage of one contestant, e.g. the graph of a long loop, must not be collected while another is timed."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _with_clock(call: Call, repeats: int) -> Times:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return Times(tuple(seconds))


def _with_events(call: Call, repeats: int) -> Times:
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    host = []
    for start, end in pairs:
        start.record()
        started = time.perf_counter()
        call()
        host.append(time.perf_counter() - started)
        end.record()
    torch.cuda.synchronize()
    return Times(tuple(start.elapsed_time(end) / 1e3 for start, end in pairs), tuple(host))


def time_replay(call: Call, device: torch.device, repeats: int, most_seconds: float) -> Times:
    """The GPU time without launches: the call is captured in a CUDA graph, and the graph is replayed."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP + 1):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()  # the tensors that the graph writes must outlive the capture
    times = time_calls(graph.replay, device, repeats, most_seconds)
    del kept, graph
    return times


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Peak memory of a call in bytes, beyond what was allocated before; None if it cannot be measured.

    On a GPU PyTorch's allocator reports it. On a CPU it is the growth of the process's resident memory, on Linux only.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _give_back_free_memory()
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        base = _resident("VmRSS")
        call()
        return max(0, _resident("VmHWM") - base)
    except OSError:
        return None


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {field} in /proc/self/status")
    return 1024 * int(found[1])


def _give_back_free_memory() -> None:
    """Memory that we and the C library keep for reuse would hide allocations that are served from it."""
    buffers.give_back()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
