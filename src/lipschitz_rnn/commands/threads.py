"""How many CPU threads a command uses: the option `--threads` of every long command.

PyTorch uses one thread per core and lets them spin between two products. A recurrent network is a loop of small
products, and each of them waits for the slowest thread: if another program holds a core, it waits for the scheduler. On
two busy cores, two threads took 10 times as long as one (N = 128, batch of 1,000), and 15 times as long at N = 512.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from lipschitz_rnn.commands.signatures import with_options
from lipschitz_rnn.training.settings import Settings

SMALL = 2**24  # multiplications per step up to which a second thread gains little and may cost a lot
MACHINE = "Machine"

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1024,
        metavar="N",
        help="CPU threads. Default: OMP_NUM_THREADS, else 1 for small networks and all idle cores for large ones.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
]


class _Chosen:
    """Whether the number of threads was chosen by the user, so that a command must not change it."""

    by_user = False


def with_threads(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--threads` to a command; it applies while the command runs."""

    @functools.wraps(command)
    def run(*args: Any, threads: int | None = None, **kwargs: Any) -> None:
        with thread_limit(threads):
            command(*args, **kwargs)

    return with_options(run, command, {"threads": Threads})


@contextmanager
def thread_limit(count: int | None) -> Iterator[None]:
    """Use `count` threads in the block, if given; afterwards restore the number from before."""
    import torch

    before, _Chosen.by_user = torch.get_num_threads(), count is not None or "OMP_NUM_THREADS" in os.environ
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _Chosen.by_user = False


def choose_threads(networks: int, batch: int, hidden_size: int, recorded: int | None = None) -> None:
    """Use one thread if a step is small, otherwise all idle cores, unless the user chose a number.

    `recorded`: the number that an earlier part of the same run used; with another, the last bits of its weights would
    differ.
    """
    import torch

    if not _Chosen.by_user:
        small = networks * batch * hidden_size**2 <= SMALL
        count = recorded or (1 if small else idle_cores())
        torch.set_num_threads(max(1, min(count, torch.get_num_threads())))


def choose_threads_for_runs(all_settings: Sequence[Settings], recorded: int | None = None) -> None:
    """The same for several runs, by the largest of them."""
    sizes = [(len(each.members), each.batch_size, each.hidden_size) for each in all_settings]
    if sizes:
        choose_threads(*max(sizes, key=lambda size: size[0] * size[1] * size[2] ** 2), recorded)


def idle_cores() -> int:
    """Physical cores that this process may use and that are idle now, at least one."""
    return max(1, usable_cores() - _busy())


def usable_cores() -> int:
    """Physical cores within the process's affinity and its container's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for number in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        siblings.add(_read(path) or str(number))
    return max(1, min(len(siblings), _quota()))


def _quota() -> int:
    """Cores that the container may use, rounded up."""
    quota, _, period = (_read(Path("/sys/fs/cgroup/cpu.max")) or "max").partition(" ")
    if not (quota.isdecimal() and period.isdecimal()):
        return os.cpu_count() or 1
    return max(1, -(-int(quota) // int(period)))


def _busy(samples: int = 5, pause: float = 0.01) -> int:
    """How many other threads are runnable: the median of a few samples, on Linux."""
    seen = []
    for _ in range(samples):
        fields = (_read(Path("/proc/loadavg")) or "").split()
        if len(fields) < 4:
            return 0
        seen.append(int(fields[3].split("/")[0]) - 1)  # without this thread
        time.sleep(pause)
    return max(0, round(statistics.median(seen)))


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, on Linux."""
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
