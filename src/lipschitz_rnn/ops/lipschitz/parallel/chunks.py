"""A problem cut into chunks that lie beside each other in the batch, run forwards and backwards on any backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
    return cut.reshape(S, T // chunks, B * chunks, *tensor.shape[3:])


def joined(tensor: Tensor, chunks: int) -> Tensor:
    """The inverse of ``beside``."""
    S, C, rows = tensor.shape[:3]
    cut = tensor.unflatten(2, (rows // chunks, chunks)).movedim(3, 1)
    return cut.reshape(S, C * chunks, rows // chunks, *tensor.shape[3:])


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

    def warm_up(self) -> Tensor:
        """The first states of all chunks, (S, K, B, N): the problem's own, then what a warm-up from zero leads to."""
        plan, own = self.plan, self.problem.initial_state().unsqueeze(1)
        S, K, B, N = own.shape[0], plan.chunks, own.shape[2], own.shape[3]
        if plan.warm_up == 0:
            return torch.cat((own, own.new_zeros(S, K - 1, B, N)), dim=1)
        ends = self.last_of(self.before_chunks(0, plan.warm_up, None))
        return torch.cat((own, apart(ends, K - 1)), dim=1)

    def before_chunks(self, first: int, stop: int, start: Tensor | None) -> Problem:
        """The problem of some steps of the warm-ups of all chunks but the first, (S, ·, B·(K−1), ·)."""
        plan, K = self.plan, self.plan.chunks
        begin = plan.steps - plan.warm_up

        def rows(tensor: Tensor) -> Tensor:
            some = tensor[:, begin + first : begin + stop]
            some = some.unflatten(2, (some.shape[2] // K, K))[:, :, :, : K - 1]
            return some.reshape(*some.shape[:2], -1, *some.shape[4:])

        spans = None if self.cut.timespans is None else rows(self.cut.timespans)
        return replace(self.cut, drive=rows(self.cut.drive), h0=start, timespans=spans)

    def last_of(self, problem: Problem) -> Tensor:
        """The last state of a problem, (S, rows, N), with nothing kept of the way."""
        return self._forward(problem, self._new_tape(problem, False, False), False, False)

    def states_of(self, problem: Problem) -> Tensor:
        """All states of a problem, (S, T, rows, N)."""
        tape = self._new_tape(problem, True, False)
        self._forward(problem, tape, True, False)
        return tape[:, :, 0]

    def run(self, starts: Tensor, tape: Tensor, keep: bool, save: bool) -> tuple[Tensor, Tensor]:
        """All chunks from their first states (S, K, B, N): their ends, likewise, and the states kept for the way back.

        Those are (pieces, S, B·K, N), before each piece of ``every`` steps. The tape is filled unless it is to be
        computed again.
        """
        state, kept = together(starts), []
        for first, stop in self.pieces():
            kept.append(state)
            problem = self.steps(first, stop, state)
            if self.every is None or not save:
                part = tape[:, first:stop] if keep or save else tape
                state = self._forward(problem, part, keep or save, save)
            else:
                state = self._forward(problem, tape[:, first:stop], True, False) if keep else self.last_of(problem)
        return apart(state, self.plan.chunks), torch.stack(kept)

    def run_in_turn(self, tape: Tensor, keep: bool, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """One chunk after another, the sequential scan: first states, ends, and the states kept."""
        state, starts, ends, kept = self.problem.initial_state(), [], [], []
        for number in range(self.plan.chunks):
            rows, before = self.chunk(number), []
            starts.append(state)
            for first, stop in self.pieces():
                before.append(state)
                problem = self.steps(first, stop, state, rows)
                if (self.every is None and save) or keep:
                    write_activations = save and self.every is None
                    part = self._new_tape(problem, True, write_activations)
                    state = self._forward(problem, part, True, write_activations)
                    tape[:, first:stop, :, rows] = part
                else:
                    state = self.last_of(problem)
            ends.append(state)
            kept.append(torch.stack(before))
        whole = torch.stack(kept, dim=3).flatten(2, 3)
        return torch.stack(starts, dim=1), torch.stack(ends, dim=1), whole

    def pieces(self, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """First step and end of each piece that the backward pass takes at once."""
        length = self.plan.steps if stop is None else stop
        every = self.every or length
        for first in range(0, length, every):
            yield first, min(length, first + every)

    def backward(
        self,
        kept: Tensor,
        tape: Tensor,
        incoming: Tensor | None,
        at_ends: Tensor,
        needs: Sequence[bool],
        stop: int | None = None,
        rows: slice | None = None,
    ) -> Gradients:
        """Gradients of the tensors of ``cut``, that of the first states (S, rows, N), from the adjoint at the ends.

        Args:
            kept, tape: from ``run``.
            incoming: (S, C, B·K, N), the gradient of every state.
            at_ends: (S, rows, N).
            stop: only this many first steps, from whose end the adjoint comes.
            rows: only these.
        """
        total: Gradients = [None] * len(needs)
        timed: list[Gradients] = []
        adjoint = at_ends
        chosen = slice(None) if rows is None else rows
        needed = [*needs[:3], True, *needs[4:]]
        for number, (first, end) in reversed(list(enumerate(self.pieces(stop)))):
            problem = self.steps(first, end, kept[number][:, chosen], rows)
            if self.every is None:
                part = tape[:, first:end, :, chosen]
            else:
                part = self._new_tape(problem, True, True)
                self._forward(problem, part, True, True)
            grads = None if incoming is None else incoming[:, first:end, chosen]
            if self.backend == "triton":
                part = part.contiguous()
            found = backend_module(self.backend).backward(problem, part, grads, adjoint.contiguous(), needed)
            adjoint = found[3]
            timed.append([found[DRIVE], found[STEPS]])
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
