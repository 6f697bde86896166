"""Several processes that train one run together: each computes a shard of every batch, and rank 0 writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist
from torch import Tensor

from lipschitz_rnn.training.streams import Shard


@dataclass(frozen=True)
class World:
    """The processes of a run. With one process every method is the identity."""

    rank: int = 0
    size: int = 1

    @property
    def shard(self) -> Shard:
        return Shard(self.rank, self.size)

    @property
    def writes(self) -> bool:
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            tensor = tensor.contiguous()
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process; all processes get the same answer."""
        if self.size == 1:
            return flag
        return bool(self.add(torch.tensor([float(flag)], device=device)).item())

    def join(self, tensor: Tensor, axis: int) -> Tensor:
        """The shards of all processes, joined along `axis` on every process."""
        if self.size == 1:
            return tensor
        moved = tensor.transpose(0, axis).contiguous()
        counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(moved)], device=tensor.device))
        rows = [int(count.item()) for count in counts]
        padded = moved.new_zeros(max(rows), *moved.shape[1:])
        padded[: len(moved)] = moved
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:row] for part, row in zip(parts, rows, strict=True)]).transpose(0, axis).contiguous()

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined_world(device: torch.device) -> Iterator[World]:
    """The world that torchrun set up in the environment, or a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    owner = not dist.is_initialized()
    if owner:
        _require_restarts_work()
        # The first optimizer step imports PyTorch's compiler, which holds a group that is there by then: gloo threads
        # would outlive it, and can abort the process at its end.
        import_module("torch._dynamo")
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size)
        if owner:
            dist.barrier()  # gloo's threads abort a process whose peer exits first
    finally:
        if owner:
            dist.destroy_process_group()


def _require_restarts_work() -> None:
    """torchrun's agents keep one store for all restarts, in which processes find addresses of dead ones, and hang."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("TORCHELASTIC_MAX_RESTARTS") != "0":
        raise ValueError(
            "torchrun has --max-restarts, but its store is shared between restarts, after which a run can hang; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun (PyTorch issue 135712)"
        )


def device_of_run(given: str | None, trained: str) -> torch.device:
    """Where to use a trained network: on the given device, else on that of its training, if this machine has it."""
    if given is None and trained.startswith("cuda") and not torch.cuda.is_available():
        given = "cpu"  # trained on a GPU and brought here
    return choose_device(given or trained)


def choose_device(name: str) -> torch.device:
    """ "auto" is the GPU if there is one; under torchrun each process uses its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f'device is {name!r}; it must be "auto", "cpu", "cuda" or "cuda:1"') from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f'device is {name!r}; training runs on "cpu" and "cuda" (or "cuda:1"), or choose "auto"')
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f'device is {name!r}, but PyTorch sees no CUDA device; use "cpu" or "auto"')
        index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ValueError(f"device is {name!r}, but PyTorch sees {torch.cuda.device_count()} CUDA devices")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device
