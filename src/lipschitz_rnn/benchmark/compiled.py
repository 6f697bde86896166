"""``torch.compile`` of the plain loop, within a time limit.

The compiler unrolls a Python loop, so compile time grows with the number of steps: 784 steps take too long. So a few
steps are compiled as one function, which is called repeatedly.
"""

from __future__ import annotations

import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.benchmark.workload import Workload
from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.ops.lipschitz.reference import integrate_step

MOST_STEPS = 8


def require(device: torch.device) -> None:
    """Raise if PyTorch cannot compile on this device."""
    if device.type == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise RuntimeError("torch.compile needs a C++ compiler for the CPU, and none is installed")


def steps_at_once(length: int) -> int:
    """The largest divisor of the length that the compiler can handle."""
    return max(k for k in range(1, MOST_STEPS + 1) if length % k == 0)


def loop(work: Workload, x: Tensor, weights: Sequence[Tensor]) -> Callable[[], Tensor]:
    """The loop over time, with a compiled function for several steps. It is compiled at the first call."""
    tableau, sigma = get_integrator(work.integrator), get_nonlinearity("tanh")
    everything = work.readout == "all"
    A, W, U, b = weights

    def some_steps(h: Tensor, x: Tensor, A: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        kept = []
        for sample in x.unbind(1):
            u = sample @ U.mT + b.unsqueeze(1)
            h = integrate_step(h, u, A, W, work.step_size, 1.0, tableau, sigma)
            kept.append(h)
        return h, torch.stack(kept, dim=1) if everything else h

    quick: Any = torch.compile(some_steps, dynamic=False)
    chunks = x.split(steps_at_once(work.length), dim=1)
    # Requires grad from the start, like every later state, so that one compiled program serves all chunks.
    h0 = A.new_zeros((work.networks, work.batch, work.hidden)).requires_grad_()

    def states() -> Tensor:
        h, kept = h0, []
        for chunk in chunks:
            h, some = quick(h, chunk, A, W, U, b)
            kept.append(some)
        return torch.cat(kept, dim=1) if everything else h

    return states


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after this time, if the platform has a timer signal.

    The signal repeats until the block ends, because a compiler may catch the exception.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not compiled within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's advice to its users
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
