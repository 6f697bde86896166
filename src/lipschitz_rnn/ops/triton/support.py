"""What the fused kernels can serve; cheap to ask, and without importing Triton."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch

from lipschitz_rnn.ops.problem import Problem, tracked

MAX_UNITS = 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def interpreting() -> bool:
    """Whether Triton runs its kernels in Python on the CPU, as the tests do on machines without a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@cache
def triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


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
        return f"its kernels build each stage on the one before alone, and integrator {tableau.name!r} does not"
    if problem.timespans is not None and tracked(problem.timespans):
        return "it has no gradient with respect to the step sizes"
    if problem.A.shape[-1] > MAX_UNITS:
        return f"the hidden size is {problem.A.shape[-1]}, and its kernels go up to {MAX_UNITS}"
    return None


@cache
def gpu_limits(device: torch.device) -> tuple[str | None, int]:
    """What a GPU lacks, if anything: the kernels speak to NVIDIA's tensor cores. And the most hidden units: programs of
    at least 32 of them wait for each other, so all must run at once."""
    if torch.version.hip is not None:
        return "its kernels are for NVIDIA GPUs", 0
    found = torch.cuda.get_device_properties(device)
    if (found.major, found.minor) < (8, 0):
        return f"its kernels need compute capability 8.0, and {found.name} has {found.major}.{found.minor}", 0
    return None, 32 * found.multi_processor_count
