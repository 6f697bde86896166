"""The gradient as a scan of its own: the adjoint of every chunk, after a warm-up from the right along found states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.chunks import DRIVE, STEPS, Chunks, Gradients, Path, apart, beside
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms
from lipschitz_rnn.ops.lipschitz.parallel.known import Known, largest_relative, passed_back, promising
from lipschitz_rnn.ops.lipschitz.parallel.line import Line


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
        at_own_ends: (S, B·K, N), what reaches the end of a chunk from outside: the gradient of the last state.
    """
    incoming = None if grad_states is None else beside(grad_states, chunks.plan.chunks)
    run = _Passes(chunks, path, norms, (proved, fixed), incoming, at_own_ends, needs, line)
    if fixed:
        return run.fixed(passes, fading)
    found = run.until(tolerance, passes, fading)
    return found or _in_turn(chunks, path, incoming, apart(at_own_ends, chunks.plan.chunks), needs, fading, line)


class _Passes:
    """Follows the adjoint from each chunk into the one before it, and adds up the gradients."""

    def __init__(
        self,
        chunks: Chunks,
        path: Path,
        norms: Norms,
        options: tuple[bool, bool],
        incoming: Tensor | None,
        at_own_ends: Tensor,
        needs: Sequence[bool],
        line: Line,
    ) -> None:
        """The first pass: every chunk on its own."""
        self.chunks, self.path, self.norms, self.needs, self.line = chunks, path, norms, needs, line
        self.incoming, self.at_ends = incoming, at_own_ends
        self.total = chunks.backward(path, incoming, at_own_ends, needs, 0, chunks.plan.steps)
        self.adjoint, self.at = _first(self.total), 0
        self.known = Known(chunks, norms, *options, line)
        self.measured = incoming is None and line.size == 1  # another process may have some

    def begin(self) -> None:
        """Another pass: at the end of each chunk arrives what has left the one behind it."""
        K = self.chunks.plan.chunks
        arriving = torch.zeros_like(self.adjoint)
        ends, firsts = apart(arriving, K), apart(self.adjoint, K)
        ends[:, :-1] = firsts[:, 1:]
        if self.line.size > 1:
            of_others = self.line.gathered(firsts[:, 0])
            if self.line.rank < self.line.size - 1:
                ends[:, -1] = of_others[self.line.rank + 1]
        self.adjoint, self.at, self.at_ends = arriving, self.chunks.plan.steps, self.at_ends + arriving
        sizes = (apart(self.norms.dual_size(rows), K) for rows in (arriving, self.at_ends))
        self.known.add(**dict(zip(("arriving", "at_ends"), sizes, strict=True)))

    def advance(self, done: int) -> None:
        """Back over so many steps of all chunks, counted from their ends."""
        begin, every = self.chunks.plan.steps - done, self.chunks.every
        begin = begin if every is None else begin // every * every
        found = self.chunks.backward(self.path, None, self.adjoint, self.needs, begin, self.at)
        _add(self.total, found, begin, self.at)
        self.adjoint, self.at = _first(found), begin
        if begin == 0:
            self.total[3] = _first(self.total) + self.adjoint
        self.known.add(left=apart(self.norms.dual_size(self.adjoint), self.chunks.plan.chunks))

    def measure(self) -> None:
        """Take the gradients that arrive at the states into account. This reads them all, so it is done if it must."""
        if not self.measured:
            largest = self.norms.root.new_zeros((1, 1, 1))
            if self.incoming is not None:  # in the metric at least this over max|R|
                lengths = torch.linalg.vector_norm(self.incoming, dim=-1).amax(1).double()
                largest = apart(lengths / self.norms.extremes[1].unsqueeze(-1), self.chunks.plan.chunks)
            self.known.add(incoming=largest)
        self.measured = True

    @property
    def sizes(self) -> Tensor:
        """The largest adjoint at the ends of chunks, or gradient, of each sample, (S, B)."""
        sizes = self.known["at_ends"].amax(1)
        incoming = self.known.get("incoming")
        return sizes if incoming is None else torch.maximum(sizes, incoming.amax(1))

    def result(self, passes: int, fading: Tensor) -> Adjoint:
        """What is known of the gradients as they are, if the pass ends here."""
        left = self.known["left"]
        handed = left if self.at == 0 else self.known.fading(0, self.at) * left
        errors = passed_back(fading, handed)
        left = torch.zeros_like(left) if self.at == 0 else left  # it reaches the chunk before, as an error there
        relative = largest_relative(errors + left, self.sizes)
        K = self.chunks.plan.chunks
        gradients: Gradients = list(self.total)
        gradients[3] = apart(_first(gradients), K)
        return Adjoint(gradients, apart(self.at_ends, K), errors, left, self.at, relative, passes)

    def fixed(self, passes: int, fading: Tensor) -> Adjoint:
        """So many passes, the last of the warm-up alone. Nothing waits."""
        plan = self.chunks.plan
        for count in range(2, passes + 1):
            self.begin()
            self.advance(plan.first_stop(None) if count == passes else plan.steps)
        self.measure()
        return self.result(passes, fading)

    def until(self, tolerance: float, passes: int, fading: Tensor) -> Adjoint | None:
        """Passes until the tolerance is met; None if it is not."""
        plan, rest, stop = self.chunks.plan, 1.0, self.chunks.plan.first_stop(None)
        for count in range(2, passes + 1):
            self.begin()
            before, reached, at_first = 0, rest, rest
            while True:
                self.advance(stop)
                rest = float(largest_relative(self.known["left"], self.sizes))
                if not rest <= tolerance and not self.measured:
                    self.measure()
                    rest = float(largest_relative(self.known["left"], self.sizes))
                stop, now = plan.steps - self.at, rest
                if self.at == 0 or rest <= tolerance:
                    found = self.result(count, fading.cpu())
                    now = float(found.relative)
                    if now <= tolerance:  # NaN is not
                        return found
                if self.at == 0:
                    break
                following = plan.next_stop(None, (before, reached), (stop, now), tolerance)
                before, reached, stop = stop, now, following
            gap, wider = float(self.known["left"].amax()), float(self.known["arriving"].amax())
            if not promising(wider, gap, now, tolerance, passes - count):
                return None
            stop = plan.first_stop_again(None, at_first, rest, tolerance)
        return None


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
