"""coRNN as a Lipschitz unit of twice its size: the same numbers as its own loop, in one kernel for all steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import units


def outcome(backend: str, lengths: Tensor | None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        unit = units.build("cornn", 2, 6, step_size=0.3, num_layers=2).double()
    for layer in range(2):
        unit.cell(layer).backend = backend  # type: ignore[operator]
    x = torch.randn(9, 4, 2, generator=generator, dtype=torch.float64).requires_grad_()
    h0 = tuple(torch.randn(2, 4, 6, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    output, (y, z) = unit(x, h0, lengths=lengths)
    objective = output.sin().sum() + y.cos().sum() + z.square().sum()
    return [output, y, z, *torch.autograd.grad(objective, [x, *h0, *unit.parameters()])]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("lengths", [None, torch.tensor([9, 1, 4, 7])], ids=["whole", "lengths"])
def test_the_scan_equals_the_loop(backend: str, lengths: Tensor | None) -> None:
    for found, expected in zip(outcome(backend, lengths), outcome("auto", lengths), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
