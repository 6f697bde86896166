"""The memory of a scan in parallel over time, compared with the sequential one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import lipschitz_rnn as lr

STEPS, UNITS, FEATURES = 48_000, 16, 4  # of all samples together
STATES = 4 * STEPS * UNITS  # bytes


def peak(call: Callable[[], object]) -> int:
    """Bytes that PyTorch has allocated at most, as it tells: the memory of the process depends on what was before."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events: Any = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate(change for _, change in changes))


@pytest.mark.parametrize("every", [None, 512])
@pytest.mark.parametrize("training", [False, True], ids=["forward", "training step"])
@pytest.mark.parametrize(("batch", "batch_first"), [(1, False), (3, True), (3, False)])
def test_it_takes_the_memory_of_the_sequential_scan(
    every: int | None, training: bool, batch: int, batch_first: bool
) -> None:
    """And a copy of states and inputs for several samples with time first: there a chunk is not one piece of memory."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"rate": 3.0, "step_size": 0.1, "recompute_every": every, "batch_first": batch_first}
    layer = lr.LipschitzRNN(FEATURES, UNITS, stability="contracting", **options)
    shape = (batch, STEPS // batch) if batch_first else (STEPS // batch, batch)
    x, given = torch.randn(*shape, FEATURES), torch.ones(*shape, UNITS)

    def call() -> object:
        if not training:
            with torch.no_grad():
                return layer(x)
        return torch.autograd.grad(layer(x)[0], list(layer.parameters()), given)

    found = []
    for parallel in (None, 8):
        layer.parallel = parallel
        found.append(peak(call))
    copied = STATES + 4 * STEPS * FEATURES if batch > 1 and not batch_first else 0
    assert found[0] >= STATES / 2
    assert found[1] <= found[0] + copied + 0.1 * STATES
