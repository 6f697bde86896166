"""Processes of this machine that stay alive: a new run costs milliseconds, not an import of PyTorch.

Written out, because the executors of the standard library give up all their processes when one is killed. Here only the
function of the killed process starts again, in a new one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from lipschitz_rnn.experiments.engines.base import Call, Ended, Engine, error_of
from lipschitz_rnn.plugins import import_modules, imported_modules
from lipschitz_rnn.training import Interrupted
from lipschitz_rnn.training.interrupts import Interrupts
from lipschitz_rnn.training.processes import leave_with_parent

MOST_STARTS = 5  # of one function whose process is killed each time


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    name: str | None = None  # of the function that it runs


class Workers(Engine):
    """Runs `jobs` functions at a time. Each process sees one GPU, if there are any."""

    def __init__(self, jobs: int, threads: int = 1, devices: Sequence[str] = ()) -> None:
        self.slots, self._threads, self._devices = jobs, threads, tuple(devices)
        self._context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
        self._calls: dict[str, Call] = {}
        self._waiting: deque[str] = deque()
        self._starts: Counter[str] = Counter()
        self._workers: list[_Worker | None] = [None] * jobs
        self._interrupts = Interrupts()
        self._interrupts.__enter__()

    def submit(self, name: str, call: Call) -> None:
        self._calls[name] = call
        self._waiting.append(name)

    def wait(self, seconds: float) -> list[Ended]:
        ended = self._give_work()
        busy = {slot: each for slot, each in enumerate(self._workers) if each is not None and each.name is not None}
        if busy and not ended:
            places: list[Any] = [place for each in busy.values() for place in (each.pipe, each.process.sentinel)]
            wait(places, timeout=seconds)
            ended = [found for slot, each in busy.items() if (found := self._collect(slot, each)) is not None]
        if self._interrupts.number:
            self.close()
            raise Interrupted(self._interrupts.number)
        return ended

    def _give_work(self) -> list[Ended]:
        ended = []
        for slot, worker in enumerate(self._workers):
            if not self._waiting or (worker is not None and worker.name is not None):
                continue
            name = self._waiting.popleft()
            if self._starts[name] == MOST_STARTS:
                del self._calls[name]
                ended.append(Ended(name, f"its process was killed {MOST_STARTS} times, e.g. for lack of memory"))
                continue
            self._starts[name] += 1
            if worker is None or not worker.process.is_alive():
                worker = self._workers[slot] = self._start(slot)
            worker.name = name
            try:
                worker.pipe.send(self._calls[name])
            except OSError:  # it died just now: `_collect` finds out
                continue
        return ended

    def _start(self, slot: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        device = self._devices[slot % len(self._devices)] if self._devices else None
        arguments = (theirs, self._threads, imported_modules(), device)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _collect(self, slot: int, worker: _Worker) -> Ended | None:
        """What a worker has finished; a function whose process died waits for its next turn."""
        name = worker.name
        assert name is not None
        try:
            if worker.pipe.poll():
                error = worker.pipe.recv()
                worker.name = None
                del self._calls[name], self._starts[name]
                return Ended(name, error)
        except (EOFError, OSError):
            worker.process.join()
        if not worker.process.is_alive():
            worker.pipe.close()
            self._workers[slot] = None
            self._waiting.appendleft(name)
        return None

    def close(self) -> None:
        """Ask every process to save and leave, and wait for it."""
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = [None] * self.slots
        self._interrupts.__exit__()


def _work(pipe: Connection, threads: int, modules: Sequence[str], device: str | None) -> None:
    """What each process runs."""
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # before CUDA is first used
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and terminates its processes
    leave_with_parent()
    torch.set_num_threads(threads)
    import_modules(modules)
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        try:
            error = error_of(call)
        except Interrupted:
            return
        pipe.send(error)


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[:count] if named else map(str, range(count)))
