"""The gradient as a scan of its own: the adjoint of every chunk, after a warm-up from the right along found states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, Gradients, apart, beside, together
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate_back
from lipschitz_rnn.ops.lipschitz.parallel.solve import largest_relative


class Adjoint(NamedTuple):
    """Gradients of the tensors of ``Chunks.cut``, and what is known of the adjoint's error.

    Attributes:
        gradients: that of the first states is (S, K, B, N).
        at_ends: (S, K, B, N), the adjoint used at the end of each chunk.
        errors: (S, K, B): bounds on its error, along the states found, in ‖·‖_{P⁻¹}.
        relative: the largest, relative to the largest adjoint or gradient of its sample.
        passes: 0 if the chunks were run one after another.
    """

    gradients: Gradients
    at_ends: Tensor
    errors: Tensor
    relative: Tensor
    passes: int


def solve_adjoint(
    chunks: Chunks,
    tape: Tensor,
    kept: Tensor,
    fading: Tensor,
    norms: Norms,
    grad_states: Tensor | None,
    at_own_ends: Tensor,
    needs: Sequence[bool],
    tolerance: float,
    passes: int,
    fixed: bool,
) -> Adjoint:
    """Gradients by passes until the bound on the adjoint's error is below ``tolerance``.

    Args:
        grad_states: (S, T, B, N), or None for zeros.
        at_own_ends: (S, K, B, N), what reaches the end of a chunk from outside: the gradient of the last state.
    """
    K = chunks.plan.chunks
    incoming = None if grad_states is None else beside(grad_states, K)
    sizes = _sizes(grad_states, at_own_ends, norms)
    at_ends = at_own_ends
    if chunks.plan.warm_up > 0 and K > 1:
        only_states = [place == 3 for place in range(len(needs))]
        found = chunks.backward(
            kept, tape, incoming, torch.zeros_like(together(at_own_ends)), only_states, stop=chunks.plan.warm_up
        )
        at_ends = _shifted(_first(found), K) + at_own_ends
    for count in range(1, passes + 1):
        found = chunks.backward(kept, tape, incoming, together(at_ends), needs)
        after = _shifted(_first(found), K) + at_own_ends
        jumps = norms.dual_size(after.double() - at_ends.double())
        errors = accumulate_back(_next(fading), jumps)
        relative = largest_relative(errors, torch.maximum(sizes, norms.dual_size(after).amax(1)))
        if (count == passes and fixed) or (not fixed and bool(relative <= tolerance)):
            found[3] = apart(_first(found), K)
            return Adjoint(found, at_ends, errors, relative, count)
        at_ends = after
    return _in_turn(chunks, tape, kept, incoming, at_own_ends, needs, fading)


def _in_turn(
    chunks: Chunks,
    tape: Tensor,
    kept: Tensor,
    incoming: Tensor | None,
    at_own_ends: Tensor,
    needs: Sequence[bool],
    fading: Tensor,
) -> Adjoint:
    """One chunk after another, from the last: the sequential backward pass."""
    K = chunks.plan.chunks
    parts: list[Gradients] = []
    ends: list[Tensor] = []
    adjoint = torch.zeros_like(at_own_ends[:, 0])
    for number in range(K - 1, -1, -1):
        ends.append(adjoint + at_own_ends[:, number])
        parts.append(chunks.backward(kept, tape, incoming, ends[-1], needs, rows=chunks.chunk(number)))
        adjoint = _first(parts[-1])
    parts.reverse()
    ends.reverse()
    total: Gradients = []
    for place, of_chunks in enumerate(zip(*parts, strict=True)):
        given = [gradient for gradient in of_chunks if gradient is not None]
        if not given:
            total.append(None)
        elif place == 3:
            total.append(torch.stack(given, dim=1))
        elif place in (0, 6):  # (S, C, B, …) of each chunk, to (S, C, B·K, …)
            total.append(torch.stack(given, dim=3).flatten(2, 3))
        else:
            total.append(torch.stack(given).sum(0))
    return Adjoint(total, torch.stack(ends, dim=1), torch.zeros_like(fading), fading.new_zeros(()), 0)


def _first(gradients: Gradients) -> Tensor:
    """The gradient of the first states, which is always computed."""
    found = gradients[3]
    assert found is not None
    return found


def _shifted(first: Tensor, chunks: int) -> Tensor:
    """The adjoints of first states (S, B·K, N) at the ends of the chunks before: (S, K, B, N), zero at the last."""
    found = apart(first, chunks)
    return torch.cat((found[:, 1:], torch.zeros_like(found[:, :1])), dim=1)


def _next(fading: Tensor) -> Tensor:
    """The factor between the ends of chunks k + 1 and k, at k."""
    return torch.cat((fading[:, 1:], torch.ones_like(fading[:, :1])), dim=1)


def _sizes(grad_states: Tensor | None, at_own_ends: Tensor, norms: Norms) -> Tensor:
    """The largest gradient that arrives at each sample's states, (S, B), or less."""
    sizes = norms.dual_size(at_own_ends).amax(1)
    if grad_states is None:
        return sizes
    largest = torch.linalg.vector_norm(grad_states, dim=-1).amax(1)  # in the metric at least this over max|R|
    return torch.maximum(sizes, largest.double() / norms.extremes()[1].unsqueeze(-1))
