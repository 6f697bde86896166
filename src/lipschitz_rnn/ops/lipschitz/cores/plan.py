"""How a problem is laid out for the kernels, and how its batch is shared among cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.noise import ADDITIVE, MULTIPLICATIVE, strength
from lipschitz_rnn.ops.lipschitz.cores import arguments, machine
from lipschitz_rnn.ops.lipschitz.cores.sizes import NONLINEARITIES
from lipschitz_rnn.ops.lipschitz.cores.threads import share
from lipschitz_rnn.ops.lipschitz.problem import Problem

GROUPS = 32  # sums of gradients that are kept apart; their number does not depend on the threads, so neither do bits
DEPTH = 128  # rows of κ and d that enter the gradients of the matrices together
WORTH_A_THREAD = 2**21  # multiplications; less is done before another core has woken up
ALIGNMENT = 64  # bytes, a line of the cache


class Plan:
    """A problem with what both kernels are told of it.

    Attributes:
        padded: N in whole vectors.
        rows: samples that walk together. More of them read the matrices from the cache less often, fewer make more
            tasks for more cores; neither changes a bit of the states.
        group_rows: samples whose gradients of the matrices are one sum.
        chunk: steps whose κ and d stay in the cache until they enter those gradients.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kernels = machine.kernels(problem.A.element_size())
        _, T, B, N = problem.shape
        self.stages = len(problem.scheme.tableau)
        self.features = 0 if problem.input_weight is None else problem.drive.shape[-1]
        self.padded = -(-N // self.kernels.lanes) * self.kernels.lanes
        self.rows = min(B, 8 if B <= 16 else 32 if N > 256 and B >= 128 else 16)
        self.group_rows = -(-B // (self.rows * GROUPS)) * self.rows
        self.groups = -(-B // self.group_rows)
        self.chunk = min(T, max(1, DEPTH // self.rows))
        self.sizes = {
            "steps": T,
            "units": N,
            "padded": self.padded,
            "features": self.features,
            "stages": self.stages,
            "nonlinearity": NONLINEARITIES.index(problem.scheme.nonlinearity),
            "chunk": self.chunk,
            "chunks": -(-T // self.chunk),
        }
        self.arrays: dict[str, Tensor | None] = {
            "table": self._table(),
            "drive": rowwise(problem.drive),
            "start": rowwise(problem.h0),
            "timespans": problem.timespans,
        }

    def noise_arrays(self) -> dict[str, Tensor | None]:
        """Seed, indices and strengths of the noise on the state, if there is any."""
        noise, scheme = self.problem.noise, self.problem.scheme
        if noise is None or not self.problem.noisy:
            return {}
        S, T, B, _ = self.problem.shape
        times = scheme.step_size if self.problem.timespans is None else self.problem.timespans
        a, m = (strength(noise, column, times)[..., 0].expand(S, T, B) for column in (ADDITIVE, MULTIPLICATIVE))
        seed, sample, step = noise[:, :ADDITIVE].detach().to(torch.int64).unbind(1)
        words = torch.stack((seed & 0xFFFFFFFF, seed >> 32, sample, step), dim=1)
        return {"noise_words": words.view(self.problem.A.dtype), "additive": a, "multiplicative": m}

    def _table(self) -> Tensor:
        """ε, then the coefficients of every stage, then the weights."""
        scheme = self.problem.scheme
        rows = (*scheme.tableau.stages, scheme.tableau.weights)
        filled = (value for row in rows for value in (*row, *[0.0] * (self.stages - len(row))))
        return torch.tensor([scheme.step_size, *filled], dtype=self.problem.A.dtype, device="cpu")

    def panels(self, *parts: tuple[Tensor, float]) -> Tensor:
        """The transposes of matrices (S, n, K), each times a number, side by side and packed: (S, panels, K, 2 lanes).

        Each part begins at a whole vector; what fills up the last one is zero.
        """
        width = 2 * self.kernels.lanes
        first, _ = parts[0]
        S, n, K = first.shape
        pitch = -(-n // self.kernels.lanes) * self.kernels.lanes
        height = -(-pitch * len(parts) // width) * width
        full = first.new_empty if n * len(parts) == height else first.new_zeros
        stacked = full((S, height, K))
        for i, (matrix, factor) in enumerate(parts):
            torch.mul(matrix, factor, out=stacked[:, i * pitch : i * pitch + n])
        return stacked.view(S, height // width, width, K).transpose(2, 3).contiguous()

    def run(self, kernel: Callable[..., None], scratch: int, work: int) -> None:
        """Shares the batch among threads; ``work`` is how many products with one matrix a stage takes."""
        S, T, B, N = self.problem.shape
        dtype, rows, group_rows = self.problem.A.dtype, self.rows, self.group_rows
        table = arguments.filled(self.sizes, self.arrays)
        tasks = ((s, group) for s in range(S) for group in range(self.groups))
        useful = 1 + work * self.stages * S * T * B * N * N // WORTH_A_THREAD
        threads = min(torch.get_num_threads(), S * self.groups, useful)

        def worker(queue: Iterator[tuple[int, int]]) -> None:
            memory = torch.empty(scratch + ALIGNMENT, dtype=dtype, device="cpu")
            address = -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
            for s, group in queue:
                end = min(B, (group + 1) * group_rows)
                for first in range(group * group_rows, end, rows):
                    kernel(table, address, s, group, first, min(rows, end - first))

        share(tasks, threads, worker)


def rowwise(tensor: Any) -> Any:
    """With its last axis in order and without gaps, as the kernels read it; the other axes as they are."""
    return tensor if tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
