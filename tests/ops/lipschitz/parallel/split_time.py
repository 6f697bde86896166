"""A layer whose time axis is split over processes. `torchrun … split_time.py FILE`, or alone; rank 0 writes FILE."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import lipschitz_rnn as lr
from lipschitz_rnn.ops import Parallel

STEPS = 480
CASES: dict[str, dict[str, Any]] = {
    "forgets": {"rate": 3.0},
    "two layers, recomputed": {"rate": 3.0, "num_layers": 2, "recompute_every": 7},
    "remembers": {"rate": 1e-3},
}


def run(options: dict[str, Any], steps: int) -> dict[str, Any]:
    """A training run of three updates: losses, the gradients of the last, and the states."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    rnn = lr.LipschitzRNN(2, 5, stability="contracting", step_size=0.1, dtype=torch.float64, **options)
    x = torch.randn(steps, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h_0 = torch.randn(rnn.num_layers, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    if size > 1:
        rnn.parallel = Parallel(3, tolerance=1e-12, warm_up=5, group=True)
    own = x.chunk(size)[rank]
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        output, _ = rnn(own, h_0)
        loss = output.sin().sum() / steps
        loss.backward()
        total = loss.detach().clone()
        if size > 1:
            for parameter in rnn.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(total)
        optimizer.step()
        losses.append(float(total))
    parts = [torch.empty_like(output) for _ in range(size)]
    dist.all_gather(parts, output.detach()) if size > 1 else parts.__setitem__(0, output.detach())
    passes = [bound.passes for bound in rnn.bounds]
    gradients = [parameter.grad for parameter in rnn.parameters()]
    return {"losses": losses, "states": torch.cat(parts), "gradients": gradients, "passes": passes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    found: dict[str, Any] = {name: run(options, STEPS) for name, options in CASES.items()}
    if dist.is_initialized():
        uneven = torch.randn(10 + dist.get_rank(), 1, 2, dtype=torch.float64)
        rnn = lr.LipschitzRNN(2, 5, stability="contracting", dtype=torch.float64, parallel=Parallel(1, group=True))
        try:
            rnn(uneven)
        except ValueError as error:
            found["uneven"] = str(error)
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(found, sys.argv[1])
    if dist.is_initialized():
        dist.barrier()  # rank 0 keeps the store that the others still talk to
        dist.destroy_process_group()
        os._exit(0)  # on a busy machine threads of gloo that outlive the interpreter can abort a process that is done
