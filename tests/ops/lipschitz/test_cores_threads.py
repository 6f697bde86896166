"""The kernels' threads where none can be started, and forks while the kernels are compiled."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from threading import Event, Thread, get_ident
from typing import Any

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.ops.lipschitz.cores import layout, machine, threads

# The main thread ends while another one runs; the handler is then called when no thread can be started any more.
LATE = """
import atexit, sys, threading, time, torch, lipschitz_rnn as lr
torch.set_num_threads(2)
rnn, x = lr.LipschitzRNN(3, 64), torch.randn(100, 64, 3)
def run(place):
    if place == "thread":
        threading.main_thread().join()
    rnn(x)[0].sum().backward()
    print(place)
if "thread" in sys.argv:
    threading.Thread(target=run, args=["thread"]).start()
atexit.register(run, "handler")
"""


@pytest.mark.parametrize("where", [["thread"], []], ids=["in a thread first", "only in the handler"])
def test_the_layer_runs_while_python_shuts_down(where: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LATE, *where], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [*where, "handler"]


class Failing:
    """A pool that starts so many threads, and then no more."""

    def __init__(self, count: int, *, begins: bool = False) -> None:
        self.left, self.begins = count, begins

    def submit(self, function: Callable[..., None], *arguments: Any) -> None:
        self.left -= 1
        if self.left >= 0 or self.begins:
            Thread(target=function, args=arguments).start()
        if self.left < 0:
            time.sleep(0.05)  # until the thread, if there is one, has begun
            raise RuntimeError("can't start new thread at interpreter shutdown")


@pytest.mark.parametrize("begins", [False, True], ids=["not begun", "begun by another thread"])
@pytest.mark.parametrize("count", [0, 1])
def test_where_threads_cannot_be_started(count: int, begins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does what is left, and waits for those that were started."""
    pool = Failing(count, begins=begins)
    monkeypatch.setattr(threads, "_pool", cache(lambda size: pool))
    done: list[int] = []
    begun: set[int] = set()
    ended: set[int] = set()

    def worker(queue: Iterator[int]) -> None:
        begun.add(get_ident())
        for task in queue:
            time.sleep(0.01)
            done.append(task)
        if get_ident() != caller:
            time.sleep(0.1)
        ended.add(get_ident())

    caller = get_ident()
    threads.share(range(20), 4, worker)
    assert sorted(done) == list(range(20))
    assert len(begun) == 1 + count + begins
    assert ended == begun
    assert pool.left == -1  # after a failure, no other is tried


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_waits_for_the_helpers() -> None:
    """Pressed twice: while the caller works, and while it waits. What nobody had begun is left out."""
    began, ended = Event(), Event()
    taken: list[int] = []

    def worker(queue: Iterator[int]) -> None:
        if get_ident() == caller:
            assert began.wait(10)
            raise KeyboardInterrupt
        for task in queue:
            taken.append(task)
            began.set()
            time.sleep(0.5)
        ended.set()

    def press() -> None:
        began.wait(10)
        time.sleep(0.1)
        signal.pthread_kill(caller, signal.SIGINT)

    caller = get_ident()
    pressing = Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        threads.share(range(20), 2, worker)
    assert ended.is_set()
    assert taken == [0]
    pressing.join()


@pytest.mark.usefixtures("compiled")
def test_the_arrays_live_as_long_as_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that outlives the caller's frame, as after an exception, writes to memory that is still its own."""
    workers: list[Any] = []
    alive: list[Any] = []
    run = layout.Layout.run

    def noticed(self: layout.Layout, kernel: Any, arrays: Any, *rest: Any, **named: Any) -> None:
        alive.extend(weakref.ref(array) for array in arrays.values() if array is not None)
        run(self, kernel, arrays, *rest, **named)

    def interrupted(tasks: Any, count: int, worker: Any) -> None:
        workers.append(worker)
        raise KeyboardInterrupt

    monkeypatch.setattr(layout.Layout, "run", noticed)
    monkeypatch.setattr(layout, "share", interrupted)
    rnn = lr.LipschitzRNN(3, 8)
    for options in ({}, {"lengths": torch.tensor([2, 5])}):
        with suppress(KeyboardInterrupt):
            rnn(torch.randn(5, 2, 3), **options)
    gc.collect()
    assert len(workers) == 2
    assert len(alive) > 8
    assert all(reference() is not None for reference in alive)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("compiled")
def test_a_fork_while_the_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child waits for no lock of a thread that it does not have, and finds the kernels compiled."""
    compiling, write = Event(), machine.written

    def written(*arguments: Any) -> str:
        compiling.set()
        return write(*arguments)

    monkeypatch.setattr(machine, "written", written)
    monkeypatch.setattr(machine, "_kernels", cache(machine._kernels.__wrapped__))
    thread = Thread(target=machine.kernels, args=[4])
    thread.start()
    assert compiling.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: that a fork leaves threads behind
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        machine.kernels(4)
        machine.kernels(8)  # compiled in the child
        os._exit(machine._kernels.cache_info().misses - 2)
    thread.join()
    _, status = os.waitpid(child, 0)
    assert status == 0
