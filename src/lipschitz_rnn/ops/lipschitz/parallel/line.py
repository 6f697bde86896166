"""Processes that each hold a stretch of the time axis, in the order of their ranks. One alone needs no exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.plan import Plan


@dataclass(frozen=True)
class Line:
    """What chunks at the ends of a stretch learn from their neighbours: a few states, gathered from all processes.

    The graph of a loss keeps it. So it does not hold the group of all processes, which must end when it is destroyed:
    its threads would abort a process that shuts down.

    Attributes:
        group: as torch.distributed takes it, None for all processes.
    """

    group: Any = None
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, group: Any) -> Line:
        if group is None:
            return cls()
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("group was given, but torch.distributed is not initialized; call init_process_group first")
        own = None if group is True else group
        return cls(own, dist.get_rank(own), dist.get_world_size(own))

    def gathered(self, values: Tensor) -> list[Tensor]:
        """The same tensor of all processes."""
        if self.size == 1:
            return [values]
        parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return parts

    def after(self, first: Tensor, values: Tensor) -> Tensor:
        """Values of chunks (S, K, …) moved to the chunk after each; the very first chunk gets ``first``, (S, 1, …)."""
        ends = self.gathered(values[:, -1:])
        begin = first if self.rank == 0 else ends[self.rank - 1]
        return torch.cat((begin, values[:, :-1]), dim=1)

    def before(self, values: Tensor) -> Tensor:
        """Values of chunks moved to the chunk before each; the very last chunk gets zeros."""
        firsts = self.gathered(values[:, :1])
        end = torch.zeros_like(values[:, :1]) if self.rank == self.size - 1 else firsts[self.rank + 1]
        return torch.cat((values[:, 1:], end), dim=1)

    def whole(self, values: Tensor) -> Tensor:
        """Values of the chunks of all processes, (S, K·size, …)."""
        return torch.cat(self.gathered(values), dim=1)

    def own(self, values: Tensor) -> Tensor:
        """The inverse: this process's part of (S, K·size, …)."""
        return values.chunk(self.size, dim=1)[self.rank]

    def largest(self, value: Tensor) -> Tensor:
        """The largest over all processes; NaN if any is."""
        return torch.stack(self.gathered(value)).amax(0)

    def agree(self, make: Callable[[], Plan], steps: int, samples: int, device: torch.device) -> Plan:
        """The plan of this process, if all processes have the same one.

        Otherwise, or if it fails in one of them, every process raises: none is left waiting for the others.
        """
        if self.size == 1:
            return make()
        try:
            plan, wrong = make(), None
        except ValueError as error:
            plan, wrong = Plan(0, 0, 0, 0), error
        own = torch.tensor((steps, samples, plan.chunks, plan.steps), device=device)
        found = [tuple(numbers.tolist()) for numbers in self.gathered(own)]
        if wrong is not None:
            try:
                raise wrong
            finally:
                wrong = None  # an error that is raised again holds this frame
        refused = [rank for rank, (_, _, chunks, _) in enumerate(found) if chunks == 0]
        if refused:
            raise ValueError(f"process {refused[0]} cannot run its stretch of the time axis; its own error says why")
        if any(other != found[0] for other in found):
            raise ValueError(
                "the processes hold different stretches of the time axis, as (steps, samples, chunks, steps of a "
                f"chunk): {', '.join(map(str, found))}; give every process the same number of steps"
            )
        return plan
