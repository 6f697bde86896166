"""Generated tasks: the pendulum of the paper's figure, and the two classic long-memory tasks, adding and copying.

Sample i of a split depends only on the seed, the split and i; nothing is read from disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.tasks.base import (
    ACCURACY,
    MSE,
    SPLITS,
    Batch,
    Generators,
    Split,
    Task,
    TaskInfo,
    check_count,
    check_split,
)
from lipschitz_rnn.tasks.counting import sample_keys, uniform
from lipschitz_rnn.tasks.objectives import Regression, TokenPrediction
from lipschitz_rnn.tasks.pixels import device_indices


class GeneratedTask(Task):
    """A task without files, with its sizes and seed."""

    def __init__(self, steps: int, seed: int, train_size: int, eval_size: int, **options: object) -> None:
        check_count("seed", seed, 0, 2**31 - 1)
        check_count("train_size", train_size)
        check_count("eval_size", eval_size)
        sizes = {"seed": seed, "train_size": train_size, "eval_size": eval_size}
        super().__init__(options | sizes, sequence_length=steps)
        self._sizes = dict(zip(SPLITS, (train_size, eval_size, eval_size), strict=True))
        self._seed = seed

    def size(self, split: Split) -> int:
        return self._sizes[check_split(split)]

    def _keys(self, split: Split, indices: Tensor) -> Tensor:
        """The random keys of the samples, on the task's device, in the shape of `indices`."""
        return sample_keys(device_indices(indices, self.device), self._seed, check_split(split))


class Adding(GeneratedTask, Regression):
    """The adding problem: sum the two marked numbers of a long row (Hochreiter and Schmidhuber, 1997).

    Inputs (T, B, 2): numbers in [0, 1) and markers, one in each half of the sequence. Always answering 1 has an error
    of 1/6 ≈ 0.167.
    """

    info = TaskInfo(
        name="adding",
        summary="sum of the two marked numbers of a long row",
        input_size=2,
        output_size=1,
        sequence_length=200,
        readout="last",
        metric=MSE,
        sizes={"train": 10_000, "validation": 1_000, "test": 1_000},
        source="generated",
        licence="that of this package",
    )

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        length: int = 200,
        seed: int = 0,
        train_size: int = 10_000,
        eval_size: int = 1_000,
    ) -> None:
        check_count("length", length, 2)
        super().__init__(length, seed, train_size, eval_size, length=length)

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        keys = self._keys(split, indices)
        drawn = uniform(keys, self.sequence_length + 2)
        numbers, places = drawn[..., 2:], drawn[..., :2]
        half = self.sequence_length // 2
        first = (places[..., 0] * half).long()
        second = half + (places[..., 1] * (self.sequence_length - half)).long()
        steps = torch.arange(self.sequence_length, device=keys.device)
        markers = ((steps == first.unsqueeze(-1)) | (steps == second.unsqueeze(-1))).float()
        inputs = torch.stack([numbers, markers], -1).transpose(-3, -2).contiguous()
        return Batch(inputs, (numbers * markers).sum(-1, keepdim=True))


class Copying(GeneratedTask, TokenPrediction):
    """The copying problem: repeat ten symbols after a long delay (Hochreiter and Schmidhuber, 1997).

    T = delay + 20 steps, one-hot inputs (T, B, 10): ten of eight symbols, blanks (8), a call (9) at step delay + 9,
    blanks. Targets (T, B): blanks (8), then the ten symbols in the last ten steps. The loss is over all steps, the
    accuracy only over the symbols.
    """

    info = TaskInfo(
        name="copying",
        summary="repeat ten symbols after a long delay",
        input_size=10,
        output_size=9,
        sequence_length=220,
        readout="all",
        metric=ACCURACY,
        sizes={"train": 10_000, "validation": 1_000, "test": 1_000},
        source="generated",
        licence="that of this package",
    )

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        delay: int = 200,
        seed: int = 0,
        train_size: int = 10_000,
        eval_size: int = 1_000,
    ) -> None:
        check_count("delay", delay)
        super().__init__(delay + 20, seed, train_size, eval_size, delay=delay)
        self.delay = delay

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        keys = self._keys(split, indices)
        symbols = (uniform(keys, 10) * 8).long()
        blank = torch.full((*keys.shape, self.sequence_length - 10), 8, device=keys.device)
        tokens = torch.cat([symbols, blank], -1)
        tokens[..., self.delay + 9] = 9
        targets = torch.cat([blank, symbols], -1).transpose(-2, -1)
        inputs = torch.nn.functional.one_hot(tokens.transpose(-2, -1), 10).float()
        return Batch(inputs, targets.contiguous())

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        correct = (outputs[..., -10:, :, :].argmax(-1) == batch.targets[..., -10:, :]).float()
        return correct.sum((-2, -1)), torch.ones_like(correct).sum((-2, -1))


