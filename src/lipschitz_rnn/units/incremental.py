"""irnn: a state that moves towards an equilibrium in a few inner steps for each input."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import require_count, require_number
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.fused import kept_map, kept_scan, require_fused, runs_fused
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

    As published, the state changes its sign with every step: h⁺ ≈ s(x) − h, and what it keeps is the alternating sum of
    the inputs' equilibria s(x). Inputs that change slowly, such as neighbouring pixels, cancel. With `warm_start` (our
    option, not the paper's) the inner steps start from g = h and lead to the same equilibrium; few small ones leave the
    state where it was, so that it sums over time: for K = 1, h⁺ = (1 − 2 η α) h + η tanh(2 W h + U x + b).

    With one inner step h⁺ = η tanh(W h + U x + b) − η α h, and all steps run as one kernel on a GPU, and on any device
    if `backend` is set. η_k and α start at `step_size` and `alpha`.
    """

    warm_start = False  # of modules pickled before there was the option

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        inner_steps: int = 1,
        step_size: float = 1.0,
        alpha: float = 1.0,
        warm_start: bool = False,
        rank: int | None = None,
        init_scale: float = 0.1,
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size)
        inner_steps = require_count("inner_steps", inner_steps)
        self.backend = require_fused(backend, inner_steps == 1, f"inner_steps is {inner_steps}")
        step_size = require_number("step_size", step_size, low=-math.inf)
        alpha = require_number("alpha", alpha, low=-math.inf)
        if not isinstance(warm_start, bool):
            raise TypeError(f"warm_start is {warm_start!r}; it must be True or False")
        if rank is not None and not 1 <= require_count("rank", rank) <= hidden_size:
            raise ValueError(f"rank is {rank!r}; it must be from 1 to hidden_size = {hidden_size}, or None")
        self.input = nn.Linear(input_size, hidden_size)
        if rank is None:
            self.left = nn.Parameter(torch.randn(hidden_size, hidden_size) * init_scale / math.sqrt(hidden_size))
            self.right = None
        else:
            std = math.sqrt(init_scale / math.sqrt(hidden_size * rank))  # left @ rightᵀ has the std of the full matrix
            self.left = nn.Parameter(torch.randn(hidden_size, rank) * std)
            self.right = nn.Parameter(torch.randn(hidden_size, rank) * std)
        self.warm_start = warm_start
        self.alpha = nn.Parameter(torch.full((1,), alpha))
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
        hidden, kept, scale = self._single_step(weights)
        given = (self.input.weight, self.input.bias, sequences, self.backend, need_output)
        states, last = kept_scan(inputs, hidden, kept, state[0], *given, scale=scale)
        return states, (last,)

    def _single_step(self, weights: tuple[Tensor, Tensor, tuple[Tensor, ...]]) -> tuple[Tensor, Tensor, Tensor]:
        """W, k and s of h⁺ = k h + s tanh(W h + U x + b), which one inner step is."""
        hidden, alpha, (step_size,) = weights
        if self.warm_start:
            return 2.0 * hidden.mT, 1.0 - 2.0 * step_size * alpha, step_size
        return hidden.mT, -step_size * alpha, step_size

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`, which knows the map of a single inner step."""
        if len(self.step_sizes) > 1:
            raise UnstatedRecurrenceError(
                f"irnn with {len(self.step_sizes)} inner steps does not state its recurrence; with one it does"
            )
        return [kept_map(self, self._single_step)]

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor, tuple[Tensor, ...]]) -> State:
        hidden, alpha, step_sizes = weights
        g = state[0] if self.warm_start else torch.zeros_like(state[0])
        for step_size in step_sizes:
            total = g + state[0]
            g = g + step_size * (torch.tanh(inputs + total @ hidden) - alpha * total)
        return (g,)
