"""Bounds on the error of every gradient of a parallel scan. The derivation is in ``docs/theory.md``.

A step's contribution to a gradient is G(h)ᵀλ, with the derivative G of the step and the adjoint λ. If state and adjoint
are wrong by e and f, it is wrong by at most R f + R′ e ‖λ‖, where R bounds ‖G‖ and R′ how fast G changes with h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.lengths import length_of
from lipschitz_rnn.ops.lipschitz.parallel.adjoint import Adjoint
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, Path
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate, accumulate_back, largest_each
from lipschitz_rnn.ops.lipschitz.problem import Problem

# The largest |σ″|; relu has none, because its slope jumps.
CURVATURE = {"tanh": 4.0 / (3.0 * 3.0**0.5), "sigmoid": 1.0 / (6.0 * 3.0**0.5), "identity": 0.0}


def obstacle(problem: Problem) -> str:
    """Why there is no bound; empty if there is one."""
    name = problem.scheme.nonlinearity
    return "" if name in CURVATURE else f"the slope of {name} jumps, so that a small error of a state can change it"


@dataclass(frozen=True)
class Sensitivity:
    """R and R′ of a step of the longest length, tensors that broadcast against (S, K, C, B)."""

    size: Tensor
    change: Tensor


class StepConstants:
    """Norms of the recurrence in the metric, and what follows for the derivatives of one step."""

    def __init__(self, problem: Problem, norms: Norms, sizes: Tensor) -> None:
        """``sizes`` bounds ‖h‖_P of the exact state before each step, (S, K, C, B)."""
        scheme, shape = problem.scheme, (-1, 1, 1, 1)
        W = problem.W.detach().double()
        low, high = (value.reshape(shape) for value in norms.extremes)
        self.low, self.high = low, high
        skewed = torch.ones_like(high) if norms.diagonal else high / low  # ‖D‖_P for a diagonal |D| ≤ 1
        rows = W / norms.root.unsqueeze(-2) if norms.diagonal else W @ norms.inverse
        self.steepest = torch.linalg.vector_norm(rows, dim=-1).amax(-1).reshape(shape)  # |w_i h| ≤ this · ‖h‖_P
        linear = norms.operator_norm(scheme.alpha * problem.A).reshape(shape)
        wide = norms.operator_norm(W).reshape(shape)
        self.slope, self.curvature = (
            scheme.sigma.lipschitz * skewed,
            CURVATURE.get(scheme.nonlinearity, math.inf) * skewed,
        )
        self.field = linear + self.slope * wide  # ‖f′‖
        self.bend = self.curvature * self.steepest * wide  # how fast f′ changes
        self.step, self.tableau, self.alpha = norms.longest, scheme.tableau, abs(scheme.alpha)
        rest = _resting(problem, norms)
        self.states: list[Tensor] = []  # ‖H_i‖ of every stage
        self.slopes: list[Tensor] = []  # ‖k_i‖
        self.spread: list[Tensor] = []  # how fast H_i changes with h
        for row in self.tableau.stages:
            self.states.append(sizes + self.step * _weighted(row, self.slopes, sizes))
            self.slopes.append(self.field * self.states[-1] + rest)
            self.spread.append(1.0 + self.step * self.field * _weighted(row, self.spread, self.field))

    def of_state(self) -> Sensitivity:
        """Of the state itself: its R is the contraction factor, only R′ is used."""
        zero = torch.zeros_like(self.field)
        return self._through_stages([zero] * len(self.tableau), [zero] * len(self.tableau), start=1.0)

    def of_drive(self) -> Sensitivity:
        changes = [self.curvature * self.steepest * spread for spread in self.spread]
        return self._through_stages([self.slope] * len(self.tableau), changes)

    def of_W(self) -> Sensitivity:
        ratio = self.high / self.low
        sizes = [self.slope * ratio * state for state in self.states]
        changes = [
            ratio * spread * (self.curvature * self.steepest * state + self.slope)
            for spread, state in zip(self.spread, self.states, strict=True)
        ]
        return self._through_stages(sizes, changes)

    def of_A(self) -> Sensitivity:
        ratio = self.alpha * self.high / self.low
        return self._through_stages([ratio * state for state in self.states], [ratio * s for s in self.spread])

    def of_step(self) -> Sensitivity:
        zero = [torch.zeros_like(self.field)] * len(self.tableau)
        found = self._through_stages(zero, zero, timed=True)
        weights = self.tableau.weights
        moved = [self.field * spread for spread in self.spread]
        return Sensitivity(
            found.size + _weighted(weights, self.slopes, self.field),
            found.change + _weighted(weights, moved, self.field),
        )

    def _through_stages(
        self, sources: Sequence[Tensor], changes: Sequence[Tensor], start: float = 0.0, timed: bool = False
    ) -> Sensitivity:
        """A derivative that enters each stage's slope by a source of some size, which changes so fast with h."""
        sizes: list[Tensor] = []
        moves: list[Tensor] = []
        for i, row in enumerate(self.tableau.stages):
            reached = start + self.step * _weighted(row, sizes, self.field)
            moved = self.step * _weighted(row, moves, self.field)
            if timed:
                reached = reached + _weighted(row, self.slopes, self.field)
                moved = moved + self.field * _weighted(row, self.spread, self.field)
            sizes.append(self.field * reached + sources[i])
            moves.append(self.bend * self.spread[i] * reached + self.field * moved + changes[i])
        weights = self.tableau.weights
        return Sensitivity(
            self.step * _weighted(weights, sizes, self.field), self.step * _weighted(weights, moves, self.field)
        )