class Pendulum(GeneratedTask, Regression):
    """A simple pendulum θ̈ = −sin θ − damping θ̇, sampled every `step`: predict the next (θ, θ̇) from the previous ones.

    The initial state is uniform in |θ| ≤ π/2, |θ̇| ≤ 1. Integrated with the classical Runge-Kutta method in float64
    with substeps of at most 0.02 (energy drift below 10⁻⁸ at the defaults).
    """

    info = TaskInfo(
        name="pendulum",
        summary="next angle and velocity of a simple pendulum",
        input_size=2,
        output_size=2,
        sequence_length=100,
        readout="all",
        metric=MSE,
        sizes={"train": 1_000, "validation": 200, "test": 200},
        source="generated",
        licence="that of this package",
    )

    def __init__(
        self,
        root: str | None = None,
        *,
        offline: bool = False,
        length: int = 100,
        step: float = 0.1,
        damping: float = 0.0,
        seed: int = 0,
        train_size: int = 1_000,
        eval_size: int = 200,
    ) -> None:
        check_count("length", length)
        for name, value, lowest in (("step", step, math.nextafter(0.0, 1.0)), ("damping", damping, 0.0)):
            if not isinstance(value, int | float) or not lowest <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; it must be a finite number {'>= 0' if lowest == 0 else '> 0'}")
        super().__init__(length, seed, train_size, eval_size, length=length, step=step, damping=damping)
        self.step, self.damping = float(step), float(damping)

        for split in SPLITS:  # integrated once: a trajectory takes thousands of small operations
            keys = sample_keys(torch.arange(self.size(split)), seed, split)
            self._data[split] = self._trajectories(uniform(keys, 2).double() * 2.0 - 1.0)

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        trajectory = self._data[check_split(split)][device_indices(indices, self.device)].transpose(-3, -2)
        return Batch(trajectory[..., :-1, :, :].contiguous(), trajectory[..., 1:, :, :].contiguous())

    def _trajectories(self, start: Tensor) -> Tensor:
        """(n, T + 1, 2) from uniform numbers (n, 2) in [−1, 1)."""
        states = [start * start.new_tensor([math.pi / 2, 1.0])]
        for _ in range(self.sequence_length):
            states.append(self._advance(states[-1]))
        return torch.stack(states, 1).float()

    def _advance(self, state: Tensor) -> Tensor:
        substeps = math.ceil(self.step / 0.02)
        h = self.step / substeps
        for _ in range(substeps):
            state = runge_kutta(self._velocity, state, h)
        return state

    def _velocity(self, state: Tensor) -> Tensor:
        angle, velocity = state.unbind(-1)
        return torch.stack([velocity, -angle.sin() - self.damping * velocity], -1)


def runge_kutta(velocity: Callable[[Tensor], Tensor], state: Tensor, h: float | Tensor) -> Tensor:
    """The state after one step of length `h` of the classical Runge-Kutta method."""
    k1 = velocity(state)
    k2 = velocity(state + h / 2 * k1)
    k3 = velocity(state + h / 2 * k2)
    k4 = velocity(state + h * k3)
    return state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
