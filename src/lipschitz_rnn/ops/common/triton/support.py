"""Whether Triton and the GPU can run the kernels; cheap to ask, and without importing Triton."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch

LEAST_ROWS = 32  # of the units that one of several programs has


def interpreting() -> bool:
    """Whether Triton runs its kernels in Python on the CPU, as the tests do on machines without a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@cache
def triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def gpu_limits(device: torch.device) -> tuple[str | None, int]:
    """What a GPU lacks, if anything: the kernels use NVIDIA's tensor cores. And the most hidden units: programs of
    at least LEAST_ROWS of them wait for each other, so all must run at once."""
    if torch.version.hip is not None:
        return "its kernels are for NVIDIA GPUs", 0
    found = torch.cuda.get_device_properties(device)
    if (found.major, found.minor) < (8, 0):
        return f"its kernels need compute capability 8.0, and {found.name} has {found.major}.{found.minor}", 0
    return None, LEAST_ROWS * found.multi_processor_count
