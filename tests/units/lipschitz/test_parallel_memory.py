"""The memory of a scan in parallel over time, compared with the sequential one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lipschitz_rnn as lr
from lipschitz_rnn.benchmark.timing import peak_memory

STEPS, UNITS, FEATURES = 240_000, 16, 4  # of all samples together: their states take 15 MB
SLACK = 6_000_000  # bytes that come and go in any process


@pytest.mark.slow
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
        call()
        peak = peak_memory(call, torch.device("cpu"))
        if peak is None:
            pytest.skip("this system does not tell the memory of a process")
        found.append(peak)
    copied = STEPS * (UNITS + FEATURES) * 4 if batch > 1 and not batch_first else 0
    assert found[1] <= found[0] + copied + SLACK
