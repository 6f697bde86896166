"""Microseconds that Python takes for a call of the layer as on a GPU, with every launch replaced by nothing.

Needs no GPU: the tensors are small and on the CPU, and the kernels are those of Triton's interpreter, which never run.
What is left is what a host does beside launching: checks, allocations, and autograd. A linear layer shows how much of
that is PyTorch's own.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from torch import Tensor, nn

from lipschitz_rnn import LipschitzRNN
from lipschitz_rnn.ops.common.triton import launching

CALLS, ROUNDS = 200, 40


def microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """The fastest and the median of `ROUNDS` means over `CALLS` calls."""
    for _ in range(CALLS):
        call()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(1e6 * (time.perf_counter() - started) / CALLS)
    return min(times), statistics.median(times)


def trained(forward: Callable[[], Tensor], module: nn.Module) -> Callable[[], object]:
    weights, cotangent = tuple(module.parameters()), torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), weights, cotangent)


def main() -> None:
    torch.set_num_threads(1)
    launching.Launch.__call__ = lambda self, *tensors: None  # type: ignore[method-assign]
    layer, x = LipschitzRNN(1, 64, backend="triton").bfloat16(), torch.ones(20, 4, 1).bfloat16()
    linear, row = nn.Linear(4, 4), torch.ones(4, 4)

    def last_state() -> Tensor:
        return layer(x, need_output=False)[1]

    for name, call in {
        "LipschitzRNN, forward": last_state,
        "LipschitzRNN, forward and backward": trained(last_state, layer),
        "nn.Linear, forward and backward": trained(lambda: linear(row), linear),
    }.items():
        fastest, median = microseconds(call)
        print(f"{name:36} {fastest:6.0f} µs, median {median:.0f}")


if __name__ == "__main__":
    main()
