"""Pieces of work, one after another or several at once in processes of their own: what fails stops no other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess

import torch

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import CheckpointError, Interrupted, RunError, Watcher
from lipschitz_rnn.training.interrupts import Interrupts

Watch = Callable[[str], Watcher]  # from the name of a run; importable by name where it has to reach a process
Work = Callable[[], bool]  # whether it succeeded; made of what can be imported by name, to reach a process
_POLL_SECONDS = 0.5


def run_works(
    works: Mapping[str, Callable[[], object]], watch: Watch, jobs: int, saved: str, go_on: str | None = None
) -> list[str]:
    """All works by name, one after another, or with several jobs each in a process; names of those that failed.

    What fails is told to its watcher. After a signal, Interrupted says where all was `saved` and how to go on.
    """
    told: dict[str, Work] = {name: partial(_guarded, name, work, watch) for name, work in works.items()}
    if jobs > 1:
        return run_processes(told, watch, jobs, saved, go_on)
    try:
        return [name for name, work in told.items() if not work()]
    except Interrupted as interrupted:  # resuming the one work would leave out the others
        raise Interrupted(interrupted.number, interrupted.saved, go_on) from None


def _guarded(name: str, work: Callable[[], object], watch: Watch) -> bool:
    """Whether the work was completed; what failed is told, and the next one has its turn."""
    try:
        work()
    except (RunError, CheckpointError, DataError) as error:
        watch(name).note(f"failed: {error}")
    except RuntimeError:  # of the device, for example no memory left: nobody may be there to start the next one
        watch(name).note(f"failed: {traceback.format_exc()}")
    else:
        return True
    return False


def run_processes(
    works: Mapping[str, Work], watch: Watch, jobs: int, saved: str, go_on: str | None = None
) -> list[str]:
    """All works by name, `jobs` at a time, each in a process; names of those that failed.

    A signal is passed on to every process, as a request to save and leave; then Interrupted says where it was `saved`
    and how to go on.
    """
    context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
    threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs))
    waiting = list(works.items())
    processes: list[BaseProcess] = []
    failed: set[str] = set()
    with Interrupts() as interrupts:
        while waiting or processes:
            while waiting and len(processes) < jobs:
                name, work = waiting.pop(0)
                processes.append(context.Process(target=_live, args=(name, work, watch, threads), name=name))
                processes[-1].start()
            wait_for([process.sentinel for process in processes], timeout=_POLL_SECONDS)
            if interrupts.number:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.join()
                raise Interrupted(interrupts.number, saved, go_on)
            ended = {process: process.exitcode for process in processes if process.exitcode is not None}
            processes = [process for process in processes if process not in ended]
            failed |= {process.name for process, code in ended.items() if code}
            for process, code in ended.items():
                if code < 0:  # it could not report
                    watch(process.name).note(f"failed: killed by {signal.Signals(-code).name}")
    return [name for name in works if name in failed]


def _live(name: str, work: Work, watch: Watch, threads: int) -> None:
    """The life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks every process to leave
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        done = work()
    except Interrupted as interrupted:
        watch(name).note(str(Interrupted(interrupted.number, interrupted.saved)))  # the parent says how to go on
        sys.exit(interrupted.exit_code)
    sys.exit(0 if done else 1)


def _leave_with_parent() -> None:
    """A parent that was killed can ask nothing: then the process saves and leaves of itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
