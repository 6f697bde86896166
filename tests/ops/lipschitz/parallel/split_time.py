"""A layer whose time axis is split over processes. `torchrun … split_time.py FILE`, or alone; rank 0 writes FILE."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # see below
import torch.distributed as dist

import lipschitz_rnn as lr
from lipschitz_rnn.ops import Parallel
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks

STEPS = 240  # of each process, so that its three chunks are long enough to forget, however many there are
KEPT: list[torch.Tensor] = []  # losses with their graphs, as a script has them at its end
TAKEN: list[tuple[int, int]] = []  # the steps of the backward passes of this process
CASES: dict[str, dict[str, Any]] = {
    "forgets": {"rate": 3.0},
    "two layers, recomputed": {"rate": 3.0, "num_layers": 2, "recompute_every": 7},
    "remembers": {"rate": 1e-3},
    "reads the last state": {"rate": 2.0},  # of the last process, so that the others have gradients of other tensors
}


def backward(chunks: Chunks, *given: Any, **options: Any) -> Any:
    TAKEN.append(given[4:6])
    return real_backward(chunks, *given, **options)


real_backward = Chunks.backward
Chunks.backward = backward  # type: ignore[method-assign]


def run(options: dict[str, Any], steps: int, resumed: bool = False) -> dict[str, Any]:
    """A training run of three updates, perhaps resumed after two: losses, the gradients of the last, and the states."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    rnn, optimizer = new_run(options)
    x = torch.randn(steps, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h_0 = torch.randn(rnn.num_layers, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    own = x.chunk(size)[rank]
    losses = []
    reads_last = options is CASES["reads the last state"]
    for update in range(3):
        if resumed and update == 2:
            saved = io.BytesIO()
            torch.save((rnn.state_dict(), optimizer.state_dict()), saved)
            rnn, optimizer = new_run(options)
            of_layer, of_optimizer = torch.load(io.BytesIO(saved.getvalue()))
            rnn.load_state_dict(of_layer)
            optimizer.load_state_dict(of_optimizer)
        optimizer.zero_grad()
        output, h_n = rnn(own, h_0)
        loss = output.sin().sum() / steps
        if reads_last:
            loss = h_n.sin().sum() if rank == size - 1 else 0.0 * output.sum()
        loss.backward()
        total = loss.detach().clone()
        if size > 1:
            for parameter in rnn.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(total)
        optimizer.step()
        losses.append(float(total))
    KEPT.append(loss)
    parts = [torch.empty_like(output) for _ in range(size)]
    dist.all_gather(parts, output.detach()) if size > 1 else parts.__setitem__(0, output.detach())
    passes = [bound.passes for bound in rnn.bounds]
    taken = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(taken, torch.tensor([float(sum(stop - first for first, stop in TAKEN))])) if size > 1 else None
    gradients = [parameter.grad for parameter in rnn.parameters()]
    return {"losses": losses, "states": torch.cat(parts), "gradients": gradients, "passes": passes} | {
        "taken": [int(number) for number in taken]
    }


def new_run(options: dict[str, Any]) -> tuple[lr.LipschitzRNN, torch.optim.Optimizer]:
    rnn = lr.LipschitzRNN(2, 5, stability="contracting", step_size=0.1, dtype=torch.float64, **options)
    if dist.is_initialized():
        rnn.parallel = Parallel(3, tolerance=1e-12, warm_up=5, group=True)
    return rnn, torch.optim.SGD(rnn.parameters(), lr=0.1, momentum=0.9)


def refusals() -> dict[str, str]:
    """What every process says of stretches that do not fit together; none may be left waiting."""
    said, rank = {}, dist.get_rank()
    for name, steps, chunks in (("uneven", 10 + rank, 1), ("one cannot", 12 + rank % 2, 3)):
        settings = Parallel(chunks, group=True)
        rnn = lr.LipschitzRNN(2, 5, stability="contracting", dtype=torch.float64, parallel=settings)
        try:
            rnn(torch.randn(steps, 1, 2, dtype=torch.float64))
        except ValueError as error:
            said[name] = str(error)
    return said


def threads() -> set[str]:
    """Names of the threads of this process, where the system tells them."""
    return {task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    try:
        steps = STEPS * (dist.get_world_size() if dist.is_initialized() else 1)
        found: dict[str, Any] = {name: run(options, steps) for name, options in CASES.items()}
        found["resumed"] = run(CASES["forgets"], steps, resumed=True)
        if dist.is_initialized():
            found["refused"] = refusals()
            dist.barrier()  # a process that is done closes the connections through which others may still be reading
    finally:
        # A thread of gloo that lets go of a tensor while the interpreter shuts down aborts the process, with "terminate
        # called without an active exception". Destroying the group ends its threads, also after an error, unless it is
        # held: PyTorch's compiler holds a group that is there when it is imported, as by the first optimizer step.
        if dist.is_initialized():
            dist.destroy_process_group()
    left = {name for name in threads() if "gloo" in name or "tcpstore" in name}
    assert not left, f"threads outlive the process group, and can abort the process at its end: {left}"
    if os.environ.get("RANK", "0") == "0":
        torch.save(found, sys.argv[1])
