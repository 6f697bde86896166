"""Which kernel runs a problem, and with which block sizes: as much stays on chip as the GPU has room for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from lipschitz_rnn.ops.common.triton.device import multiprocessors, shared_memory
from lipschitz_rnn.ops.common.triton.launching import divide_up, power_of_two
from lipschitz_rnn.ops.common.triton.products import parts_of
from lipschitz_rnn.ops.common.triton.support import interpreting
from lipschitz_rnn.ops.lipschitz.problem import Problem

RESIDENT_UNITS = 128  # up to this hidden size one program holds both matrices


@dataclass(frozen=True)
class LaunchPlan:
    """Blocks of a launch. ``groups`` programs share one tile of the batch; with one group nothing is shared."""

    precision: str
    padded: int
    batch: int
    groups: int = 1
    rows: int = 0
    inner: int = 0
    on_chip: bool = True
    in_registers: bool = False
    pipeline: int = 3  # how far Triton loads ahead, into shared memory

    @property
    def resident(self) -> bool:
        """Whether one program has everything on chip."""
        return self.groups == 1 and self.rows == 0

    @property
    def resident_blocks(self) -> tuple[int, int, bool]:
        """BLOCK_N, BLOCK_B and IN_REGISTERS of the resident kernels."""
        return self.padded, self.batch, self.in_registers

    @property
    def shared_blocks(self) -> tuple[bool, int, int, int, int]:
        """RESIDENT, PADDED, BLOCK_R, BLOCK_K and BLOCK_B of the cooperative kernels."""
        return self.on_chip, self.padded, self.rows, self.inner, self.batch

    @cached_property
    def parts(self) -> int:
        """How many matrices of the operand's precision add up to one."""
        return int(parts_of(self.precision))

    @cached_property
    def options(self) -> dict[str, int]:
        """Triton's own."""
        large = self.padded >= RESIDENT_UNITS if self.resident else self.rows >= 64
        return {"num_warps": 8 if large else 4, "num_stages": self.pipeline}


def make_plan(problem: Problem, precision: str) -> LaunchPlan:
    S, _, B, N = problem.shape
    return _plan((S, B, N), problem.A.dtype, len(problem.scheme.tableau), precision, problem.A.device)


@lru_cache(maxsize=1024)  # asked for twice in every training step, which Python would notice
def _plan(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    stages: int,
    precision: str,
    device: torch.device,
) -> LaunchPlan:
    """The plan for (S, B, N)."""
    S, B, N = shape
    room, processors = shared_memory(device), multiprocessors(device)
    block = max(16, power_of_two(N))
    if block <= RESIDENT_UNITS:
        # Eight samples at a time are quicker through a step than sixteen, as long as all programs run at once.
        few = S * divide_up(B, 8) <= processors
        plan = _resident_plan(precision, block, stages, few, room)
        if plan is not None:
            return plan
    return _shared_plan(N, dtype, precision, block, room)


def _resident_plan(precision: str, block: int, stages: int, few: bool, room: int) -> LaunchPlan | None:
    """One program for each tile of the batch, if both matrices find room on a multiprocessor."""
    matrices = 2 * block * block * 2 * parts_of(precision)  # bytes
    passing = 128 * block  # what goes through shared memory from thread to thread, for eight samples
    if matrices + passing > room:
        return None
    crowded = matrices + (stages + 1) * passing > room
    batch = 8 if few or crowded else 16
    # For eight columns Triton takes the tensor cores' older instructions, whose left operand may stay in registers. On
    # its way there it meets a matrix of half its size in shared memory.
    in_registers = batch == 8 and block >= 64 and precision in ("bf16", "fp16") and 1.5 * matrices <= room
    return LaunchPlan(precision, block, batch, pipeline=1 if crowded else 3, in_registers=in_registers)


def _shared_plan(N: int, dtype: torch.dtype, precision: str, block: int, room: int) -> LaunchPlan:
    """Several programs for each tile, with some rows of both matrices each, on chip or read again in every step."""
    batch, rows = (16, 64) if block <= 512 else (32, 32)
    state = block * batch * (4 if dtype == torch.float32 else 2)  # bytes that a program reads in every stage
    on_chip = precision in ("bf16", "fp16") and 2 * rows * block * 2 + state <= room
    inner = block if on_chip else 64
    if not on_chip:
        rows = 64 if room >= 110 * 1024 else 32  # three parts of 64 rows come through 104 KB
    padded = divide_up(N, inner) * inner
    if interpreting():
        rows = block  # programs run one after another there, so none can wait for another
        padded = max(padded, block)
    return LaunchPlan(precision, padded, batch, divide_up(N, rows), rows, inner, on_chip)
