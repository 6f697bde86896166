"""Large memory of a CPU, used again call after call.

The C library takes memory of more than 32 MiB from the operating system anew each time, and that hands it out page by
page, each filled with zeros at the first touch: for the tape of a training step at B = 128, T = 784 and N = 128 a
quarter of all processor time. What is kept here instead is offered back to the operating system, which takes it if it
runs short.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST = 2**25  # bytes; the C library itself keeps smaller ones
MOST = 8  # that wait to be used again

_free: list[mmap.mmap] = []  # changed in single operations of lists only, which no other thread interrupts


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The owner of a tensor's memory: lives until the last tensor that shares it is gone."""

    memory: mmap.mmap | None = None

    def __del__(self) -> None:
        if self.memory is not None:
            _keep(self.memory)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Like ``torch.empty`` on a CPU. Not for a caller's eyes: what is returned cannot be resized."""
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST or not _can_keep():
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = _taken(size)
    if memory is None:
        # What was kept is too small now, and would only take up room beside what replaces it. Private: after a fork
        # both processes go on with their own.
        give_back()
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):  # PyTorch says what is missing
            return torch.empty(shape, dtype=dtype, device="cpu")
    lease = np.frombuffer(memory, dtype=np.uint8, count=size).view(_Lease)
    lease.memory = memory
    tensor = torch.from_numpy(lease).view(dtype).view(*shape)
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if fills and torch.are_deterministic_algorithms_enabled():
        tensor.fill_(torch.nan)
    return tensor


def give_back() -> None:
    """Returns to the operating system what is not in use."""
    _free.clear()


def _can_keep() -> bool:
    """Whether the system can be offered memory back, and what waits takes nothing from others.

    It always counts as address space, and could be all that a limit leaves (``ulimit -v``).
    """
    if not hasattr(mmap, "MADV_FREE") or _counts_every_page():
        return False
    import resource  # not on Windows

    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return all(resource.getrlimit(limit)[0] == resource.RLIM_INFINITY for limit in limits)


@cache
def _counts_every_page() -> bool:
    """Whether Linux promises no more memory than it has: then what waits is missing elsewhere."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return False


def _taken(size: int) -> mmap.mmap | None:
    """The smallest free memory that is large enough."""
    for memory in sorted(_free, key=len):
        if len(memory) >= size:
            try:
                _free.remove(memory)
            except ValueError:  # another thread was faster
                continue
            return memory
    return None


def _keep(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_FREE)
    except OSError:  # a kernel that cannot take it back later gets it now
        return
    _free.append(memory)
    del _free[:-MOST]
