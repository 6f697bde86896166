"""Which backend serves a scan, and why."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import compute_dtype
from lipschitz_rnn.ops.common.tracing import exporting, forward_mode, plain_eager, tracked, without_memory
from lipschitz_rnn.ops.common.validation import FLOATING
from lipschitz_rnn.ops.common.vmap import only_vmap, run_outside
from lipschitz_rnn.ops.lipschitz import portable, reference
from lipschitz_rnn.ops.lipschitz.differentiation import EagerScan, Scan
from lipschitz_rnn.ops.lipschitz.problem import Problem
from lipschitz_rnn.ops.lipschitz.triton import support as triton_support

BACKENDS = ("auto", "reference", "cpu", "triton")

logger = logging.getLogger("lipschitz_rnn")


def obstacle(backend: str, problem: Problem) -> str | None:
    """Why ``backend`` cannot serve this problem, or None if it can."""
    if backend == "reference":
        return None
    dtype, device = problem.A.dtype, problem.A.device
    if dtype not in FLOATING:
        return f"it has no kernels for {dtype}"
    if forward_mode():
        return "it has no forward-mode derivative"
    if plain_eager() and (kinds := {type(t).__name__ for t in problem.tensors if t is not None and without_memory(t)}):
        return f"a {kinds.pop()} has no memory of its own that a kernel could read"
    if backend == "cpu":
        return None if device.type == "cpu" else f"the tensors are on {device}"
    return triton_support.obstacle(problem)


def choose(requested: str, problem: Problem) -> tuple[str, str]:
    """The backend that runs and the reason, in words; a backend requested by name runs or raises."""
    if requested not in BACKENDS:
        raise ValueError(f"backend is {requested!r}; choose one of {', '.join(BACKENDS)}")
    if requested != "auto":
        reason = obstacle(requested, problem)
        if reason is not None:
            raise ValueError(
                f"backend {requested!r} cannot serve this call: {reason}. Use backend='auto' or 'reference'"
            )
        return requested, "requested by name"
    fast = "cpu" if problem.A.device.type == "cpu" else "triton"
    reason = obstacle(fast, problem)
    return (fast, f"fastest on {problem.A.device.type}") if reason is None else ("reference", f"not {fast}: {reason}")


def run(problem: Problem, backend: str, keep_states: bool) -> tuple[Tensor | None, Tensor]:
    """States (S, T, B, N), None unless kept, and the last state (S, B, N); without S where the problem has none."""
    if (level := only_vmap()) is not None:

        def unwrapped(*tensors: Tensor | None) -> tuple[Tensor | None, Tensor]:
            return run(Problem.of(tensors, problem.scheme), backend, keep_states)

        return run_outside(level, unwrapped, problem.tensors, 0 if problem.single else 1)
    dtype, exact = problem.A.dtype, problem.scheme.exact_products
    wide = compute_dtype(dtype, problem.A.device, exact)
    if wide != dtype and (exact or backend != "triton"):  # Triton's interpreter tests the kernels as they are
        states, last = run(problem.to(wide), backend, keep_states)
        return (None if states is None else states.to(dtype)), last.to(dtype)
    name, reason = ("portable", "exported") if exporting() else choose(backend, problem)
    if not torch.compiler.is_compiling():
        logger.debug("lipschitz_scan runs on %s (%s)", name, reason)
    differentiate = torch.is_grad_enabled() and any(t is not None and tracked(t) for t in problem.tensors)
    if differentiate and name != "reference" and plain_eager():
        return EagerScan.apply(*problem.tensors, problem.scheme, keep_states, name)
    states, last = _run_lifted(problem.lifted(), name, keep_states, differentiate)
    if problem.single:  # the backward of a squeeze is free; that of an index fills a tensor of zeros
        states, last = states.squeeze(0), last.squeeze(0)
    return (states if keep_states else None), last


def _run_lifted(problem: Problem, name: str, keep_states: bool, differentiate: bool) -> tuple[Tensor, Tensor]:
    """States and last state in forms that PyTorch can trace and transform."""
    if name == "portable":
        return portable.scan(problem)
    if name == "reference" and not torch.compiler.is_compiling():
        return reference.scan(problem)
    options = (*problem.scheme.arguments, keep_states, differentiate, name)
    # A tracer does not accept an autograd function that has no gradient.
    states, last, _ = (Scan.apply if differentiate else Scan.forward)(*problem.tensors, *options)
    return states, last
