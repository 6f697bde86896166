"""What the kernels of the Lipschitz scan can serve; cheap to ask, and without importing Triton."""

from __future__ import annotations

import torch

from lipschitz_rnn.ops.common.tracing import tracked
from lipschitz_rnn.ops.common.triton.support import LEAST_ROWS, gpu_limits, interpreting, triton_installed
from lipschitz_rnn.ops.lipschitz.problem import Problem

MAX_UNITS = 4096


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def obstacle(problem: Problem) -> str | None:
    """Why the kernels cannot serve this problem, or None if they can."""
    dtype, device = problem.A.dtype, problem.A.device
    if dtype not in DTYPES:
        return f"it has no kernels for {dtype}"
    if not triton_installed():
        return "Triton is not installed (pip install triton)"
    if device.type != "cuda" and not (device.type == "cpu" and interpreting()):
        return f"the tensors are on {device}, and it needs a CUDA device"
    if device.type == "cuda":
        lacking, most_units = gpu_limits(device)
        if lacking:
            return lacking
        if problem.A.shape[-1] > most_units:
            return f"the hidden size is {problem.A.shape[-1]}, and on {device} its kernels go up to {most_units}"
    tableau = problem.scheme.tableau
    if not tableau.chained:
        return f"in its kernels a stage uses only the previous one, unlike in integrator {tableau.name!r}"
    if problem.timespans is not None and tracked(problem.timespans):
        return "it has no gradient with respect to the step sizes"
    if problem.A.shape[-1] > MAX_UNITS:
        return f"the hidden size is {problem.A.shape[-1]}, and its kernels go up to {MAX_UNITS}"
    steps = problem.drive.shape[-3]
    if steps * len(tableau) * (problem.A.shape[-1] // LEAST_ROWS + 1) >= 2**31:
        return f"the sequence has {steps} steps, more than its programs can count for each other"
    return None
