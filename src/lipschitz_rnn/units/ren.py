"""ren: a recurrent equilibrium network, which contracts by construction."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.common.precision import rounds_float32
from lipschitz_rnn.ops.common.validation import require_count, require_number
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.recurrence import FeedbackMap, Statement, repeatable_matrices
from lipschitz_rnn.units.sequences import Sequences

_SIGMA = {"tanh": torch.tanh, "relu": torch.relu}
_EPSILON = 1e-4  # H ≽ εI keeps the inequality strict
# The largest Frobenius norms of X and Y: beside a large H rounding hides εI, in float64 from 1e12 on, and in the
# float32 of A, B and C from 1e6 on. Powers of two, so that what is smaller keeps its bits.
_ROOT_LIMIT, _ROTATION_LIMIT = 2.0**8, 2.0**16


class RENCell(Cell):
    """h⁺ = A h + B σ(v) + U x + b, v = C h + D σ(v) + V x + c, with (A, B, C, D) that contract for all parameters.

    Revay, Wang, Manchester, "Recurrent equilibrium networks: flexible dynamic models with guaranteed stability and
    robustness", IEEE TAC 2023 (arXiv 2021). Any X and Y, scaled down where they exceed what float64 can take, give
    H = XᵀX + εI, in blocks of sizes N, m and N, and with the factor a

        E = ½ (H₁₁ + H₃₃/a² + Y − Yᵀ),  F = H₃₁,  2Λ = diag H₂₂,
        A = E⁻¹ F,  B = E⁻¹ H₃₂,  C = −Λ⁻¹ H₂₁,  D = −Λ⁻¹ lower(H₂₂).

    Then ‖Δh⁺‖ ≤ a ‖Δh‖ in the metric Eᵀ H₃₃⁻¹ E, for all slopes of σ in [0, 1]. `depth` is the number of groups of the
    m = `neurons` neurons: a group reads the ones before it, so a step takes `depth` products one after the other. The
    paper's acyclic network has a group for each neuron; with one group, the default, D = 0. Within a group, the entries
    of H₂₂ are replaced by the sums of their magnitudes on the diagonal, which is larger as a quadratic form. The output
    is the new state, so that a linear head reads the old state, the neurons and the input.

    Initially A is nearly diagonal with time constants from 1 to 1/(1 − a) steps, evenly spread over their logarithms,
    and everything else is small (`init_scale`). Parameters (2N + m)² + N² + (N + m)(p + 1).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        neurons: int | None = None,
        depth: int = 1,
        factor: float = 0.999,
        nonlinearity: str = "tanh",
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.neurons = hidden_size if neurons is None else require_count("neurons", neurons)
        self.depth = require_count("depth", depth)
        if self.depth > self.neurons:
            raise ValueError(f"depth is {depth}; it must be from 1 to neurons = {self.neurons}")
        self.factor = require_number("factor", factor, low=0.0, high=1.0)
        if not 0.0 < self.factor < 1.0:
            raise ValueError(f"factor is {factor!r}; it must be above 0 and below 1")
        if nonlinearity not in _SIGMA:
            raise ValueError(f"nonlinearity is {nonlinearity!r}; choose 'tanh' or 'relu', whose slopes are in [0, 1]")
        self.nonlinearity = nonlinearity
        n, m = hidden_size, self.neurons
        self.root = nn.Parameter(_initial_root(n, m, self.factor, init_scale))
        self.rotation = nn.Parameter(init_scale / math.sqrt(n) * torch.randn(n, n))
        self.input = nn.Linear(input_size, n + m)

    def groups(self) -> list[tuple[int, int]]:
        """First and last neuron (exclusive) of each group."""
        edges = [round(place * self.neurons / self.depth) for place in range(self.depth + 1)]
        return list(itertools.pairwise(edges))

    def equations(self) -> tuple[Tensor, ...]:
        """A, B, C, D, and the metric and multipliers that prove the factor; in float64."""
        n, m = self.hidden_size, self.neurons
        X, Y = _within(self.root.double(), _ROOT_LIMIT), _within(self.rotation.double(), _ROTATION_LIMIT)
        H = X.mT @ X + _EPSILON * torch.eye(2 * n + m, dtype=X.dtype, device=X.device)
        H11, H22, H33 = H[:n, :n], H[n : n + m, n : n + m], H[n + m :, n + m :]
        place = torch.zeros(m, dtype=torch.int64, device=X.device)
        for number, (first, last) in enumerate(self.groups()):
            place[first:last] = number
        together = place[:, None] == place[None]
        doubled = (H22.abs() * together).sum(-1)  # 2Λ
        lower = H22 * (place[:, None] > place[None])
        E = 0.5 * (H11 + H33 / self.factor**2 + Y - Y.mT)
        right = torch.cat([H[n + m :, :n], H[n + m :, n : n + m]], -1)
        A, B = torch.linalg.solve_ex(E, right).result.split([n, m], -1)
        C, D = (-2.0 * part / doubled[:, None] for part in (H[n : n + m, :n], lower))
        metric = E.mT @ torch.linalg.solve_ex(H33, E).result
        return A, B, C, D, metric, 0.5 * doubled

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """(A; C)ᵀ: (N, N + m), Bᵀ: (m, N) and D: (m, m)."""
        A, B, C, D, _, _ = self.equations()
        return (
            torch.cat([A, C]).mT.to(self.root.dtype),
            B.mT.to(self.root.dtype),
            D.to(self.root.dtype),
        )

    def scan(
        self, inputs: Tensor, state: State, weights: Any, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        """All steps with full products: to round A or B, as autocast and TF32 do, would void the factor.

        Where float32 products may be rounded, the steps run in float64; so they do in a compiled program, which cannot
        tell.
        """
        dtype = self.root.dtype
        rounded = torch.compiler.is_compiling() or rounds_float32(inputs.device)
        wide = torch.float64 if rounded and dtype == torch.float32 else dtype
        with without_autocast(inputs.device):
            given = (inputs.to(wide), tuple(part.to(wide) for part in state), tuple(part.to(wide) for part in weights))
            states, last = super().scan(*given, sequences, need_output)
        return None if states is None else states.to(dtype), tuple(part.to(dtype) for part in last)

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor, Tensor]) -> State:
        both, back, through = weights
        sigma = _SIGMA[self.nonlinearity]
        moved, v = (inputs + state[0] @ both).split([self.hidden_size, self.neurons], -1)
        if self.depth == 1:
            return (moved + sigma(v) @ back,)
        found: list[Tensor] = []
        for first, last in self.groups():
            now = v[..., first:last]
            if found:
                now = now + torch.cat(found, -1) @ through[first:last, :first].mT
            found.append(sigma(now))
        return (moved + torch.cat(found, -1) @ back,)

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`, with the metric and the multipliers of the construction."""
        n = self.hidden_size

        def make() -> tuple[Tensor, ...]:
            both, back, through = self.current_weights(self.root.device)
            *_, metric, multiplier = self.equations()
            return both.mT, back.mT, through, metric, multiplier

        both, G, E, metric, multiplier = repeatable_matrices(make, type(self).__name__)
        feedthrough = None if self.depth == 1 else E
        precision = str(both.dtype).removeprefix("torch.")
        hint = (metric, multiplier)
        return [FeedbackMap(both[:n], G, both[n:], feedthrough, self.nonlinearity, precision=precision, hint=hint)]

    def extra_repr(self) -> str:
        text = f"neurons={self.neurons}, factor={self.factor}, nonlinearity={self.nonlinearity!r}"
        return text if self.depth == 1 else f"{text}, depth={self.depth}"


def _within(matrix: Tensor, limit: float) -> Tensor:
    """The matrix, scaled down to Frobenius norm ``limit`` if it exceeds that, otherwise the same bits."""
    top = matrix.detach().abs().amax().clamp_min(limit)  # so that no square overflows
    part = matrix / top
    return part * limit * torch.maximum(part.square().sum(), (limit / top).square()).rsqrt()


def _initial_root(n: int, m: int, factor: float, scale: float) -> Tensor:
    """X with H₁₁ = H₂₂ = H₃₃ = I and H₃₁ diagonal, up to noise of size `scale`."""
    longest = 1.0 / (1.0 - factor)
    times = torch.exp(torch.linspace(0.0, math.log(max(longest, 1.0 + 1e-6)), n))
    kept = torch.exp(-1.0 / times)
    root = torch.zeros(2 * n + m, 2 * n + m)
    root[:n, n + m :] = torch.eye(n)
    root[:n, :n] = torch.diag(kept)
    root[n : 2 * n, :n] = torch.diag(torch.sqrt(1.0 - kept**2))
    root[2 * n :, n : n + m] = torch.eye(m)
    return root + scale / math.sqrt(2 * n + m) * torch.randn(2 * n + m, 2 * n + m)
