"""The states of all chunks: passes until what a warm-up left of the error is proved to be small."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.audit import Audit, contradiction
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, Path, apart, together
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms
from lipschitz_rnn.ops.lipschitz.parallel.known import Known, largest_relative, only_rounding, passed_on, promising
from lipschitz_rnn.ops.lipschitz.parallel.line import Line


class Solution(NamedTuple):
    """States of all chunks, and what is known of their error.

    Every chunk begins where the one before ended, and joins the states of an earlier pass after ``joined_at`` steps.
    The numbers are those of the chunks of all processes, on the host unless nothing could wait for them.

    Attributes:
        ends: (S, K, B, N).
        errors: (S, K, B) in float64: bounds on the error of each chunk's first state in the metric; zero where nothing
            is proved.
        jumps: (S, K, B), how far apart the states are where they join.
        joined_at: the step of that; the length of a chunk if there is no such place.
        fading: (S, K, B): by what each chunk multiplies an error at most.
        smallest: (S, 1, 1) or (S, K, B), such that ``smallest`` ‖h‖ ≤ ‖h‖_P.
        relative: the largest error, relative to the largest state of its sample.
        passes: how often the chunks were run; 0 if they were run one after another.
    """

    path: Path
    ends: Tensor
    errors: Tensor
    jumps: Tensor
    joined_at: int
    fading: Tensor
    smallest: Tensor
    relative: Tensor
    passes: int


def solve(
    chunks: Chunks,
    norms: Norms,
    proved: bool,
    tolerance: float,
    passes: int,
    fixed: bool,
    active: Tensor | None,
    keep: bool,
    save: bool,
    line: Line,
) -> Solution:
    """Run all chunks from zero, then again from the ends found, until they join what is there already.

    The first pass is a guess everywhere but in the first chunk. The second one begins each chunk where the one before
    ended; under the same input its states approach those of the first pass, so that it can stop after a while. This is
    the warm-up, with a length that the data decides. If the states are still apart at the end, there is a third pass.

    The host asks for everything that it decides from after the steps are on their way, and at once: see ``Known``.

    Args:
        passes: after so many the chunks are run one after another, unless ``fixed``.
        active: (S, B), the steps of each sample that count; None for all.
    """
    run = _Passes(chunks, norms, proved, fixed, active, Path.new(chunks, keep, save), line)
    return run.fixed(passes) if fixed else run.until(tolerance, passes)


class _Passes:
    """Runs all chunks, and knows how far each is from the pass before."""

    def __init__(
        self,
        chunks: Chunks,
        norms: Norms,
        proved: bool,
        fixed: bool,
        active: Tensor | None,
        path: Path,
        line: Line,
    ) -> None:
        """The first pass: a guess. All that it does not need is asked for after it is on its way."""
        K, C = chunks.plan.chunks, chunks.plan.steps
        self.chunks, self.norms, self.path, self.line = chunks, norms, path, line
        path.start.zero_()
        if line.rank == 0 and chunks.problem.h0 is not None:
            apart(path.start, K)[:, 0] = chunks.problem.h0
        path.ends = chunks.advance(path.start, 0, C, path)
        self.known = known = Known(chunks, norms, proved, fixed, line)
        self.audit = Audit(chunks, norms, path, known.factors) if proved else None
        sizes = apart(norms.size(path.ends), K)
        known.add(guessed=sizes, sizes=sizes, smallest=norms.smallest.reshape(-1, 1, 1))
        self.some_end = active is not None
        if active is not None:
            known.add(counted=counted_chunks(active, K, C))
        self.at, self.state = 0, path.start

    def begin(self) -> None:
        """Another pass: each chunk begins where the one before ended."""
        start, ends = (apart(rows, self.chunks.plan.chunks) for rows in (self.path.start, self.path.ends))
        start[:, 1:] = ends[:, :-1]
        if self.line.size > 1:
            of_others = self.line.gathered(ends[:, -1])
            if self.line.rank > 0:
                start[:, 0] = of_others[self.line.rank - 1]
        self.at, self.state = 0, self.path.start

    def advance(self, stop: int) -> None:
        """Steps of all chunks, and how far they end from where they did in the pass before."""
        path, norms, K, first = self.path, self.norms, self.chunks.plan.chunks, self.at == 0
        before = path.before(stop, self.chunks).to(torch.float64, copy=True)  # its place is written again
        self.state = self.chunks.advance(self.state, self.at, stop, path)
        self.at = stop
        self.known.add(jumps=apart(norms.size(before - self.state), K))
        if self.audit is not None and first:
            self.known.add(excess=self.audit.compare(path))
        if stop == self.chunks.plan.steps:
            path.ends = self.state
            self.known.add(sizes=apart(norms.size(path.ends), K))

    @property
    def jumps(self) -> Tensor:
        """How far the states are from those of the pass before, (S, K, B); zero beyond a sample's end."""
        jumps = self.known["jumps"]
        return torch.where(self.known["counted"] > 0.0, jumps, 0.0) if self.some_end else jumps

    @property
    def sizes(self) -> Tensor:
        """The largest state of each sample at the ends of its chunks, (S, B)."""
        return self.known["sizes"].amax(1)

    def _gap(self, name: str) -> float:
        """The largest of such numbers that reaches another chunk, in which steps count."""
        reaching = self.known[name][:, :-1]
        if self.some_end:
            reaching = torch.where(self.known["counted"][:, 1:] > 0.0, reaching, 0.0)
        return float(reaching.amax())

    def contradicted(self) -> Tensor:
        """Whether a distance did not shrink as the factor says, a tensor (); asked once, after the first steps."""
        audit, self.audit = self.audit, None
        assert audit is not None
        above = self.known["excess"] > 0.0
        if self.known.fixed or bool(above.any()):
            self.known.add(rounding=audit.rounding())
            above = self.known["excess"] > self.known["rounding"]
        return above.any()

    def result(self, passes: int) -> Solution:
        """What is proved of the states as they are, if the pass ends here."""
        known, jumps, C = self.known, self.jumps, self.chunks.plan.steps
        fading = known.fading(0, C)
        if self.at == C:
            errors, jumps = passed_on(fading, jumps), torch.zeros_like(jumps)
        else:
            errors = passed_on(fading, known.fading(self.at, C) * jumps)
        relative = largest_relative(errors + jumps, self.sizes)
        ends = apart(self.path.ends, self.chunks.plan.chunks)
        return Solution(self.path, ends, errors, jumps, self.at, fading, known["smallest"], relative, passes)

    def fixed(self, passes: int) -> Solution:
        """So many passes, the last of the warm-up alone. Nothing waits."""
        plan, contradicted = self.chunks.plan, torch.zeros((), dtype=torch.bool, device=self.path.ends.device)
        for count in range(2, passes + 1):
            self.begin()
            self.advance(plan.first_stop(self.chunks.every) if count == passes else plan.steps)
            contradicted = self.contradicted() if self.audit is not None else contradicted
        found = self.result(passes)
        unknown = contradicted | found.relative.isnan()  # a comparison with NaN would pass a caller's check
        return found._replace(relative=torch.where(unknown, torch.inf, found.relative))

    def until(self, tolerance: float, passes: int) -> Solution:
        """Passes until the tolerance is met; else one chunk after another."""
        plan, every = self.chunks.plan, self.chunks.every
        gap, jump, stop = 0.0, 1.0, plan.first_stop(every)  # a guess is off by the state itself
        for count in range(2, passes + 1):
            self.begin()
            begin, reached, at_first = 0, jump, jump
            while True:
                self.advance(stop)
                jump = float(largest_relative(self.jumps, self.sizes))
                if self.audit is not None and self.contradicted():
                    raise contradiction(self.norms)
                now = jump
                if stop == plan.steps or jump <= tolerance:
                    if stop < plan.steps and self.path.keep:
                        self.path.join()  # under way while the host adds up
                    found = self.result(count)
                    now = float(found.relative)
                    if now <= tolerance:  # NaN is not
                        return found
                if stop == plan.steps:
                    break
                begin, reached, stop = stop, now, plan.next_stop(every, (begin, reached), (stop, now), tolerance)
            gap, wider = self._gap("jumps"), gap if count > 2 else self._gap("guessed")
            if not promising(wider, gap, now, tolerance, passes - count):
                break
            stop = plan.first_stop_again(every, at_first, jump, tolerance)
        if only_rounding(found.fading, found.relative, tolerance, self.chunks.cut.A.dtype):
            return found
        return self.in_turn()

    def in_turn(self) -> Solution:
        """The sequential scan: one chunk after another, one process after another."""
        state = self.chunks.problem.initial_state()
        ends = state.unsqueeze(1).expand(-1, self.chunks.plan.chunks, -1, -1)
        for rank in range(self.line.size):
            if rank == self.line.rank:
                ends = self.chunks.run_in_turn(self.path, state)
            state = self.line.gathered(ends[:, -1])[rank]
        self.path.ends = together(ends)
        steps, fading = self.chunks.plan.steps, self.known.fading(0, self.chunks.plan.steps)
        zero = torch.zeros_like(fading)
        known = (fading, self.known["smallest"], zero.new_zeros(()))
        return Solution(self.path, ends, zero, zero, steps, *known, passes=0)


def counted_chunks(active: Tensor, chunks: int, steps: int) -> Tensor:
    """Which chunks have a step that counts, (S, K, B)."""
    first = torch.arange(chunks, device=active.device) * steps
    return first[None, :, None] < active.unsqueeze(1)
