"""The order, noise and dropout of each member, from generators whose states can be saved."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.noise import SEEDS
from lipschitz_rnn.tasks import Batch, Task
from lipschitz_rnn.training.settings import Settings


def derived_seed(purpose: str, seed: int, step: int = 0) -> int:
    """A seed for one purpose of one member; distinct purposes and seeds give unrelated streams."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Shard:
    """Which part of every global batch this process computes."""

    rank: int = 0
    size: int = 1

    def start(self, count: int) -> int:
        """The index of this part's first sample in a batch of `count` samples."""
        return self.rank * (count // self.size) + min(self.rank, count % self.size)

    def cut(self, value: Tensor, axis: int) -> Tensor:
        return value if self.size == 1 else value.tensor_split(self.size, axis)[self.rank]


class Stream:
    """Training batches of all members, with a leading axis S. A process draws the global batch and keeps its shard."""

    def __init__(
        self,
        settings: Settings,
        task: Task,
        device: torch.device,
        shard: Shard,
        read_size: int | None = None,
        noisy_cells: int = 0,
    ) -> None:
        """
        Args:
            read_size: how many values the head reads, for the dropout masks; by default `settings.hidden_size`.
            noisy_cells: the number of cells in a network with noise on their state; each has its own seed.
        """
        if settings.embedding_dropout and task.vocabulary is None:
            raise ValueError(
                f"embedding_dropout is {settings.embedding_dropout:g}, but the inputs of {task.name} are not tokens; "
                "leave it at 0"
            )
        self._task, self._shard = task, shard
        self._dropout, self._embedding_dropout = settings.dropout, settings.embedding_dropout
        self._read_size = settings.hidden_size if read_size is None else read_size
        self.seeds = settings.seeds
        self.order = [torch.Generator().manual_seed(derived_seed("order", seed)) for seed in settings.seeds]
        self.noise = [torch.Generator(device).manual_seed(derived_seed("noise", seed)) for seed in settings.seeds]
        self._noisy_cells, self._first_sample = noisy_cells, 0
        # Separate generators, so that noise in some members does not change the data of the others.
        drawing = settings.seeds if noisy_cells else ()
        self.cells = [torch.Generator(device).manual_seed(derived_seed("state noise", seed)) for seed in drawing]
        self.carries = task.carries_state
        count = task.size("train")
        self.batch_size = 1 if task.stateful else min(settings.batch_size, count)
        self.steps = count // self.batch_size
        if not task.stateful and self.batch_size < shard.size:
            raise ValueError(
                f"a batch of {self.batch_size} cannot be split over {shard.size} processes; set a larger batch_size"
            )
        self._device = device
        self._indices = torch.empty(0, dtype=torch.int64)
        self.epoch_start: list[Tensor] = []

    def begin_epoch(self) -> None:
        """Draw every member's order; the states before the draw are kept, so that it can be repeated."""
        self.epoch_start = [generator.get_state() for generator in self.order]
        if not self._task.stateful:
            used = self.steps * self.batch_size
            drawn = [self._task.order(g, self.batch_size)[:used] for g in self.order]
            self._indices = torch.stack(drawn).to(self._device)

    def indices(self, step: int) -> Tensor:
        """(S, B) sample indices of a step, on the device."""
        return self._indices[:, step * self.batch_size : (step + 1) * self.batch_size]

    def draw(self, step: int) -> tuple[Batch, Tensor | None]:
        """The batch of `step`, and the dropout factors as `SequenceModel` takes them."""
        if self._task.stateful:
            batch = for_members(self._task.batch("train", torch.tensor([step])), len(self.seeds))
        else:
            batch = self._task.batch("train", self.indices(step), self.noise)
        keep = self._keep(batch) if self._dropout or self._embedding_dropout else None
        self._first_sample = self._shard.start(batch.inputs.shape[2])
        return self.cut(batch), None if keep is None else self._shard.cut(keep, keep.dim() - 2)

    def draw_noise_seeds(self) -> Tensor:
        """(S, cells, 2), for the last batch: the seed of each cell with noise on its state, and the index of this
        process's first sample in the global batch."""
        shape = (self._noisy_cells,)
        drawn = [torch.randint(SEEDS, shape, dtype=torch.float64, device=self._device, generator=g) for g in self.cells]
        seeds = torch.stack(drawn)
        return torch.stack((seeds, torch.full_like(seeds, self._first_sample)), -1)

    def _keep(self, batch: Batch) -> Tensor:
        steps = batch.inputs.shape[1:2] if self._task.readout == "all" else ()
        sizes = [(self._read_size, self._dropout)]
        if self._embedding_dropout:
            sizes.append((self._task.input_size, self._embedding_dropout))
        parts = [self._factors((*steps, batch.inputs.shape[2], size), rate) for size, rate in sizes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _factors(self, shape: tuple[int, ...], rate: float) -> Tensor:
        masks = [torch.empty(shape, device=self._device).bernoulli_(1 - rate, generator=g) for g in self.noise]
        return torch.stack(masks) / (1 - rate)

    def cut(self, batch: Batch) -> Batch:
        """This process's shard, along the batch axis."""
        lengths = None if batch.lengths is None else self._shard.cut(batch.lengths, 1)
        timespans = None if batch.timespans is None else self._shard.cut(batch.timespans, 2)
        targets = self._shard.cut(batch.targets, 2 if self._task.readout == "all" else 1)
        return Batch(self._shard.cut(batch.inputs, 2), targets, lengths, timespans)

    def states(self) -> dict[str, Tensor]:
        """The states of all generators, to be saved with the position in the epoch."""
        named = {f"order.{seed}": state for seed, state in zip(self.seeds, self.epoch_start, strict=True)}
        named |= {f"noise.{s}": g.get_state() for s, g in zip(self.seeds, self.noise, strict=True)}
        return named | {f"cells.{s}": g.get_state() for s, g in zip(self.seeds, self.cells, strict=False)}

    def restore(self, states: dict[str, Tensor]) -> None:
        """Restore saved states: draw the epoch's order again, then restore the state of the noise."""
        for seed, generator in zip(self.seeds, self.order, strict=True):
            generator.set_state(states[f"order.{seed}"])
        self.begin_epoch()
        for seed, generator in zip(self.seeds, self.noise, strict=True):
            generator.set_state(states[f"noise.{seed}"])
        for seed, generator in zip(self.seeds, self.cells, strict=False):
            generator.set_state(states[f"cells.{seed}"])


def for_members(batch: Batch, members: int) -> Batch:
    """The same batch for every member, with a leading axis S, without a copy."""
    return batch.map(lambda value: value.expand(members, *value.shape))
