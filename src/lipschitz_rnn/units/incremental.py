"""irnn: a state that moves towards an equilibrium in a few inner steps for each input."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.fused import kept_map, kept_scan, runs_fused
from lipschitz_rnn.units.recurrence import Statement, UnstatedRecurrenceError
from lipschitz_rnn.units.sequences import Sequences


class IncrementalCell(Cell):
    """K inner steps from g = 0 for each input: g ← g + η_k (tanh(W (g + h) + U x + b) − α (g + h)), then h⁺ = g.

    Kag, Zhang, Saligrama, "RNNs incrementally evolving on an equilibrium manifold: a panacea for vanishing and
    exploding gradients?", ICLR 2020. K = `inner_steps`; α and η_k are learned and start at 1: for η = α = 1 an inner
    step is a fixed-point iteration, and at the equilibrium ∂h⁺/∂h = −I. With `rank` r, W = W₁ W₂ᵀ. W starts normal with
    standard deviation `init_scale` / √N, small enough for the first inner step to be near the equilibrium.

    Parameters N² + N p + N + K + 1, with 2 N r instead of N² for rank r: 18K at N = 128 on MNIST with the head. The 4K
    and 8K of the paper's table need a low rank: r = 10 and r = 25 give 4.1K and 7.9K.

    With one inner step h⁺ = η tanh(W h + U x + b) − η α h, and all steps run as one kernel on a GPU, and on any device
    if `backend` is set.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        inner_steps: int = 1,
        step_size: float = 1.0,
        rank: int | None = None,
        init_scale: float = 0.1,
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.backend = backend
        if inner_steps < 1:
            raise ValueError(f"inner_steps is {inner_steps!r}; it must be at least 1")
        if rank is not None and not 1 <= rank <= hidden_size:
            raise ValueError(f"rank is {rank!r}; it must be from 1 to hidden_size = {hidden_size}, or None")
        self.input = nn.Linear(input_size, hidden_size)
        if rank is None:
            self.left = nn.Parameter(torch.randn(hidden_size, hidden_size) * init_scale / math.sqrt(hidden_size))
            self.right = None
        else:
            std = math.sqrt(init_scale / math.sqrt(hidden_size * rank))  # left @ rightᵀ has the std of the full matrix
            self.left = nn.Parameter(torch.randn(hidden_size, rank) * std)
            self.right = nn.Parameter(torch.randn(hidden_size, rank) * std)
        self.alpha = nn.Parameter(torch.ones(1))
        self.step_sizes = nn.Parameter(torch.full((inner_steps,), step_size))

    def hidden_matrix(self) -> Tensor:
        return self.left if self.right is None else self.left @ self.right.mT

    def weights(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        return self.hidden_matrix().mT, self.alpha, self.step_sizes.unbind()

    def _fused(self, x: Tensor) -> bool:
        return len(self.step_sizes) == 1 and runs_fused(x, self.backend)

    def project(self, x: Tensor) -> Tensor:
        return x if self._fused(x) else super().project(x)

    def scan(
        self,
        inputs: Tensor,
        state: State,
        weights: tuple[Tensor, Tensor, tuple[Tensor, ...]],
        sequences: Sequences,
        need_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        if not self._fused(inputs):
            return super().scan(inputs, state, weights, sequences, need_output)
        hidden, alpha, (step_size,) = weights
        given = (self.input.weight, self.input.bias, sequences, self.backend, need_output)
        states, last = kept_scan(inputs, hidden.mT, -step_size * alpha, state[0], *given, scale=step_size)
        return states, (last,)

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`, which knows the map of a single inner step."""
        if len(self.step_sizes) > 1:
            raise UnstatedRecurrenceError(
                f"irnn with {len(self.step_sizes)} inner steps does not state its recurrence; with one it does"
            )
        return [kept_map(self, lambda weights: (weights[0].mT, -weights[2][0] * weights[1], weights[2][0]))]

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor, tuple[Tensor, ...]]) -> State:
        hidden, alpha, step_sizes = weights
        g = torch.zeros_like(state[0])
        for step_size in step_sizes:
            total = g + state[0]
            g = g + step_size * (torch.tanh(inputs + total @ hidden) - alpha * total)
        return (g,)
