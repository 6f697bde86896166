"""How problems of one size are laid out for the kernels, and how their batch is shared among cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lipschitz_rnn.ops.lipschitz.cores import arguments, machine
from lipschitz_rnn.ops.lipschitz.cores.sizes import NONLINEARITIES
from lipschitz_rnn.ops.lipschitz.cores.threads import share
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

GROUPS = 32  # sums of gradients that are kept apart; their number does not depend on the threads, so neither do bits
DEPTH = 128  # rows of κ and d that enter the gradients of the matrices together
WORTH_A_THREAD = 2**21  # multiplications; less is done before another core has woken up
ALIGNMENT = 64  # bytes, a line of the cache


class Layout:
    """What both kernels are told of all problems of these sizes.

    Attributes:
        padded: N in whole vectors.
        rows: samples that walk together. More of them read the matrices from the cache less often, fewer make more
            tasks for more cores; neither changes a bit of the states.
        group_rows: samples whose gradients of the matrices are one sum.
        chunk: steps whose κ and d stay in the cache until they enter those gradients.
        table: ε, then the coefficients of every stage, then the weights.
    """

    def __init__(
        self,
        kernels: machine.Kernels,
        shape: tuple[int, int, int, int],
        features: int,
        dtype: torch.dtype,
        scheme: Scheme,
    ) -> None:
        _, T, B, N = self.shape = shape
        self.kernels, self.features, self.dtype = kernels, features, dtype
        self.stages = len(scheme.tableau)
        self.padded = -(-N // kernels.lanes) * kernels.lanes
        self.rows = min(B, 8 if B <= 16 else 32 if N > 256 and B >= 128 else 16)
        self.group_rows = -(-B // (self.rows * GROUPS)) * self.rows
        self.groups = -(-B // self.group_rows)
        self.chunk = min(T, max(1, DEPTH // self.rows))
        self.sizes = {
            "steps": T,
            "units": N,
            "padded": self.padded,
            "features": features,
            "stages": self.stages,
            "nonlinearity": NONLINEARITIES.index(scheme.nonlinearity),
            "chunk": self.chunk,
            "chunks": -(-T // self.chunk),
        }
        rows = (*scheme.tableau.stages, scheme.tableau.weights)
        filled = (value for row in rows for value in (*row, *[0.0] * (self.stages - len(row))))
        self.table = torch.tensor([scheme.step_size, *filled], dtype=dtype, device="cpu")

    def stacked(self, *parts: tuple[Tensor, float]) -> Tensor:
        """Matrices (S, N, K), each times a number, one below the other, each in as many rows as N has in whole vectors:
        (S, ·, K). What fills those up is zero."""
        S, N, K = parts[0][0].shape
        new = parts[0][0].new_empty if self.padded == N else parts[0][0].new_zeros
        rows = new((S, self.padded * len(parts), K))
        for i, (matrix, factor) in enumerate(parts):
            torch.mul(matrix, factor, out=rows[:, i * self.padded : i * self.padded + N])
        return rows

    def panels(self, matrix: Tensor) -> Tensor:
        """The columns of (S, K, n) in panels of two vectors, (S, panels, K, 2 lanes); zeros fill the last one."""
        width = 2 * self.kernels.lanes
        missing = -matrix.shape[-1] % width
        whole = F.pad(matrix, (0, missing)) if missing else matrix
        return whole.unflatten(-1, (-1, width)).transpose(1, 2).contiguous()

    def bias(self, bias: Tensor | None) -> Tensor:
        """(S, N) in whole vectors, zeros if there is none."""
        S, _, _, N = self.shape
        if bias is None:
            return torch.zeros((S, self.padded), dtype=self.dtype, device="cpu")
        return F.pad(bias, (0, self.padded - N)) if self.padded > N else bias.contiguous()

    def run(
        self,
        kernel: Callable[..., None],
        arrays: Mapping[str, Tensor | None],
        sizes: Mapping[str, int],
        scratch: int,
        work: int,
    ) -> None:
        """Shares the batch among threads; ``work`` is how many products with one matrix a stage takes."""
        S, T, B, N = self.shape
        dtype, rows, group_rows = self.dtype, self.rows, self.group_rows
        arrays = {"table": self.table, **arrays}
        table = arguments.filled({**self.sizes, **sizes}, arrays)
        tasks = ((s, group) for s in range(S) for group in range(self.groups))
        useful = 1 + work * self.stages * S * T * B * N * N // WORTH_A_THREAD
        threads = min(torch.get_num_threads(), S * self.groups, useful)

        # The kernel knows addresses only. What holds the arrays is the worker itself: if an exception such as Ctrl-C
        # takes the caller away, they stay until the last thread is done with them.
        def worker(queue: Iterator[tuple[int, int]], _held: object = arrays) -> None:
            memory = torch.empty(scratch + ALIGNMENT, dtype=dtype, device="cpu")
            address = -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
            for s, group in queue:
                end = min(B, (group + 1) * group_rows)
                for first in range(group * group_rows, end, rows):
                    kernel(table, address, s, group, first, min(rows, end - first))

        share(tasks, threads, worker)


def layout_of(problem: Problem) -> Layout:
    features = 0 if problem.input_weight is None else problem.drive.shape[-1]
    dtype = problem.A.dtype
    return _layout(machine.kernels(dtype.itemsize), problem.shape, features, dtype, problem.scheme)


_layout = lru_cache(maxsize=1024)(Layout)


def rowwise(tensor: Any) -> Any:
    """With its last axis in order and without gaps, as the kernels read it; the other axes as they are."""
    return tensor if tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
