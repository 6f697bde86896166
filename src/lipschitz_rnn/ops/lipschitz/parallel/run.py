"""The parallel scan of a problem, with its derivative and its bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import compute_dtype, state_dtype
from lipschitz_rnn.ops.common.once import first_derivatives_only
from lipschitz_rnn.ops.common.tracing import exporting, forward_mode, tracked
from lipschitz_rnn.ops.common.validation import seen_values
from lipschitz_rnn.ops.lipschitz import dispatch
from lipschitz_rnn.ops.lipschitz.operators import SCHEME, TENSORS
from lipschitz_rnn.ops.lipschitz.parallel.bounds import ScanBound
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Path
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Contraction, Norms, largest_each
from lipschitz_rnn.ops.lipschitz.parallel.defects import complete_bounds
from lipschitz_rnn.ops.lipschitz.parallel.gradient_bounds import gradient_bounds, head_bounds, obstacle
from lipschitz_rnn.ops.lipschitz.parallel.line import Line
from lipschitz_rnn.ops.lipschitz.parallel.operators import (
    Cut,
    parallel_scan,
    parallel_scan_backward,
    run_line,
    solve_backward,
    whole_gradients,
)
from lipschitz_rnn.ops.lipschitz.parallel.plan import Parallel, Plan, allowed, make_plan, most_passes
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

NOISY = "parallel was given with noise on the state, which belongs to single steps; omit one of them"
NO_CONTRACTION = (
    "parallel needs a network that is known to contract, and this one is not: nothing says how far the start of a "
    "chunk may be wrong. Use a contracting layer (stability='contracting'), attach a certificate "
    "(layer.attach_certificate(lipschitz_rnn.stability.certify(layer))) or pass contraction to lipschitz_scan. "
    "Parallel(proved=False) runs it to a measured residual, without a proof"
)


def run_parallel(
    problem: Problem,
    backend: str,
    keep: bool,
    settings: Parallel,
    contraction: Contraction | None,
    active: Tensor | None = None,
    every: int | None = None,
    bound: ScanBound | None = None,
    *,
    sequential: Callable[[Problem], tuple[Tensor | None, Tensor]],
) -> tuple[Tensor | None, Tensor]:
    """States and last state, as ``sequential`` gives them, within the tolerance of the settings.

    Args:
        sequential: runs the problem in one piece, where that is best.
        active: (B,) or (S, B), the steps of each sample that count; states beyond may be anything.
        every: the backward pass keeps one state in this many.
    """
    bound = ScanBound() if bound is None else bound
    if problem.noise is not None:
        raise ValueError(NOISY)
    _refuse(problem, settings)
    reason = _hindrance(problem)
    if reason:
        bound.run_sequentially(reason, problem.A.detach().new_zeros((), dtype=torch.float64))
        return sequential(problem)
    if contraction is None and settings.proved:
        raise ValueError(NO_CONTRACTION)
    dtype = problem.A.dtype
    wide = state_dtype(compute_dtype(dtype, problem.A.device, True))
    if wide != dtype:  # ends of chunks are handed on in the dtype of the state
        known = (contraction, active, every, bound)
        states, last = run_parallel(problem.to(wide), backend, keep, settings, *known, sequential=sequential)
        return (None if states is None else states.to(dtype)), last.to(dtype)
    lifted = problem.lifted()
    S, T, B, _ = lifted.shape
    norms = Norms.euclidean(S, lifted.A) if contraction is None else Norms.of(contraction, S, lifted.A)
    proved = contraction is not None and contraction.proved
    tolerance = allowed(settings.tolerance, dtype)
    line = Line.of(settings.group)
    name, _ = dispatch.choose(backend, problem)

    def own_plan() -> Plan:
        _require_stretches(line, active)
        if contraction is not None:
            contraction.require_steps(*_step_range(lifted))
        factor = contraction.factor if contraction is not None else 1.0
        known = 1.0 if isinstance(factor, Tensor) else factor
        return make_plan(settings, lifted, name, known, whole=line.size > 1)

    plan = line.agree(own_plan, T, B, lifted.A.device)
    if plan.chunks * line.size == 1:
        reason = f"{T} steps of {S * B} samples are best left in one piece"
        bound.run_sequentially(reason, lifted.A.detach().new_zeros((), dtype=torch.float64))
        states, last = sequential(problem)
        if states is not None and proved:
            _add_complete(bound, lifted, states.unsqueeze(0) if problem.single else states, norms)
        return states, last
    bound.start(str(plan), proved)
    usual = 2 if settings.fixed else most_passes(lifted.A.device, plan.chunks * line.size)
    cut = Cut(
        plan.chunks, plan.warm_up, every or 0, settings.passes or usual, settings.fixed, proved, tolerance,
        norms.longest, name,
    )  # fmt: skip
    if active is not None:
        active = active.to(lifted.A.device).expand(S, B) - plan.head
    states, last = _run_from_head(lifted, plan, cut, norms, active, keep or bound.wants_complete, bound, line)
    if proved and line.size == 1 and states is not None:
        _add_complete(bound, lifted, states, norms)
    if problem.single:
        states, last = None if states is None else states.squeeze(0), last.squeeze(0)
    return states if keep else None, last


def _add_complete(bound: ScanBound, problem: Problem, states: Tensor, norms: Norms) -> None:
    if bound.wants_complete:
        errors = complete_bounds(problem, states, norms)
        bound.complete = (largest_each(errors) / norms.smallest).amax()


def _run_from_head(
    problem: Problem,
    plan: Plan,
    cut: Cut,
    norms: Norms,
    active: Tensor | None,
    keep: bool,
    bound: ScanBound,
    line: Line,
) -> tuple[Tensor | None, Tensor]:
    """The steps that fill no chunk are run first, as ever; the chunks go on from there."""
    if plan.head == 0:
        return _run_chunks(problem, cut, norms, active, keep, bound, None, line)
    head, rest = _steps(problem, slice(0, plan.head)), _steps(problem, slice(plan.head, None))
    first, state = dispatch.run(head, cut.backend, True)
    assert first is not None
    bounded = (head, first.detach()) if bound.wants_gradients else None
    states, last = _run_chunks(replace(rest, h0=state), cut, norms, active, keep, bound, bounded, line)
    return (torch.cat((first, states), dim=1) if states is not None else None), last


def _run_chunks(
    problem: Problem,
    cut: Cut,
    norms: Norms,
    active: Tensor | None,
    keep: bool,
    bound: ScanBound,
    head: tuple[Problem, Tensor] | None,
    line: Line,
) -> tuple[Tensor | None, Tensor]:
    differentiate = torch.is_grad_enabled() and any(t is not None and tracked(t) for t in problem.tensors)
    compiling = torch.compiler.is_compiling()
    given: tuple[Any, ...] = (*problem.tensors, norms.factor, norms.root, active, *problem.scheme.arguments, *cut)
    if differentiate:
        known = None if compiling else (bound, head, line, norms)
        states, last, statistics = ParallelScan.apply(*given, keep, known)
    else:
        found = (
            parallel_scan(*given, keep, False)
            if compiling
            else run_line(problem, norms, cut, active, keep, False, line)
        )
        states, last, statistics = found[0], found[1], found[-1]
    bound.statistics = statistics
    return (states if keep else None), last


class ParallelScan(torch.autograd.Function):
    """``lipschitz_rnn::parallel_scan`` with its backward pass; first derivatives only."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        *given, keep, known = args
        found: Any
        if known is None:
            found = parallel_scan(*given, keep, True)
        else:
            *tensors, _, _, active = given[: TENSORS + 3]
            problem = Problem.of(tensors, Scheme(*given[TENSORS + 3 : TENSORS + 3 + SCHEME]))
            cut = Cut(*given[TENSORS + 3 + SCHEME :])
            _, _, line, norms = known
            found = run_line(problem, norms, cut, active, keep, True, line)
        states, last, memory, kept, errors, jumps, fading, statistics = found
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(statistics)
        ctx.save_for_backward(*given[: TENSORS + 3], memory, kept, errors, jumps, fading, statistics)
        ctx.options, ctx.keep, ctx.known = tuple(given[TENSORS + 3 :]), keep, known
        return states, last, statistics

    @staticmethod
    @first_derivatives_only("a scan in parallel over time has first derivatives only; set parallel=None for others")
    def backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None, _: Any) -> tuple[Any, ...]:
        needs = tuple(bool(need) for need in ctx.needs_input_grad[:TENSORS])
        nothing = (None,) * (len(ctx.needs_input_grad) - TENSORS)
        if not any(needs) or (grad_states is None and grad_last is None):
            return (None,) * TENSORS + nothing
        *tensors, factor, root, active, memory, kept, errors, jumps, fading, statistics = ctx.saved_tensors
        grad_states = grad_states if ctx.keep else None
        found: Any
        if ctx.known is None:
            found = parallel_scan_backward(
                *tensors, factor, root, active, memory, kept, fading, grad_states, grad_last, *ctx.options, needs
            )
        else:
            bound, head, line, norms = ctx.known
            problem = Problem.of(tensors, Scheme(*ctx.options[:SCHEME]))
            cut = Cut(*ctx.options[SCHEME:])
            saved = memory, kept, fading
            pieces, adjoint = solve_backward(problem, norms, cut, saved, active, grad_states, grad_last, needs, line)
            found = whole_gradients(adjoint, cut.chunks, needs)
            if line.rank > 0 and found[3] is not None:
                found[3] = torch.zeros_like(found[3])  # this stretch begins with the state of another process
            bound.adjoint, bound.adjoint_passes = adjoint.relative, adjoint.passes
            if bound.wants_gradients and cut.proved and line.size == 1:
                bound.no_gradients = obstacle(problem) or ("" if cut.every == 0 else "recompute_every keeps no states")
                if not bound.no_gradients:
                    path, place = Path(pieces, memory, kept, keep=False, save=True), int(statistics[4])
                    bound.gradients, first = gradient_bounds(
                        pieces, norms, (errors, jumps, place), fading, path, adjoint, grad_states
                    )
                    if head is not None:
                        more = head_bounds(head[0], norms, head[1], first)
                        bound.gradients = {name: value + more[name] for name, value in bound.gradients.items()}
        gradients = [gradient if need else None for gradient, need in zip(found, needs, strict=True)]
        return (*gradients, *nothing)


