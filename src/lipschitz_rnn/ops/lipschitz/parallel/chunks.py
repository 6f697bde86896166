"""A problem cut into chunks that lie beside each other in the batch, run forwards and backwards on any backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.ops.lipschitz.operators import backend_module, new_tape
from lipschitz_rnn.ops.lipschitz.parallel.plan import Plan
from lipschitz_rnn.ops.lipschitz.problem import Problem

Gradients = list[Tensor | None]
DRIVE, STEPS = 0, 6  # the tensors of a problem that have a time axis


def beside(tensor: Tensor, chunks: int) -> Tensor:
    """(S, K·C, B, …) → (S, C, B·K, …), the chunks of a sample next to each other.

    A view where strides can express it: for one sample, and where time is the inner axis (``batch_first`` inputs).
    """
    S, T, B = tensor.shape[:3]
    cut = tensor.unflatten(1, (chunks, T // chunks)).movedim(1, 3)
    return _reshaped(cut, (S, T // chunks, B * chunks, *tensor.shape[3:]))


def joined(tensor: Tensor, chunks: int) -> Tensor:
    """The inverse of ``beside``."""
    S, C, rows = tensor.shape[:3]
    cut = tensor.unflatten(2, (rows // chunks, chunks)).movedim(3, 1)
    return _reshaped(cut, (S, C * chunks, rows // chunks, *tensor.shape[3:]))


def _reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """As ``reshape``. What must be copied moves 16 bytes at a time where it can: a GPU is slow at single numbers."""
    item, places = tensor.element_size(), (*tensor.stride()[:-1], tensor.storage_offset(), tensor.shape[-1])
    if not has_values(tensor) or tensor.stride(-1) != 1 or any(place * item % 16 for place in places):
        return tensor.reshape(shape)
    wide = tensor.view(torch.complex128)
    return wide.reshape((*shape[:-1], wide.shape[-1])).view(tensor.dtype)


def apart(rows: Tensor, chunks: int) -> Tensor:
    """(S, B·K, …) → (S, K, B, …)."""
    return rows.unflatten(1, (rows.shape[1] // chunks, chunks)).transpose(1, 2)


def together(chunked: Tensor) -> Tensor:
    """The inverse of ``apart``, contiguous."""
    S, K, B = chunked.shape[:3]
    return chunked.transpose(1, 2).reshape(S, B * K, *chunked.shape[3:])


@dataclass(frozen=True)
class Chunks:
    """The chunks of a problem as one batch.

    Attributes:
        problem: the whole one, lifted, of K·C steps.
        cut: the same with (S, C, B·K, ·) in the place of (S, T, B, ·), without its first state.
        every: the backward pass keeps one state in this many and computes the others again; None keeps all.
    """

    problem: Problem
    cut: Problem
    plan: Plan
    backend: str
    every: int | None

    @classmethod
    def of(cls, problem: Problem, plan: Plan, backend: str, every: int | None) -> Chunks:
        K = plan.chunks
        timespans = None if problem.timespans is None else beside(problem.timespans, K)
        cut = replace(problem, drive=beside(problem.drive, K), h0=None, timespans=timespans)
        return cls(problem, cut, plan, backend, every)

    def steps(self, first: int, stop: int, start: Tensor | None, rows: slice | None = None) -> Problem:
        """The problem of some steps of all chunks, or of some rows, from the state ``start`` (S, rows, N)."""
        drive, spans = self.cut.drive[:, first:stop], self.cut.timespans
        spans = None if spans is None else spans[:, first:stop]
        if rows is not None:
            drive, spans = drive[:, :, rows], None if spans is None else spans[:, :, rows]
        return replace(self.cut, drive=drive, h0=start, timespans=spans)

    def chunk(self, number: int) -> slice:
        """The rows of one chunk of all samples."""
        return slice(number, None, self.plan.chunks)

    def states_of(self, problem: Problem) -> Tensor:
        """All states of a problem, (S, T, rows, N)."""
        tape = self._new_tape(problem, True, False)
        self._forward(problem, tape, True, False)
        return tape[:, :, 0]

    def advance(self, state: Tensor, first: int, stop: int, path: Path, rows: slice | None = None) -> Tensor:
        """Some steps of all chunks, or of some rows, from a state (S, rows, N): the state after them.

        What they leave for the caller and for the backward pass is written to ``path``.
        """
        chosen, path.joined = slice(None) if rows is None else rows, None
        for begin, end in self.pieces(first, stop):
            if begin % (self.every or self.plan.steps) == 0 and state is not path.start:
                path.kept[begin // (self.every or self.plan.steps)][:, chosen] = state
            problem = self.steps(begin, end, state, rows)
            if path.keep or path.saved:
                state = self._forward(problem, path.tape[:, begin:end, :, chosen], True, path.saved)
            else:
                state = self._forward(problem, self._new_tape(problem, False, False), False, False)
        return state

    def run_in_turn(self, path: Path, state: Tensor) -> Tensor:
        """One chunk after another, from a state (S, B, N), the sequential scan: their ends, (S, K, B, N)."""
        ends = []
        for number in range(self.plan.chunks):
            state = self.advance(state, 0, self.plan.steps, path, self.chunk(number))
            ends.append(state)
        return torch.stack(ends, dim=1)

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """First step and end of each piece that is run at once; steps in between are marks of ``every``."""
        while first < stop:
            end = stop if self.every is None else min(stop, (first // self.every + 1) * self.every)
            yield first, end
            first = end

    def backward(
        self,
        path: Path,
        incoming: Tensor | None,
        adjoint: Tensor,
        needs: Sequence[bool],
        first: int,
        stop: int,
        rows: slice | None = None,
    ) -> Gradients:
        """Gradients of the tensors of ``cut`` over some steps, from the adjoint (S, rows, N) after them.

        That of the first state is always there; those with a time axis are of these steps.

        Args:
            incoming: (S, C, B·K, N), the gradient of every state; None for zeros.
        """
        total: Gradients = [None] * len(needs)
        timed: list[Sequence[Tensor | None]] = []
        chosen = slice(None) if rows is None else rows
        needed = [*needs[:3], True, *needs[4:]]
        for begin, end in reversed(list(self.pieces(first, stop))):
            problem = self.steps(begin, end, path.before(begin, self)[:, chosen], rows)
            if path.saved:
                part = path.tape[:, begin:end, :, chosen]
            else:
                part = self._new_tape(problem, True, True)
                self._forward(problem, part, True, True)
            if self.backend == "triton":
                part = part.contiguous()
            grads = None if incoming is None else incoming[:, begin:end, chosen]
            found = backend_module(self.backend).backward(problem, part, grads, adjoint.contiguous(), needed)
            adjoint = found[3]
            timed.append((found[DRIVE], found[STEPS]))
            for place in (1, 2, 4, 5):
                if found[place] is not None and needs[place]:
                    so_far = total[place]
                    total[place] = found[place] if so_far is None else so_far + found[place]
        total[3] = adjoint
        for place, among in ((DRIVE, 0), (STEPS, 1)):
            if needs[place]:
                parts = [found[among] for found in reversed(timed)]
                total[place] = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)  # type: ignore[arg-type]
        return total

    def _new_tape(self, problem: Problem, keep: bool, save: bool) -> Tensor:
        return new_tape(problem.A, problem.shape, problem.scheme.tableau.name, keep, save, self.backend)

    def _forward(self, problem: Problem, tape: Tensor, keep: bool, save: bool) -> Tensor:
        if self.backend == "triton" and not tape.is_contiguous():
            fresh = torch.empty_like(tape, memory_format=torch.contiguous_format)
            last = backend_module(self.backend).forward(problem, fresh, keep, save)
            tape.copy_(fresh)
            return last
        return backend_module(self.backend).forward(problem, tape, keep, save)


class Path:
    """The states of all chunks, for the caller and for the backward pass.

    Attributes:
        tape: (S, C, slots, B·K, N): slot 0 the states, if they are kept; the others σ, if it is saved.
        kept: (marks, S, B·K, N), the states before every ``Chunks.every``-th step, from which others are recomputed.
        start: (S, B·K, N), the first of them.
        ends: (S, B·K, N), the last states.
        joined: all states in the order of time, if they are there.
    """

    def __init__(self, chunks: Chunks, memory: Tensor, kept: Tensor, keep: bool, save: bool) -> None:
        self.memory, self.kept, self.keep = memory, kept, keep
        self.saved = save and chunks.every is None
        self.tape = as_tape(memory, chunks)
        self.start = self.ends = kept[0]
        self.joined: Tensor | None = None
        self._chunks = chunks.plan.chunks

    @classmethod
    def new(cls, chunks: Chunks, keep: bool, save: bool) -> Path:
        S, C, rows, N = chunks.cut.shape
        kept = chunks.cut.A.new_empty((-(-C // (chunks.every or C)), S, rows, N))
        return cls(chunks, new_memory(chunks, keep, save), kept, keep, save)

    def join(self) -> Tensor:
        """All states in the order of time, (S, T, B, N): a view where time lies in order, as on a CPU."""
        if self.joined is None:
            self.joined = joined(self.tape[:, :, 0], self._chunks)
        return self.joined

    def before(self, step: int, chunks: Chunks) -> Tensor:
        """The state before a step: a mark, or any if the states are kept; (S, B·K, N)."""
        if step == chunks.plan.steps:
            return self.ends
        every = chunks.every or chunks.plan.steps
        return self.kept[step // every] if step % every == 0 else self.tape[:, step - 1, 0]


def new_memory(chunks: Chunks, keep: bool, save: bool) -> Tensor:
    """Contiguous memory for the states of all chunks, with slots for σ if the backward pass needs them.

    The CPU's kernels write through any strides: there, time lies in order, (S, B, K, C, slots, N), and the states need
    no copy. A GPU's need (S, C, slots, B·K, N).
    """
    problem, plan = chunks.cut, chunks.plan
    S, C, rows, N = problem.shape
    save = save and chunks.every is None
    if not (keep or save):
        return problem.A.new_empty(0)
    stages = len(problem.scheme.tableau)
    if chunks.backend == "triton":
        return problem.A.new_empty((S, C, 2 * stages if save else 1, rows, N))
    slots = 1 + stages if save and chunks.backend != "reference" else 1
    return problem.A.new_empty((S, rows // plan.chunks, plan.chunks, C, slots, N))


def as_tape(memory: Tensor, chunks: Chunks) -> Tensor:
    """Memory as backends take it, (S, C, slots, B·K, N)."""
    if memory.dim() == 1:
        S, _, rows, N = chunks.cut.shape
        return memory.reshape(S, 0, 1, rows, N)
    if chunks.backend == "triton":
        return memory
    return memory.permute(0, 3, 4, 1, 2, 5).flatten(3, 4)
