"""The gradient as a scan of its own: the adjoint of every chunk, after a warm-up from the right along found states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.chunks import DRIVE, STEPS, Chunks, Gradients, Path, apart, beside, together
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate_back
from lipschitz_rnn.ops.lipschitz.parallel.line import Line
from lipschitz_rnn.ops.lipschitz.parallel.solve import between, largest_relative, on_host, on_quickest, outlook


class Adjoint(NamedTuple):
    """Gradients of the tensors of ``Chunks.cut``, and what is known of the adjoint's error.

    Attributes:
        gradients: that of the first states is (S, K, B, N).
        at_ends: (S, K, B, N), the adjoint at the end of each chunk.
        errors: (S, K, B): bounds on its error, along the states found, in ‖·‖_{P⁻¹}.
        left: (S, K, B): the size of what was left out of it further to the left, before the step ``left_at``.
        relative: the largest error, relative to the largest adjoint or gradient of its sample.
        passes: 0 if the chunks were run one after another.
    """

    gradients: Gradients
    at_ends: Tensor
    errors: Tensor
    left: Tensor
    left_at: int
    relative: Tensor
    passes: int


def solve_adjoint(
    chunks: Chunks,
    path: Path,
    fading: Tensor,
    norms: Norms,
    proved: bool,
    grad_states: Tensor | None,
    at_own_ends: Tensor,
    needs: Sequence[bool],
    tolerance: float,
    passes: int,
    fixed: bool,
    line: Line,
) -> Adjoint:
    """Gradients of all chunks on their own, then of what reaches each from those behind it, until that has faded.

    The adjoint is linear: what comes from behind is followed to the left by itself, and its gradients are added. Where
    it is small enough, or at the end of ``passes``, the rest is left out. Otherwise it goes on in the chunk before.

    Args:
        grad_states: (S, T, B, N), or None for zeros.
        at_own_ends: (S, K, B, N), what reaches the end of a chunk from outside: the gradient of the last state.
    """
    K, C = chunks.plan.chunks, chunks.plan.steps
    incoming = None if grad_states is None else beside(grad_states, K)
    sizes = line.largest(_sizes(grad_states, at_own_ends, norms))
    total = chunks.backward(path, incoming, together(at_own_ends), needs, 0, C)
    total[3] = apart(_first(total), K)
    arriving = line.before(_first(total))  # at the end of each chunk, from the one behind it
    at_ends, expected = at_own_ends + arriving, 0.0
    for count in range(2, passes + 1):
        adjoint, end = together(arriving), C
        for done in chunks.plan.stops_of_pass(chunks.every, fixed, count == passes, expected > tolerance):
            begin = C - done if chunks.every is None else (C - done) // chunks.every * chunks.every
            begin = max(0, begin)
            found = chunks.backward(path, None, adjoint, needs, begin, end)
            _add(total, found, begin, end)
            adjoint, end = _first(found), begin
            left = norms.dual_size(apart(adjoint, K))
            largest = torch.maximum(sizes, norms.dual_size(at_ends).amax(1))
            rest = 0.0 if fixed else on_host(line, largest_relative(left, largest))[0]
            if begin > 0 and not rest <= tolerance:
                continue  # without the rest, which would only be larger
            handed = between(chunks, norms, 0, begin) * left if proved or begin == 0 else torch.zeros_like(left)
            errors = _accumulated(line, fading, handed, fixed)
            left = left if begin > 0 else torch.zeros_like(left)  # it reaches the chunk before, as an error there
            relative = line.largest(largest_relative(errors + left, largest))
            if not fixed and bool(relative <= tolerance):
                break
            if begin == 0:
                break
        if end == 0:
            first = apart(adjoint, K)
            total[3] = _first(total) + first
        if (fixed and count == passes) or (not fixed and bool(relative <= tolerance)):
            return Adjoint(total, at_ends, errors, left, end, relative, count)
        before, arriving = arriving, line.before(first)
        faded = norms.dual_size(before), norms.dual_size(arriving)
        if not fixed:
            shrinks = outlook(line, *faded, relative, tolerance, passes - count)
            if shrinks is None:
                break
            expected = rest * shrinks
        at_ends = at_ends + arriving
    return _in_turn(chunks, path, incoming, at_own_ends, needs, fading, line)


def _add(total: Gradients, found: Gradients, begin: int, end: int) -> None:
    """Add the gradients of some steps to those of all, apart from that of the first states."""
    for place, gradient in enumerate(found):
        so_far = total[place]
        if gradient is None or so_far is None or place == 3:
            continue
        if place in (DRIVE, STEPS):
            so_far[:, begin:end] += gradient
        else:
            so_far += gradient


def _in_turn(
    chunks: Chunks,
    path: Path,
    incoming: Tensor | None,
    at_own_ends: Tensor,
    needs: Sequence[bool],
    fading: Tensor,
    line: Line,
) -> Adjoint:
    """One chunk after another, from the last: the sequential backward pass."""
    K, C = chunks.plan.chunks, chunks.plan.steps
    parts: list[Gradients] = []
    ends: list[Tensor] = []
    adjoint = torch.zeros_like(at_own_ends[:, 0])
    for rank in range(line.size - 1, -1, -1):
        for number in range(K - 1, -1, -1) if rank == line.rank else ():
            ends.append(adjoint + at_own_ends[:, number])
            parts.append(chunks.backward(path, incoming, ends[-1], needs, 0, C, rows=chunks.chunk(number)))
            adjoint = _first(parts[-1])
        adjoint = line.gathered(adjoint)[rank]
    parts.reverse()
    ends.reverse()
    total: Gradients = []
    for place, of_chunks in enumerate(zip(*parts, strict=True)):
        given = [gradient for gradient in of_chunks if gradient is not None]
        if not given:
            total.append(None)
        elif place == 3:
            total.append(torch.stack(given, dim=1))
        elif place in (DRIVE, STEPS):  # (S, C, B, …) of each chunk, to (S, C, B·K, …)
            total.append(torch.stack(given, dim=3).flatten(2, 3))
        else:
            total.append(torch.stack(given).sum(0))
    zero = torch.zeros_like(fading)
    return Adjoint(total, torch.stack(ends, dim=1), zero, zero, 0, zero.new_zeros(()), 0)


def _first(gradients: Gradients) -> Tensor:
    """The gradient of the first states, which is always computed."""
    found = gradients[3]
    assert found is not None
    return found


def _accumulated(line: Line, fading: Tensor, handed: Tensor, fixed: bool) -> Tensor:
    """The error at the end of each chunk, from what every chunk hands to the one before it, (S, K, B)."""
    factors, terms = on_quickest(fixed, line.whole(fading), line.whole(handed))
    zero, one = torch.zeros_like(terms[:, :1]), torch.ones_like(factors[:, :1])
    moved = torch.cat((factors[:, 1:], one), dim=1), torch.cat((terms[:, 1:], zero), dim=1)
    return line.own(accumulate_back(*moved)).to(handed.device)


def _sizes(grad_states: Tensor | None, at_own_ends: Tensor, norms: Norms) -> Tensor:
    """The largest gradient that arrives at each sample's states, (S, B), or less."""
    sizes = norms.dual_size(at_own_ends).amax(1)
    if grad_states is None:
        return sizes
    largest = torch.linalg.vector_norm(grad_states, dim=-1).amax(1)  # in the metric at least this over max|R|
    return torch.maximum(sizes, largest.double() / norms.extremes[1].unsqueeze(-1))
