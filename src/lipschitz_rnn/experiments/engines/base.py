"""What an engine offers, the simplest one, and their choice by name."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.training import CheckpointError, Interrupted, RunError

EngineName = Literal["local", "ray"]
Call = Callable[[], object]  # must be picklable, except for `InProcess`


@dataclass(frozen=True)
class Ended:
    """A function that has ended; `error` says why it failed."""

    name: str
    error: str | None = None


class Engine:
    """Runs functions that are submitted by name. A function may be run again if its process dies: it must resume."""

    slots = 1  # how many functions to submit at a time

    @property
    def at_once(self) -> int:
        """How many functions run at once."""
        return self.slots

    def submit(self, name: str, call: Call) -> None:
        raise NotImplementedError

    def wait(self, seconds: float) -> list[Ended]:
        """What has ended, as soon as something has, or nothing after `seconds`. Raises Interrupted after a signal."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what still runs; runs save before they end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class InProcess(Engine):
    """One function after another, in this process."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Call]] = deque()

    def submit(self, name: str, call: Call) -> None:
        self._waiting.append((name, call))

    def wait(self, seconds: float) -> list[Ended]:
        if not self._waiting:
            return []
        name, call = self._waiting.popleft()
        return [Ended(name, error_of(call))]


def error_of(call: Call) -> str | None:
    """Call, and say what went wrong; an interruption is passed on."""
    try:
        call()
    except Interrupted:
        raise
    except (RunError, CheckpointError, DataError, ValueError, TypeError, OSError) as error:
        return str(error) or repr(error)
    except Exception:  # e.g. out of memory, or an error in a user's unit: the others have their turn
        return traceback.format_exc()
    return None


def refuse_cluster_options(address: str | None, gpus: float | None) -> None:
    """Raise if an option is given that the local engine does not have."""
    if address is not None or gpus is not None:
        given = f"--address {address}" if address is not None else f"--gpus {gpus:g}"
        raise ValueError(f"{given} is for --engine ray; leave it out, or add --engine ray")


def make_engine(
    name: EngineName,
    jobs: int | None = None,
    *,
    threads: int = 1,
    address: str | None = None,
    gpus: float | None = None,
    device: str = "auto",
) -> Engine:
    """An engine by its name.

    Args:
        jobs: local: functions at a time; by default one per GPU, or one. ray: at most this many, by default as many as
            the cluster has room for.
        threads: CPU threads of each function.
        address: ray: of the cluster; by default RAY_ADDRESS, else a cluster on this machine.
        gpus: ray: GPUs of each function; a fraction shares one. By default 1 if the cluster has GPUs.
        device: of all functions. With "auto" and "cuda" each sees one GPU only; "cuda:1" is local and the same for all.
    """
    if name == "ray":
        from lipschitz_rnn.experiments.engines.cluster import RayEngine

        if ":" in device:
            raise ValueError(f"device is {device!r}, but Ray gives every run GPUs of its own; use cuda or auto")
        return RayEngine(address, jobs, threads, 0.0 if device == "cpu" and gpus is None else gpus)
    refuse_cluster_options(address, gpus)
    from lipschitz_rnn.experiments.engines.workers import Workers

    jobs = slots_here(jobs, device)
    return InProcess() if jobs == 1 else Workers(jobs, threads, _own_gpus(device))


def slots_here(jobs: int | None, device: str = "auto") -> int:
    """How many functions the local engine runs at once: `jobs`, or one per GPU, or one."""
    return jobs or max(1, len(_own_gpus(device)))


def _own_gpus(device: str) -> tuple[str, ...]:
    """The GPUs to hand out, one to each process."""
    from lipschitz_rnn.experiments.engines.workers import visible_gpus

    return visible_gpus() if device in ("auto", "cuda") else ()
