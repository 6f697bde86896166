"""How many samples the kernels of a GPU run at once: all blocks that find room on its multiprocessors together."""

from __future__ import annotations

from functools import lru_cache

import torch

from lipschitz_rnn.ops.common.cuda.driver import clusters_beside
from lipschitz_rnn.ops.common.triton.device import multiprocessors
from lipschitz_rnn.ops.common.triton.launching import divide_up
from lipschitz_rnn.ops.lipschitz.cuda.plan import CudaPlan, Kernel, plan_on
from lipschitz_rnn.ops.lipschitz.parallel.plan import ROWS_OF_A_BLOCK
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.triton.backend import problem_precision
from lipschitz_rnn.ops.lipschitz.triton.plan import LaunchPlan
from lipschitz_rnn.ops.lipschitz.triton.plan import _plan as triton_plan


def rows_at_once(problem: Problem) -> int:
    """Samples of all networks of a lifted problem that the forward kernel runs beside each other."""
    networks, _, _, units = problem.shape
    kind = (problem.A.dtype, problem.A.device, len(problem.scheme.tableau), problem_precision(problem))
    return _rows_at_once(networks, units, *kind)


@lru_cache(maxsize=1024)
def _rows_at_once(
    networks: int, units: int, dtype: torch.dtype, device: torch.device, stages: int, precision: str
) -> int:
    processors = multiprocessors(device)
    # Which kernel runs depends on the batch: ask for the one of a batch that fills the GPU.
    shape = (networks, divide_up(ROWS_OF_A_BLOCK * processors, networks), units)
    plan = plan_on(device, shape, precision, Kernel(stages, dtype.itemsize))
    if isinstance(plan, CudaPlan):
        return rows_of_cuda(plan, processors if plan.cluster == 1 else clusters_beside(device, plan.cluster))
    return rows_of_triton(triton_plan(shape, dtype, stages, precision, device), processors)


def rows_of_cuda(plan: CudaPlan, groups: int) -> int:
    """With ``groups`` clusters, or blocks alone, beside each other."""
    return plan.samples * plan.least_blocks * groups


def rows_of_triton(plan: LaunchPlan, processors: int) -> int:
    return plan.batch * max(1, processors // plan.groups)
