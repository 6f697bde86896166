"""Plans for GPUs that are not there."""

from __future__ import annotations

from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel, find_plan

KB = 1024
PRECISIONS = ("bf16", "fp16", "tf32", "bf16x3", "bf16x6")
# Compute capability: kilobytes of shared memory for one block.
GPUS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
EULER = Kernel(1, 2)

# How many clusters run at once, as the driver of one H200 reports it, with one block on a multiprocessor.
_AT_ONCE = {2: 66, 4: 30, 8: 15, 12: 7, 16: 7}


def h200_clusters(blocks: int) -> int:
    return _AT_ONCE[blocks]


def plan_for(capability: int, S: int, B: int, N: int, precision: str, kernel: Kernel = EULER) -> CudaPlan | str:
    return find_plan((S, B, N), precision, kernel, divmod(capability, 10), h200_clusters, GPUS[capability] * KB)
