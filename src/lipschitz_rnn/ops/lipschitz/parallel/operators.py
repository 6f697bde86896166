"""The parallel scan as one operation, ``lipschitz_rnn::parallel_scan``, and its backward pass as another.

To ``torch.compile`` they are opaque: what they decide from values, they decide when they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.lipschitz.operators import SCHEME, contiguous_gradients, shapes_of_gradients
from lipschitz_rnn.ops.lipschitz.parallel.adjoint import Adjoint, solve_adjoint
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, Path, apart, joined, new_memory
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms
from lipschitz_rnn.ops.lipschitz.parallel.line import Line
from lipschitz_rnn.ops.lipschitz.parallel.plan import Plan
from lipschitz_rnn.ops.lipschitz.parallel.solve import solve
from lipschitz_rnn.ops.lipschitz.problem import Problem, Scheme

STATISTICS = 5  # relative error, error in the metric, Euclidean error, passes, where passes join


class Cut(NamedTuple):
    """What the operators are told besides tensors: how the sequence is cut, and what is asked of the result."""

    chunks: int
    warm_up: int
    every: int  # 0 keeps all states
    passes: int
    fixed: bool
    proved: bool
    tolerance: float
    longest: float
    backend: str


def run_parallel_scan(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor | None,
    noise: Tensor | None,
    factor: Tensor,
    root: Tensor,
    active: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    exact_products: bool,
    chunks: int,
    warm_up: int,
    every: int,
    passes: int,
    fixed: bool,
    proved: bool,
    tolerance: float,
    longest: float,
    backend: str,
    keep: bool,
    save: bool,
) -> list[Tensor]:
    """As ``run_line``, in one process."""
    scheme = Scheme(step_size, alpha, integrator, nonlinearity, exact_products)
    problem = Problem(drive, A, W, h0, input_weight, bias, timespans, scheme, noise)
    cut = Cut(chunks, warm_up, every, passes, fixed, proved, tolerance, longest, backend)
    *found, errors, jumps, fading, statistics = run_line(
        problem, Norms(factor, root, longest), cut, active, keep, save, Line()
    )
    numbers = (
        number.to(A.device, non_blocking=True, copy=True) for number in (errors, jumps, fading)
    )  # none is another's view
    return [*found, *numbers, statistics]


def run_line(
    problem: Problem, norms: Norms, cut: Cut, active: Tensor | None, keep: bool, save: bool, line: Line
) -> list[Tensor]:
    """States (S, T, B, N), empty unless kept; last state (S, B, N); then what the backward pass and the bound need:
    memory of the chunks, states at marks, then errors, jumps and factors of the chunks (S, K, B), on the host unless
    nothing may wait for it, and statistics."""
    A, pieces = problem.A, _pieces(problem, cut, keep or save)
    with without_autocast(A.device):
        asked = (cut.proved, cut.tolerance, cut.passes, cut.fixed)
        found = solve(pieces, norms, *asked, active, keep, save, line)
    states = A.new_empty(0)
    if keep:
        states = found.path.join()
        shared = states.data_ptr() == found.path.memory.data_ptr()  # a GPU's states are a copy already
        states = states.clone(memory_format=torch.contiguous_format) if save and shared else states.contiguous()
    last = found.ends[:, -1] if active is None else found.ends.gather(1, owners(active, pieces.plan, found.ends))[:, 0]
    errors = found.errors + found.jumps
    largest, euclidean = (
        value.amax() if value.numel() else value.new_zeros(()) for value in (errors, errors / found.smallest)
    )
    wrong = (torch.where(found.relative.isinf(), torch.inf, value) for value in (largest, euclidean))
    numbers = (torch.full_like(largest, number) for number in (found.passes, found.joined_at))
    statistics = torch.stack((found.relative, *wrong, *numbers)).to(A.device, non_blocking=True)
    known = [found.errors, found.jumps, found.fading, statistics]
    if not save:
        return [states, last.clone(), A.new_empty(0), A.new_empty(0), *known]
    return [states, last.clone(), found.path.memory if cut.every == 0 else A.new_empty(0), found.path.kept, *known]


parallel_scan = torch.library.custom_op("lipschitz_rnn::parallel_scan", mutates_args=())(run_parallel_scan)


@parallel_scan.register_fake
def _(drive: Tensor, A: Tensor, W: Tensor, *rest: Any) -> list[Tensor]:
    (S, T, B, _), N = drive.shape, A.shape[-1]
    scheme, keep, save = Scheme(*rest[8 : 8 + SCHEME]), rest[-2], rest[-1]
    cut = Cut(*rest[8 + SCHEME : -2])
    problem = Problem(drive, A, W, None, None, None, None, scheme)
    pieces, K = _pieces(problem, cut, keep or save), cut.chunks
    saved, C = save and cut.every == 0, pieces.plan.steps
    count = -(-C // (cut.every or C))
    wide = torch.float64
    return [
        A.new_empty((S, T, B, N) if keep else 0),
        A.new_empty((S, B, N)),
        new_memory(pieces, keep, save) if saved else A.new_empty(0),
        A.new_empty((count, S, B * K, N) if save else 0),
        A.new_empty((S, K, B), dtype=wide),
        A.new_empty((S, K, B), dtype=wide),
        A.new_empty((S, K, B), dtype=wide),
        A.new_empty(STATISTICS, dtype=wide),
    ]


def solve_backward(
    problem: Problem,
    norms: Norms,
    cut: Cut,
    saved: tuple[Tensor, Tensor, Tensor],
    active: Tensor | None,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
    line: Line,
) -> tuple[Chunks, Adjoint]:
    """The adjoint of a scan that left ``saved``: memory, states before each piece, and factors of the chunks."""
    memory, kept, fading = saved
    pieces = _pieces(problem, cut, True)
    S, _, B, N = problem.shape
    rows = problem.A.new_zeros((S, B * cut.chunks, N))
    at_ends = apart(rows, cut.chunks)
    if grad_last is not None:
        if active is None:
            at_ends[:, -1] = grad_last
        else:
            at_ends.scatter_(1, owners(active, pieces.plan, at_ends), grad_last.unsqueeze(1))
    path = Path(pieces, memory, kept, keep=False, save=True)
    with without_autocast(problem.A.device):
        options = (needs, cut.tolerance, cut.passes, cut.fixed)
        return pieces, solve_adjoint(pieces, path, fading, norms, cut.proved, grad_states, rows, *options, line)


def whole_gradients(found: Adjoint, chunks: int, needs: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of the whole problem's tensors from those of its chunks."""
    gradients = list(found.gradients)
    for place in (0, 6):
        gradient = gradients[place]
        gradients[place] = None if gradient is None else joined(gradient, chunks)
    first = gradients[3]
    gradients[3] = first[:, 0] if first is not None and needs[3] else None
    return gradients


