"""What the kernels serve; cheap to ask, and without importing llvmlite."""

from __future__ import annotations

import torch

from lipschitz_rnn.ops.lipschitz.cores import machine
from lipschitz_rnn.ops.lipschitz.problem import Problem

# By the bytes of a register. Beyond, the matrices leave a core's own cache, and PyTorch's products are as fast;
# measured at N = 512, 750 and 1,024.
MOST_UNITS = {32: 512, 64: 768}
# Beyond, the sums for the gradient of U, one for each group of samples, take longer than all else.
MOST_FEATURES = 8192
FEW_STEPS = 8  # of one sequence, which are over before its matrices are packed

DTYPES = (torch.float32, torch.float64)


def obstacle(problem: Problem) -> str | None:
    """Why PyTorch's operations run this problem instead, or None if the kernels do."""
    if problem.A.dtype not in DTYPES:
        return f"they are not compiled for {problem.A.dtype}"
    if problem.noisy and problem.A.dtype != torch.float32:
        return "they add noise to states in float32 only, in which it is drawn"
    if 0 in problem.drive.shape or problem.A.shape[-1] == 0:
        return "there is nothing to scan"
    reason = machine.obstacle()
    if reason is not None:
        return reason
    N, most = problem.A.shape[-1], most_units()
    if most < N:
        return f"the hidden size is {N}, and up to {most} they are faster here"
    features = 0 if problem.input_weight is None else problem.drive.shape[-1]
    if features > MOST_FEATURES:
        return f"an input has {features} features, and up to {MOST_FEATURES} they are faster"
    return None


def most_units() -> int:
    """The largest hidden size for which the kernels are the faster way on this processor."""
    processor = machine.processor()
    return 0 if processor is None else MOST_UNITS[processor.register]


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
