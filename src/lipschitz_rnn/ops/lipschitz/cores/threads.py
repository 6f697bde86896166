"""Work shared among threads; a kernel runs outside Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import TypeVar

Task = TypeVar("Task")


def share(tasks: Iterable[Task], threads: int, worker: Callable[[Iterator[Task]], None]) -> None:
    """``worker`` in so many threads, this one among them; each takes the next task when it has finished one."""
    if threads <= 1:
        worker(iter(tasks))
        return
    queue = _shared(iter(tasks))
    helpers = [_pool(threads - 1).submit(worker, queue) for _ in range(threads - 1)]
    try:
        worker(queue)
    finally:
        for helper in helpers:
            helper.exception()  # waits: nothing may be written once the caller has gone on
    for helper in helpers:
        helper.result()


def _shared(tasks: Iterator[Task]) -> Iterator[Task]:
    """An iterator that several threads may use."""
    lock, end = Lock(), object()

    def take() -> Task | object:
        with lock:
            return next(tasks, end)

    return iter(take, end)  # type: ignore[arg-type]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lipschitz_rnn")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads
