"""Whether clusters serve a problem, and how many multiprocessors and warps share its matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from lipschitz_rnn.ops.common.cuda import compiler
from lipschitz_rnn.ops.common.triton.device import multiprocessors, shared_memory
from lipschitz_rnn.ops.common.triton.launching import divide_up
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.triton.plan import RESIDENT_UNITS

UNITS = 8  # of one warp
MOST_UNITS = 768  # more do not fit into the registers of a cluster; with several parts each counts
# Blocks of a cluster, its samples, the time of a step where a multiprocessor has one such block, and what each further
# one adds; relative to the first, measured on an H200 at N = 256.
SHAPES = (
    (4, 8, 1.0, 0.7),
    (2, 16, 2.5, 1.0),
    (8, 8, 1.1, 0.5),
    (8, 16, 1.7, 0.7),
    (16, 8, 1.2, 0.5),
    (16, 16, 2.0, 0.8),
)
BARRIER_BYTES = 128
REGISTERS = 65536  # of a multiprocessor
_PARTS = {"bf16": 1, "fp16": 1, "tf32": 2, "bf16x3": 2, "bf16x6": 3}


@dataclass(frozen=True)
class ClusterPlan:
    """``cluster`` blocks of ``warps`` warps hold both matrices of a network for ``samples`` samples."""

    precision: str  # of the operand: bf16, fp16, bf16x3 or bf16x6
    cluster: int
    warps: int
    samples: int = 16

    @property
    def padded(self) -> int:
        return UNITS * self.cluster * self.warps

    @property
    def parts(self) -> int:
        return _PARTS[self.precision]

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @cached_property
    def registers(self) -> int:
        """Of a thread, about: the matrices', and what a step needs."""
        return min(255, self.parts * self.padded // 4 + 64 + 16 * (self.parts - 1))

    @cached_property
    def least_blocks(self) -> int:
        """Of a multiprocessor at once."""
        return max(1, min(4, REGISTERS // (self.threads * self.registers)))

    def fits(self, room: int) -> bool:
        """Whether a multiprocessor has the registers, and ``room`` bytes of shared memory are enough."""
        registers = self.parts * self.padded <= MOST_UNITS and self.threads * self.registers <= REGISTERS
        return registers and self.threads <= 512 and self.backward_bytes <= room

    @property
    def forward_bytes(self) -> int:
        """Of shared memory: two buffers for a state, in rows that are 16 bytes longer."""
        return BARRIER_BYTES + 2 * self.parts * self.samples * (2 * self.padded + 16)

    @property
    def backward_bytes(self) -> int:
        """The same for κ and d, and what two warps exchange."""
        buffers = 2 * self.parts * self.samples * (4 * self.padded + 16)
        return BARRIER_BYTES + buffers + 2 * self.threads * self.samples


def make_plan(problem: Problem, precision: str) -> ClusterPlan | str:
    """A plan, or why there is none."""
    if problem.noise is not None:
        return "noise on the state is not in its kernels"
    S, _, B, N = problem.shape
    return _plan((S, B, N), precision, problem.A.device)


@lru_cache(maxsize=1024)
def _plan(shape: tuple[int, int, int], precision: str, device: torch.device) -> ClusterPlan | str:
    N = shape[-1]
    if device.type != "cuda":
        return f"the tensors are on {device}"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (9, 0):
        return f"clusters need compute capability 9.0, and {device} has {major}.{minor}"
    if compiler.library() is None:
        return "NVRTC is not installed"
    plan = best_shape(shape, precision, multiprocessors(device), shared_memory(device))
    if plan is None:
        return (
            f"matrices of hidden size {N} in precision {precision} do not fit into the registers of 16 multiprocessors"
        )
    if N <= RESIDENT_UNITS:
        return _better_alone(plan, shape, multiprocessors(device)) or plan
    return plan


def best_shape(
    shape: tuple[int, int, int], precision: str, processors: int, room: int, largest: int = 16
) -> ClusterPlan | None:
    """The plan for (S, B, N) that should take the least time."""
    S, B, N = shape
    operand = "bf16x3" if precision == "tf32" else precision
    best, least = None, math.inf
    for cluster, samples, alone, further in SHAPES:
        plan = ClusterPlan(operand, cluster, 2 * divide_up(N, 2 * UNITS * cluster), samples)
        if cluster > largest or not plan.fits(room):
            continue
        beside = clusters_beside(cluster, processors)
        waves, rest = divmod(S * divide_up(B, samples), beside * plan.least_blocks)
        time = waves * (alone + (plan.least_blocks - 1) * further)
        if rest:
            time += alone + (divide_up(rest, beside) - 1) * further
        if time < least:
            best, least = plan, time
    return best


def clusters_beside(cluster: int, processors: int) -> int:
    """How many clusters run at once, with one block on a multiprocessor.

    They do not cross the borders of a GPU's own groups of multiprocessors, so large ones leave a few of those idle.
    """
    return max(1, processors // cluster if cluster <= 2 else processors * 15 // 16 // cluster)


def _better_alone(plan: ClusterPlan, shape: tuple[int, int, int], processors: int) -> str | None:
    """Up to RESIDENT_UNITS one multiprocessor is faster, unless several parts have to be multiplied and all is free."""
    S, B, N = shape
    if plan.parts > 1 and N > RESIDENT_UNITS // 2 and S * divide_up(B, 8) <= clusters_beside(4, processors):
        return None
    return f"a hidden size of {N} is faster on single multiprocessors"
