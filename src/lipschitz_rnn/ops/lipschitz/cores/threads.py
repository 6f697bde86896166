"""Work shared among threads; a kernel runs outside Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    helpers = _start(worker, queue, threads - 1)
    try:
        worker(queue)
    except BaseException:
        for _ in queue:  # helpers need not begin what nobody will read
            pass
        raise
    finally:
        _finish(helpers)
    for helper in helpers:
        helper.result()


def _start(worker: Callable[[Iterator[Task]], None], queue: Iterator[Task], count: int) -> list[Future[None]]:
    """At most so many helpers; fewer or none where no thread can be started, as while Python shuts down."""
    helpers: list[Future[None]] = []
    pool = _pool(count)
    for _ in range(count):
        helper: Future[None] = Future()
        try:
            pool.submit(_help, helper, worker, queue)
        except RuntimeError:
            # The pool has queued it all the same: an older thread may have begun it, and it would keep it forever.
            if not helper.cancel():
                helpers.append(helper)
            _pool.cache_clear()
            break
        helpers.append(helper)
    return helpers


def _finish(helpers: list[Future[None]]) -> None:
    """Waits for them, also after Ctrl-C: nothing may be written once the caller has gone on."""
    interruption = None
    for helper in helpers:
        while not helper.done():
            try:
                helper.exception()
            except BaseException as error:
                interruption = error
    if interruption is not None:
        raise interruption


def _help(helper: Future[None], worker: Callable[[Iterator[Task]], None], queue: Iterator[Task]) -> None:
    if not helper.set_running_or_notify_cancel():
        return
    try:
        worker(queue)
    except BaseException as error:
        helper.set_exception(error)
    else:
        helper.set_result(None)


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
