"""Which backend serves a scan, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.ops import portable, reference
from lipschitz_rnn.ops.checks import FLOATING
from lipschitz_rnn.ops.differentiation import EagerScan, Scan
from lipschitz_rnn.ops.problem import Problem, compute_dtype, tracked
from lipschitz_rnn.ops.registration import forward_mode, plain_eager
from lipschitz_rnn.ops.triton import support as triton_support

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
    if backend == "cpu":
        return None if device.type == "cpu" else f"the tensors are on {device}"
    return triton_support.obstacle(problem)


def choose(requested: str, problem: Problem) -> tuple[str, str]:
    """The backend that runs and the reason, in words; a backend asked for by name runs or raises."""
    if requested not in BACKENDS:
        raise ValueError(f"backend is {requested!r}; choose one of {', '.join(BACKENDS)}")
    if requested != "auto":
        reason = obstacle(requested, problem)
        if reason is not None:
            raise ValueError(
                f"backend {requested!r} cannot serve this call: {reason}. Use backend='auto' or 'reference'"
            )
        return requested, "asked for by name"
    fast = "cpu" if problem.A.device.type == "cpu" else "triton"
    reason = obstacle(fast, problem)
    return (fast, f"fastest on {problem.A.device.type}") if reason is None else ("reference", f"not {fast}: {reason}")


def run(problem: Problem, backend: str, keep_states: bool) -> tuple[Tensor | None, Tensor]:
    """States (S, T, B, N), None unless kept, and the last state (S, B, N)."""
    dtype, wide = problem.A.dtype, compute_dtype(problem.A.dtype, problem.A.device)
    if wide != dtype and backend != "triton":  # whose interpreter is there to test the kernels as they are
        states, last = run(problem.to(wide), backend, keep_states)
        return (None if states is None else states.to(dtype)), last.to(dtype)
    if torch.compiler.is_exporting():
        exported, last = portable.scan(problem)
        return (exported if keep_states else None), last
    name, reason = choose(backend, problem)
    if not torch.compiler.is_compiling():
        logger.debug("lipschitz_scan runs on %s (%s)", name, reason)
        if name == "reference":
            states, last = reference.scan(problem)
            return (states if keep_states else None), last

    scheme = problem.scheme
    differentiate = torch.is_grad_enabled() and any(t is not None and tracked(t) for t in problem.tensors)
    options = (
        scheme.step_size,
        scheme.alpha,
        scheme.tableau.name,
        scheme.nonlinearity,
        keep_states,
        differentiate,
        name,
    )
    states, last, _ = _operator(differentiate)(*problem.tensors, *options)
    return (states if keep_states else None), last


def _operator(differentiate: bool) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    if not differentiate:
        return Scan.forward  # a tracer cannot take a function without a gradient
    return EagerScan.apply if plain_eager() else Scan.apply