def _require_stretches(line: Line, active: Tensor | None) -> None:
    if line.size > 1 and active is not None:
        raise ValueError(
            "lengths and max_step cannot be used with a group of processes, in which samples end in different ones; "
            "pad with timespans of 0 instead"
        )
    if line.size > 1 and torch.compiler.is_compiling():
        raise ValueError("a group of processes exchanges states, which torch.compile does not see; call it eagerly")


def _refuse(problem: Problem, settings: Parallel) -> None:
    """Raise where neither way is open: the caller then runs networks one by one, or without a graph."""
    batched = torch._C._functorch.is_batchedtensor
    if not torch.compiler.is_compiling() and any(t is not None and batched(t) for t in problem.tensors):
        raise NotImplementedError(
            "parallel does not run under torch.func.vmap, where networks decide together; run them one by one, or "
            "pass them to lipschitz_scan as an ensemble (S, T, B, N)"
        )
    if not settings.fixed and _capturing():
        raise RuntimeError(
            "parallel decides from its bound how many steps it takes, which a CUDA graph cannot wait for; pass "
            "Parallel(..., fixed=True) and check the bound outside, or do not capture"
        )


def _hindrance(problem: Problem) -> str:
    """Why this call can only run sequentially, whatever the network."""
    if problem.A.is_meta:
        return "the meta device has no values"
    if exporting():
        return "an exported program has no chunks"
    if forward_mode():
        return "it has no forward-mode derivative"
    if not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None:
        return "function transforms (torch.func) run it as it is"
    return ""


def _steps(problem: Problem, span: slice) -> Problem:
    timespans = None if problem.timespans is None else problem.timespans[:, span]
    return replace(problem, drive=problem.drive[:, span], timespans=timespans)


def _step_range(problem: Problem) -> tuple[float, float]:
    """Shortest and longest step, without steps of length zero; a compiled program does not look."""
    if problem.timespans is None:
        return problem.scheme.step_size, problem.scheme.step_size
    values = seen_values(problem.timespans)
    if values is None or _capturing():
        return 0.0, 0.0
    positive = values[values > 0]
    return (float(positive.min()), float(positive.max())) if positive.numel() else (0.0, 0.0)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
