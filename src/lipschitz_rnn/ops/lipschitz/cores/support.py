"""What the kernels serve; cheap to ask, and without importing llvmlite."""

from __future__ import annotations

import torch

from lipschitz_rnn.ops.common.noise import ADDITIVE, MULTIPLICATIVE
from lipschitz_rnn.ops.lipschitz.cores import machine
from lipschitz_rnn.ops.lipschitz.problem import Problem

MOST_UNITS = 1024  # beyond, the matrices leave even the shared cache, and PyTorch's own products are faster
FEW_STEPS = 8  # of one sequence, which are over before its matrices are packed

DTYPES = (torch.float32, torch.float64)


def obstacle(problem: Problem) -> str | None:
    """Why PyTorch's operations run this problem instead, or None if the kernels do."""
    if problem.A.dtype not in DTYPES:
        return f"they are not compiled for {problem.A.dtype}"
    if problem.noise is not None and bool(problem.noise[..., [ADDITIVE, MULTIPLICATIVE]].any()):
        return "they have no noise on the state"
    N = problem.A.shape[-1]
    if not 0 < N <= MOST_UNITS:
        return f"the hidden size is {N}, and they go up to {MOST_UNITS}"
    if 0 in problem.drive.shape:
        return "there is nothing to scan"
    return machine.obstacle()


def serves(problem: Problem) -> bool:
    return obstacle(problem) is None


def serves_forward(problem: Problem) -> bool:
    """Also without a few steps of one sequence, which NumPy's calls finish sooner."""
    S, T, B, _ = problem.shape
    return (S * B > 1 or T > FEW_STEPS) and serves(problem)


def describe(problem: Problem) -> str:
    """What runs on a CPU, and why, in words."""
    reason = obstacle(problem)
    return "compiled kernels" if reason is None else f"PyTorch's operations: no compiled kernels, {reason}"
