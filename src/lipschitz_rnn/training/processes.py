"""Runs functions one after another, or several at once in separate processes; a failure does not stop the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess

import torch

from lipschitz_rnn.plugins import import_modules, imported_modules
from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import CheckpointError, Interrupted, RunError, Watcher
from lipschitz_rnn.training.interrupts import Interrupts

Watch = Callable[[str], Watcher]  # by the name of a run; must be picklable where it is sent to a process
Call = Callable[[], bool]  # whether it succeeded; must be picklable, to be sent to a process
_POLL_SECONDS = 0.5


def run_all(
    work: Mapping[str, Callable[[], object]], watch: Watch, jobs: int, saved: str, how_to_resume: str | None = None
) -> list[str]:
    """Run every function, one after another, or `jobs` at a time in processes; the names of those that failed.

    A failure is reported to its watcher. After a signal, Interrupted says where everything was `saved` and how to
    resume.
    """
    guarded: dict[str, Call] = {name: partial(_guarded, name, call, watch) for name, call in work.items()}
    if jobs > 1:
        return run_processes(guarded, watch, jobs, saved, how_to_resume)
    try:
        return [name for name, call in guarded.items() if not call()]
    except Interrupted as interrupted:  # its own hint would resume this run only
        raise Interrupted(interrupted.number, interrupted.saved, how_to_resume) from None


def _guarded(name: str, call: Callable[[], object], watch: Watch) -> bool:
    """Whether the call succeeded. A failure is reported, so that the next one can start."""
    try:
        call()
    except (RunError, CheckpointError, DataError) as error:
        watch(name).note(f"failed: {error}")
    except (Interrupted, ValueError, TypeError, OSError):  # these become one line that says what to change
        raise
    except Exception:  # e.g. out of memory, or an error in a user's unit: nobody may be there to start the next run
        watch(name).note(f"failed: {traceback.format_exc()}")
    else:
        return True
    return False


def run_processes(
    work: Mapping[str, Call], watch: Watch, jobs: int, saved: str, how_to_resume: str | None = None
) -> list[str]:
    """Run every function in its own process, `jobs` at a time; the names of those that failed.

    A signal is passed on to every process as a request to save and exit. Then Interrupted says where everything was
    `saved` and how to resume.
    """
    context = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
    threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs))
    waiting = list(work.items())
    processes: list[BaseProcess] = []
    failed: set[str] = set()
    with Interrupts() as interrupts:
        while waiting or processes:
            while waiting and len(processes) < jobs:
                name, call = waiting.pop(0)
                arguments = (name, call, watch, threads, imported_modules())
                processes.append(context.Process(target=_process_main, args=arguments, name=name))
                processes[-1].start()
            wait_for([process.sentinel for process in processes], timeout=_POLL_SECONDS)
            if interrupts.number:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.join()
                raise Interrupted(interrupts.number, saved, how_to_resume)
            ended = {process: process.exitcode for process in processes if process.exitcode is not None}
            processes = [process for process in processes if process not in ended]
            failed |= {process.name for process, code in ended.items() if code}
            for process, code in ended.items():
                if code < 0:  # it could not report
                    watch(process.name).note(f"failed: killed by {signal.Signals(-code).name}")
    return [name for name in work if name in failed]


def _process_main(name: str, call: Call, watch: Watch, threads: int, modules: Sequence[str] = ()) -> None:
    """What each process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and terminates its processes
    leave_with_parent()
    torch.set_num_threads(threads)
    import_modules(modules)
    try:
        done = call()
    except Interrupted as interrupted:
        watch(name).note(str(Interrupted(interrupted.number, interrupted.saved)))  # the parent says how to resume
        sys.exit(interrupted.exit_code)
    sys.exit(0 if done else 1)


def leave_with_parent() -> None:
    """From now on, this process ends when its parent does."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def _stop_with_parent() -> None:
    """Save and exit if the parent was killed, since it can no longer send a signal."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
