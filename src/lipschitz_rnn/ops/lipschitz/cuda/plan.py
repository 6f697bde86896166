"""Whether the matrices of a problem fit into registers, and how many multiprocessors and warps share them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import torch

from lipschitz_rnn.ops.common.cuda import compiler, driver
from lipschitz_rnn.ops.common.triton.device import shared_memory
from lipschitz_rnn.ops.common.triton.launching import divide_up
from lipschitz_rnn.ops.lipschitz.problem import Problem

LEAST_CAPABILITY = (8, 0)
CLUSTER_CAPABILITY = (9, 0)
CLUSTER_NVRTC = (12, 1)  # the first whose PTX, 8.1, has st.async, by which the blocks of a cluster exchange states
MOST_UNITS = 768  # the rows of more do not fit into a warp's registers; with several parts each counts
BLOCK_UNITS, FULL_BLOCK_UNITS = 128, 192  # of a block alone: at its best up to, and at most with one part
# Blocks of a cluster, its samples, the time of a step where a multiprocessor has one such block, and what each further
# one adds; relative to the first, measured on an H200 at N = 256, or beside each other at the sizes that need them.
CLUSTERS = (
    (4, 8, 1.0, 0.45),
    (2, 16, 2.0, 1.0),
    (8, 8, 1.1, 0.5),
    (8, 16, 1.35, 0.6),
    (12, 16, 1.6, 0.7),
    (12, 24, 2.5, 1.0),
    (16, 8, 1.2, 0.5),
    (16, 16, 1.7, 0.7),
)
BARRIER_BYTES = 128
REGISTERS = 65536  # of a multiprocessor
ClusterCount = Callable[[int], int]
_PARTS = {"bf16": 1, "fp16": 1, "tf32": 2, "bf16x3": 2, "bf16x6": 3}

logger = logging.getLogger("lipschitz_rnn")


class Kernel(NamedTuple):
    """What else decides how much shared memory a block takes: stages of the integrator, bytes of a number."""

    stages: int
    item: int


@dataclass(frozen=True)
class CudaPlan:
    """``cluster`` blocks of ``warps`` warps hold both matrices of a network for ``samples`` samples."""

    precision: str  # of the operand: bf16, fp16, bf16x3 or bf16x6
    cluster: int
    warps: int
    depth: int  # units that a product adds up, in whole pairs of tiles; a block or cluster may have rows for more
    samples: int = 8
    height: int = 1  # tiles of 16 units that a warp of a block alone has
    far: int = 8  # steps by which memory is fetched ahead

    @property
    def padded(self) -> int:
        return (8 * self.cluster if self.cluster > 1 else 16 * self.height) * self.warps

    @property
    def parts(self) -> int:
        return _PARTS[self.precision]

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @cached_property
    def registers(self) -> int:
        """Of a thread, about: the matrices', and what a step needs."""
        numbers = self.parts * self.depth
        matrices, rest = (numbers // 4, 64) if self.cluster > 1 else (numbers * self.height // 2, 72)
        return min(255, matrices + rest + 16 * (self.parts - 1))

    @cached_property
    def least_blocks(self) -> int:
        """Of a multiprocessor at once."""
        most = 4 if self.cluster > 1 else 8
        return max(1, min(most, REGISTERS // (self.threads * self.registers)))

    def fits(self, room: int, kernel: Kernel) -> bool:
        """Whether a multiprocessor has the registers, and ``room`` bytes of shared memory are enough."""
        most = MOST_UNITS if self.cluster > 1 else FULL_BLOCK_UNITS if self.parts == 1 else 3 * BLOCK_UNITS
        registers = self.parts * self.depth <= most and self.threads * self.registers <= REGISTERS
        return registers and self.threads <= 512 and self.shared_bytes("backward", kernel) <= room

    def shared_bytes(self, name: str, kernel: Kernel) -> int:
        """Of the kernel ``forward`` or ``backward``."""
        if name == "forward":  # two buffers for a state, in rows that are 16 bytes longer
            return BARRIER_BYTES + 2 * self.parts * self.samples * (2 * self.padded + 16) + self._rings(1, kernel.item)
        buffers = 2 * self.parts * self.samples * (4 * self.padded + 16)  # the same for κ and d
        exchanged = 2 * self.threads * self.samples if self.cluster > 1 else 0  # by two warps of a cluster
        return BARRIER_BYTES + buffers + exchanged + self._rings(kernel.stages + 1, kernel.item)

    def _rings(self, tensors: int, item: int) -> int:
        """Where what later steps read waits: ``tensors`` of units, inputs, and lengths of steps."""
        return 0 if self.cluster > 1 else self.far * self.threads * (4 * self.height * item * tensors + 2 * item + 8)


def make_plan(problem: Problem, precision: str) -> CudaPlan | str:
    """A plan, or why there is none."""
    if problem.noise is not None:
        return "noise on the state is not in its kernels"
    S, _, B, N = problem.shape
    kernel = Kernel(len(problem.scheme.tableau), problem.A.element_size())
    return plan_on(problem.A.device, (S, B, N), precision, kernel)


@lru_cache(maxsize=1024)
def plan_on(device: torch.device, shape: tuple[int, int, int], precision: str, kernel: Kernel) -> CudaPlan | str:
    """The same for (S, B, N) on a device; the log tells why there is none, once."""
    found = _plan_on(device, shape, precision, kernel)
    if isinstance(found, str):
        logger.debug("no CUDA kernels for S, B, N = %d, %d, %d: %s", *shape, found)
    return found


def _plan_on(device: torch.device, shape: tuple[int, int, int], precision: str, kernel: Kernel) -> CudaPlan | str:
    if device.type != "cuda":
        return f"the tensors are on {device}"
    nvrtc = compiler.library()
    if nvrtc is None:
        return "NVRTC is not installed"
    capability = torch.cuda.get_device_capability(device)
    if capability >= LEAST_CAPABILITY and (lacking := driver.obstacle(device)) is not None:
        return lacking
    beside, room = partial(driver.clusters_beside, device), shared_memory(device)
    return find_plan(shape, precision, kernel, capability, beside, room, compiler.version(nvrtc))


def find_plan(
    shape: tuple[int, int, int],
    precision: str,
    kernel: Kernel,
    capability: tuple[int, int],
    beside: ClusterCount,
    room: int,
    nvrtc: tuple[int, int] = CLUSTER_NVRTC,
) -> CudaPlan | str:
    """The same for a GPU of which only these facts are known.

    Args:
        beside: how many clusters of a size run at once, with one block on a multiprocessor.
        room: bytes of shared memory that a block can have.
        nvrtc: the version of the compiler.
    """
    S, B, N = shape
    if capability < LEAST_CAPABILITY:
        return f"the kernels need compute capability 8.0, and the GPU has {capability[0]}.{capability[1]}"
    operand = "bf16x3" if precision == "tf32" else precision
    block = block_plan(N, operand, kernel, room)
    has_clusters = capability >= CLUSTER_CAPABILITY and nvrtc >= CLUSTER_NVRTC
    if block is not None and (N <= BLOCK_UNITS or not has_clusters or S * divide_up(B, 8) > beside(4)):
        return block
    cluster = best_cluster(shape, operand, kernel, beside, room) if has_clusters else None
    plan = block if cluster is None else cluster
    if plan is not None:
        return plan
    need = f"a hidden size of {N} in precision {precision} needs"
    if capability < CLUSTER_CAPABILITY:
        return f"{need} clusters, from compute capability 9.0 on"
    if not has_clusters:
        return f"{need} clusters, which NVRTC compiles from 12.1 on, and this one is {nvrtc[0]}.{nvrtc[1]}"
    sizes = sorted({plan.cluster for plan, *_ in _clusters(N, operand, kernel, room)})
    if sizes:
        blocks = " or ".join(map(str, sizes))
        return f"{need} clusters of {blocks} blocks, and the driver runs none of them on this GPU"
    return f"matrices of hidden size {N} in precision {precision} do not fit into the registers of a cluster"


def block_plan(N: int, precision: str, kernel: Kernel, room: int) -> CudaPlan | None:
    """A block alone, if it can hold all; fewer steps are fetched ahead where shared memory is short."""
    # Two tiles a warp read the state half as often, but are twice as long on their way.
    height = 2 if _PARTS[precision] == 1 and 64 < N <= BLOCK_UNITS else 1
    warps = divide_up(N, 32) * (2 // height)
    plans = (CudaPlan(precision, 1, warps, _depth(N), height=height, far=far) for far in (8, 4))
    return next((plan for plan in plans if plan.fits(room, kernel)), None)


def best_cluster(
    shape: tuple[int, int, int], precision: str, kernel: Kernel, beside: ClusterCount, room: int
) -> CudaPlan | None:
    """The cluster for (S, B, N) that should take the least time."""
    S, B, N = shape
    best, least = None, math.inf
    for plan, alone, further in _clusters(N, precision, kernel, room):
        at_once = beside(plan.cluster)
        if at_once == 0:
            continue
        waves, rest = divmod(S * divide_up(B, plan.samples), at_once * plan.least_blocks)
        time = waves * (alone + (plan.least_blocks - 1) * further)
        if rest:
            time += alone + (divide_up(rest, at_once) - 1) * further
        if time < least:
            best, least = plan, time
    return best


def _clusters(N: int, precision: str, kernel: Kernel, room: int) -> Iterator[tuple[CudaPlan, float, float]]:
    """Those that hold all, with both times of ``CLUSTERS``, whether or not the GPU runs clusters of that size."""
    depth = _depth(N)
    for cluster, samples, alone, further in CLUSTERS:
        plan = CudaPlan(precision, cluster, 2 * divide_up(depth, 16 * cluster), depth, samples)
        if plan.fits(room, kernel):
            yield plan, alone, further


def _depth(N: int) -> int:
    return 32 * divide_up(N, 32)
