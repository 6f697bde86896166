"""Which backend ``auto`` chooses for a workload, and why not another."""

from __future__ import annotations

from typing import Any

import torch

from lipschitz_rnn.benchmark.workload import Workload
from lipschitz_rnn.ops.common.dtypes import compute_dtype
from lipschitz_rnn.ops.lipschitz.cores.support import describe
from lipschitz_rnn.ops.lipschitz.dispatch import BACKENDS, choose, obstacle
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def explain(work: Workload, device: torch.device) -> list[dict[str, Any]]:
    """For each dtype: the backend that runs, the reason, and why each of the others does not."""
    answers = []
    for dtype in DTYPES:
        computed = compute_dtype(dtype, device)
        problem = _outline(work, device, computed)
        backend, reason = choose("auto", problem)
        if backend == "cpu":
            reason += f", by {describe(problem)}"
        if computed != dtype:
            reason += f"; computed in {_name(computed)}, which a CPU multiplies faster"
        others = {name: obstacle(name, problem) for name in BACKENDS if name not in ("auto", backend)}
        answers.append({"dtype": _name(dtype), "backend": backend, "reason": reason, "obstacles": others})
    return answers


def _outline(work: Workload, device: torch.device, dtype: torch.dtype) -> Problem:
    """A problem of these shapes whose tensors use no memory."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(1, dtype=dtype, device=device).expand(work.networks, *shape)

    N, p = work.hidden, work.features
    drive, U, b = empty(work.length, work.batch, p), empty(N, p), empty(N)
    scheme = Scheme(work.step_size, 1.0, work.integrator, "tanh")
    return Problem(drive, empty(N, N), empty(N, N), empty(work.batch, N), U, b, None, scheme)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