def run_parallel_scan_backward(
    drive: Tensor,
    A: Tensor,
    W: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    timespans: Tensor | None,
    noise: Tensor | None,
    factor: Tensor,
    root: Tensor,
    active: Tensor | None,
    memory: Tensor,
    kept: Tensor,
    fading: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    step_size: float,
    alpha: float,
    integrator: str,
    nonlinearity: str,
    exact_products: bool,
    chunks: int,
    warm_up: int,
    every: int,
    passes: int,
    fixed: bool,
    proved: bool,
    tolerance: float,
    longest: float,
    backend: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """One gradient per tensor of the problem; those not needed come back empty."""
    scheme = Scheme(step_size, alpha, integrator, nonlinearity, exact_products)
    problem = Problem(drive, A, W, h0, input_weight, bias, timespans, scheme, noise)
    cut = Cut(chunks, warm_up, every, passes, fixed, proved, tolerance, longest, backend)
    norms, saved = Norms(factor, root, longest), (memory, kept, fading)
    _, found = solve_backward(problem, norms, cut, saved, active, grad_states, grad_last, needs, Line())
    return contiguous_gradients(whole_gradients(found, chunks, needs), like=drive)


parallel_scan_backward = torch.library.custom_op("lipschitz_rnn::parallel_scan_backward", mutates_args=())(
    run_parallel_scan_backward
)


parallel_scan_backward.register_fake(shapes_of_gradients)


def _pieces(problem: Problem, cut: Cut, recorded: bool) -> Chunks:
    """The chunks; if no states are recorded, with marks at which two passes can be compared."""
    plan = Plan(cut.chunks, problem.drive.shape[1] // cut.chunks, 0, cut.warm_up)
    every = cut.every or (None if recorded else min(plan.steps, cut.warm_up))
    return Chunks.of(replace(problem, noise=None), plan, cut.backend, every)


def owners(active: Tensor, plan: Plan, like: Tensor) -> Tensor:
    """The chunk in which each sample ends, as an index (S, 1, B, N) into (S, K, B, N)."""
    S, _, B, N = like.shape
    chunk = ((active - 1) // plan.steps).clamp(0, plan.chunks - 1)
    return chunk.expand(S, B).reshape(S, 1, B, 1).expand(S, 1, B, N)