def gradient_bounds(
    chunks: Chunks,
    norms: Norms,
    of_states: tuple[Tensor, Tensor, int],
    fading: Tensor,
    path: Path,
    found: Adjoint,
    grad_states: Tensor | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Bounds on the Euclidean norm of the error of every gradient, and on that of each first state's, (S, B), in P⁻¹.

    ``of_states`` are the errors, jumps and the place of the jumps of ``Solution``, and ``fading`` its factors.
    """
    problem, K = chunks.cut, chunks.plan.chunks
    S, C, rows, _ = problem.shape
    share = step_shares(problem, norms, K)
    factors = 1.0 - share * (1.0 - norms.factor.unsqueeze(-1))
    before = torch.cat((path.kept[0].unsqueeze(1), path.tape[:, :-1, 0]), dim=1)
    *numbers, place = of_states
    errors, jumps, fading, of_adjoint, left = (
        number.to(norms.root.device) for number in (*numbers, fading, found.errors, found.left)
    )
    made = torch.zeros_like(factors)
    made[:, :, 0] = errors
    if place < C:
        made[:, :, place] += jumps
    earlier = torch.cat((torch.ones_like(factors[:, :, :1]), factors[:, :, :-1]), dim=2)
    wrong = accumulate(earlier, made)  # of the state before each step
    constants = StepConstants(problem, norms, timed(norms.size(before), K) + wrong)

    arriving = norms.root.new_zeros((S, K, C, rows // K))
    if grad_states is not None:
        arriving += norms.dual_size(grad_states).unflatten(1, (K, C))
    last = torch.zeros_like(arriving)
    last[:, :, -1] = 1.0
    later = torch.cat((factors[:, :, 1:], torch.ones_like(factors[:, :, :1])), dim=2)
    adjoint = accumulate_back(later, arriving + last * norms.dual_size(found.at_ends).unsqueeze(2))

    bend = share * constants.of_state().change * wrong * adjoint  # enters the adjoint at each step, from the right
    after = torch.cat((bend[:, :, 1:], torch.zeros_like(bend[:, :, :1])), dim=2)
    own = accumulate_back(later, after)
    of_first = factors[:, :, 0] * own[:, :, 0] + bend[:, :, 0]  # what a chunk hands to the one before
    handed = torch.cat((of_first[:, 1:], torch.zeros_like(of_first[:, :1])), dim=1)
    ahead = torch.cat((fading[:, 1:], torch.ones_like(fading[:, :1])), dim=1)
    at_ends = of_adjoint + accumulate_back(ahead, handed)
    made = last * at_ends.unsqueeze(2)
    if found.left_at > 0:
        made[:, :, found.left_at - 1] += left
    off = own + accumulate_back(later, made)  # error of the adjoint after each step
    first = factors[:, 0, 0] * off[:, 0, 0] + bend[:, 0, 0]
    return _summed(problem, norms, constants, share, off, wrong * adjoint, K), first


def head_bounds(problem: Problem, norms: Norms, states: Tensor, first: Tensor) -> dict[str, Tensor]:
    """What the steps before the chunks add: exact states, and the error ``first`` of the adjoint that comes back."""
    before = torch.cat((problem.initial_state().unsqueeze(1), states[:, :-1]), dim=1)
    constants = StepConstants(problem, norms, timed(norms.size(before), 1))
    share = step_shares(problem, norms, 1)
    off = first[:, None, None].expand_as(share)
    return _summed(problem, norms, constants, share, off, torch.zeros_like(off), 1)


def _summed(
    problem: Problem, norms: Norms, constants: StepConstants, share: Tensor, off: Tensor, moved: Tensor, chunks: int
) -> dict[str, Tensor]:
    """Sums over all steps: ``off`` is the adjoint's error, ``moved`` the state's times the adjoint, (S, K, C, B)."""

    def each(part: Sensitivity) -> Tensor:
        return part.size * off + part.change * moved

    high = norms.extremes[1]
    drive = share * each(constants.of_drive())
    result = {
        "A": _norm((share * each(constants.of_A())).sum((1, 2, 3))),
        "W": _norm((share * each(constants.of_W())).sum((1, 2, 3))),
        "hx": _norm(high.unsqueeze(-1) * off[:, 0, 0]),
        "step_size": _norm(each(constants.of_step())),
    }
    if problem.input_weight is None:
        result["u"] = _norm(high.reshape(-1, 1, 1, 1) * drive)
        return result
    x = timed(length_of(problem.drive.detach().double()), chunks)
    U = problem.input_weight.detach().double()
    seen = norms.root.unsqueeze(-1) * U if norms.diagonal else norms.root @ U
    result["x"] = _norm(torch.linalg.matrix_norm(seen, ord=2).reshape(-1, 1, 1, 1) * drive)
    result["input_weight"] = _norm(high * (drive * x).sum((1, 2, 3)))
    result["bias"] = _norm(high * drive.sum((1, 2, 3)))
    return result


def timed(values: Tensor, chunks: int) -> Tensor:
    """(S, C, B·K) → (S, K, C, B)."""
    return values.unflatten(2, (values.shape[2] // chunks, chunks)).permute(0, 3, 1, 2)


def step_shares(problem: Problem, norms: Norms, chunks: int) -> Tensor:
    """Each step as a part of the longest, (S, K, C, B)."""
    S, C, rows, _ = problem.shape
    steps = norms.root.new_full((S, C, rows), problem.scheme.step_size)
    steps = steps if problem.timespans is None else problem.timespans.detach().double()
    return timed((steps / norms.longest).clamp(0.0, 1.0), chunks)


def drive_sensitivity(problem: Problem, norms: Norms) -> float:
    """R of the drive: how far a step moves the state per ‖δu‖_P; the largest over the networks."""
    sizes = norms.root.new_zeros((problem.A.shape[0], 1, 1, 1))
    return float(StepConstants(problem, norms, sizes).of_drive().size.max()) * (1.0 + 1e-9)


def _resting(problem: Problem, norms: Norms) -> Tensor:
    """A bound on ‖σ(u)‖_P, (S, 1, 1, 1), and of ‖σ(W h + u)‖_P beyond what W h adds."""
    S, N = problem.A.shape[0], problem.A.shape[-1]
    high = norms.extremes[1]
    ones = torch.linalg.vector_norm(norms.root, dim=-1) if norms.diagonal else high * N**0.5
    if problem.scheme.nonlinearity != "identity":
        return ones.reshape(-1, 1, 1, 1)
    x = problem.drive.detach().double()
    if problem.input_weight is None:
        return largest_each(norms.size(x)).reshape(-1, 1, 1, 1)
    U = problem.input_weight.detach().double()
    seen = norms.root.unsqueeze(-1) * U if norms.diagonal else norms.root @ U
    largest = torch.linalg.matrix_norm(seen, ord=2) * largest_each(length_of(x))
    if problem.bias is not None:
        largest = largest + norms.size(problem.bias.unsqueeze(1)).squeeze(1)
    return largest.reshape(S, 1, 1, 1)


def _weighted(row: Sequence[float], values: Sequence[Tensor], like: Tensor) -> Tensor:
    """Σ |cⱼ| vⱼ, zero for an empty row."""
    total = torch.zeros_like(like)
    for coefficient, value in zip(row, values, strict=False):
        total = total + abs(coefficient) * value
    return total


def _norm(values: Tensor) -> Tensor:
    return length_of(values.flatten()) * (1.0 + 1e-9)
