"""The recurrence at the speed of its matrix products, with a hand-written backward pass.

Compiled kernels (``cores``) run it where they can be compiled. What is here are PyTorch's operations, for all else.
Against the reference this saves the autograd graph, writes every result into memory that is already there, and
takes the weight gradients as a few large products instead of one small one per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.memory import signed
from lipschitz_rnn.ops.common.noise import MULTIPLICATIVE, draw_factor, draw_noise
from lipschitz_rnn.ops.lipschitz import single
from lipschitz_rnn.ops.lipschitz.adjoint import product_over_time, stage_states, step_gradient
from lipschitz_rnn.ops.lipschitz.cores import run as cores
from lipschitz_rnn.ops.lipschitz.cores import support
from lipschitz_rnn.ops.lipschitz.problem import Problem, needs_float64

CHUNK_ELEMENTS = 2**18  # a chunk stays within a few megabytes, in the cache

Gradients = tuple[Tensor | None, ...]


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (S, T, slots, B, N); returns the last state."""
    problem = problem.signed()
    if support.serves_forward(problem):
        return cores.forward(problem, tape, keep_states, save)
    if single.serves(problem):
        return single.forward(problem, tape, keep_states, save)
    if needs_float64(problem):
        wide_tape = torch.empty_like(tape, dtype=torch.float64)
        last = forward(problem.to(torch.float64), wide_tape, keep_states, save)
        tape.copy_(wide_tape)
        return last.to(tape.dtype)
    S, T, B, N = problem.shape
    scheme, tableau, apply_sigma = problem.scheme, problem.scheme.tableau, _in_place(problem.scheme.nonlinearity)
    squeeze = _squeezer(S)
    multiply_add = torch.addmm if S == 1 else torch.baddbmm
    A_t, W_t = squeeze(problem.A.mT * scheme.alpha), squeeze(problem.W.mT)

    # Slices of many steps are taken at once: one by one they would cost as much as the small products themselves.
    steps = None if problem.timespans is None else [squeeze(dt) for dt in problem.timespans.unsqueeze(-1).unbind(1)]
    rows = [[squeeze(slot) for slot in row.unbind(1)] for row in tape.unbind(1)]
    scratch = [squeeze(problem.A.new_empty(S, B, N)) for _ in range(3)]
    slope_rows = [squeeze(problem.A.new_empty(S, B, N)) for _ in tableau.stages]

    h = squeeze(problem.initial_state())
    chunk = chunk_length(problem)  # of u = U x + b, which stays in the cache until it is used
    for start in range(0, T, chunk):
        drives = [squeeze(u) for u in problem.expanded_drive(slice(start, start + chunk)).unbind(1)]
        disturbances = None if problem.noise is None else _noise_of_chunk(problem, start, len(drives), squeeze)
        for t, u in enumerate(drives, start):
            step: Tensor | float = scheme.step_size if steps is None else steps[t]
            slopes: list[Tensor] = []
            for i, row in enumerate(tableau.stages):
                operand = _advance(h, step, row, slopes) if any(row) else h
                s = apply_sigma(multiply_add(u, operand, W_t, out=rows[t][i + 1] if save else scratch[2]))
                slopes.append(multiply_add(s, operand, A_t, out=slope_rows[i]))
            # Without a tape two buffers take turns, because the new state is made from the old one.
            h = _advance(h, step, tableau.weights, slopes, out=rows[t][0] if keep_states else scratch[t % 2])
            if disturbances is not None:
                factor, added = disturbances[t - start]
                h.mul_(factor).add_(added)
    return h.reshape(S, B, N).clone()


def chunk_length(problem: Problem) -> int:
    """How many steps are taken together."""
    S, T, B, N = problem.shape
    return max(1, min(T, CHUNK_ELEMENTS // max(1, S * B * N)))


def backward(
    problem: Problem,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
) -> Gradients:
    """Gradients of ``problem.tensors``, None where ``needs`` says so, from the tape that ``forward`` wrote."""
    problem = problem.signed()
    tape, grad_states, grad_last = signed(tape, grad_states, grad_last)
    if support.serves(problem):
        return cores.backward(problem, tape, grad_states, grad_last, needs)
    if needs_float64(problem):
        wide = torch.float64
        grad_states, grad_last = (None if grad is None else grad.to(wide) for grad in (grad_states, grad_last))
        found = backward(problem.to(wide), tape.to(wide), grad_states, grad_last, needs)
        return tuple(None if gradient is None else gradient.to(tape.dtype) for gradient in found)
    S, T, B, N = problem.shape
    stages = len(problem.scheme.tableau)
    chunk = chunk_length(problem)

    tape = tape.permute(1, 2, 0, 3, 4)
    states, activations = tape[:, 0], tape[:, 1:]
    incoming = None if grad_states is None else grad_states.unbind(1)
    steps = problem.scheme.step_size if problem.timespans is None else problem.timespans.transpose(0, 1).unsqueeze(-1)
    # Euler steps of one size ε are taken in units of it: with κ = y instead of εy the sum y + ε(αAᵀy + Wᵀ(y ⊙ σ′)) is
    # one operation, and the gradients are multiplied by ε at the end.
    plain = stages == 1 and isinstance(steps, float)
    unit = problem.scheme.step_size if plain else 1.0
    # [αA; W], so that one product serves both
    weights = torch.cat((problem.A * problem.scheme.alpha, problem.W), dim=1) * unit
    initial = problem.initial_state()
    adjoint = torch.zeros_like(initial) if grad_last is None else grad_last.clone()

    outputs = _GradientSums(problem, needs, unit)
    multiplied = problem.noise is not None and bool((problem.noise[:, MULTIPLICATIVE] != 0.0).any())
    for start in range((T - 1) // chunk * chunk, -1, -chunk):
        stop = min(T, start + chunk)
        first = initial if start == 0 else states[start - 1]
        previous = torch.cat((first[None], states[start : stop - 1]))
        values = activations[start:stop]
        chunk_steps = steps if isinstance(steps, float) else steps[start:stop]
        stage, slopes = stage_states(problem, previous, values, chunk_steps, all_slopes=outputs.needs_steps)
        sigma_slopes = problem.scheme.sigma.slope_from_value(values).unbind(0)
        both = problem.A.new_empty(stop - start, stages, S, B, 2 * N)  # κ and d side by side
        both_rows = both.unbind(0)
        factors = _noise_factors(problem, start, stop) if multiplied else None
        if plain:
            arriving = None if incoming is None else incoming[start:stop]
            adjoint = _walk_euler(adjoint, both, sigma_slopes, weights, arriving, factors)
            outputs.collect(start, stop, both, stage)
            continue
        for t in range(stop - 1, start - 1, -1):
            if incoming is not None:
                adjoint.add_(incoming[t])
            if factors is not None:
                adjoint.mul_(factors[t - start])
            step = steps if isinstance(steps, float) else steps[t]
            c = t - start
            stage_adjoints = _walk_stages(problem, adjoint, step, both_rows[c], sigma_slopes[c], weights)
            if outputs.needs_steps:
                outputs.steps(t, step_gradient(problem, adjoint, stage_adjoints, [k[c] for k in slopes]))
            for eta in stage_adjoints.values():
                adjoint.add_(eta)
        outputs.collect(start, stop, both, stage)
    return outputs.finish(adjoint)


def _walk_euler(
    adjoint: Tensor,
    both: Tensor,
    sigma_slopes: Sequence[Tensor],
    weights: Tensor,
    incoming: Sequence[Tensor] | None,
    factors: Sequence[Tensor] | None,
) -> Tensor:
    """Back through the Euler steps of a chunk: y and y ⊙ σ′ of each into ``both``, (C, 1, S, B, 2N); returns ∂L/∂h."""
    S, N = adjoint.shape[0], adjoint.shape[-1]
    squeeze, multiply_add = _squeezer(S), torch.addmm if S == 1 else torch.baddbmm
    rows = [squeeze(row[0]) for row in both.unbind(0)]
    halves = [row.split(N, dim=-1) for row in rows]
    matrices = squeeze(weights)
    halves[-1][0].copy_(squeeze(adjoint))
    for c in range(len(rows) - 1, -1, -1):
        y, d = halves[c]
        if incoming is not None:
            y.add_(squeeze(incoming[c]))
        if factors is not None:
            y.mul_(squeeze(factors[c]))
        torch.mul(y, squeeze(sigma_slopes[c][0]), out=d)
        multiply_add(y, rows[c], matrices, out=halves[c - 1][0] if c else squeeze(adjoint))
    return adjoint


def _walk_stages(
    problem: Problem, adjoint: Tensor, step: Tensor | float, both: Tensor, sigma_slopes: Tensor, weights: Tensor
) -> dict[int, Tensor]:
    """The adjoint of one step, stage by stage: fills κ and d into ``both`` and returns every ηᵢ."""
    tableau, N = problem.scheme.tableau, problem.A.shape[-1]
    etas: dict[int, Tensor] = {}
    for i in range(len(tableau) - 1, -1, -1):
        kappa, d = both[i].split(N, dim=-1)
        torch.mul(adjoint, step * tableau.weights[i], out=kappa)
        for j in range(i + 1, len(tableau)):
            if tableau.stages[j][i] != 0.0:
                kappa.add_((etas[j] * step) * tableau.stages[j][i])
        torch.mul(kappa, sigma_slopes[i], out=d)
        etas[i] = torch.bmm(both[i], weights)
    return etas


class _GradientSums:
    """Collects the gradients of a problem's tensors chunk by chunk, and only those that are needed."""

    def __init__(self, problem: Problem, needs: Sequence[bool], unit: float) -> None:
        self.problem, self.needs, self.unit = problem, needs, unit  # κ and d come in units of ``unit``
        S, T, B, N = problem.shape
        self.matrices = problem.A.new_zeros(S, 2 * N, N)
        self.drive = torch.empty_like(problem.drive.transpose(0, 1)) if needs[0] else None
        self.input_weight = _zeros(problem.input_weight) if needs[4] else None
        self.bias = _zeros(problem.bias) if needs[5] else None
        self.needs_steps = bool(needs[6])
        self.timespans = problem.A.new_empty((T, S, B)) if self.needs_steps else None

    def collect(self, start: int, stop: int, both: Tensor, stage: list[Tensor]) -> None:
        N = self.problem.A.shape[-1]
        if self.needs[1] or self.needs[2]:
            for i, states in enumerate(stage):
                self.matrices += product_over_time(both[:, i], states)
        if not (self.needs[0] or self.needs[4] or self.needs[5]):
            return
        d = both[:, 0, ..., N:] if len(stage) == 1 else both[..., N:].sum(1)
        if self.problem.input_weight is None:
            if self.drive is not None:
                torch.mul(d, self.unit, out=self.drive[start:stop])
            return
        if self.drive is not None:
            self.drive[start:stop] = d @ (self.problem.input_weight * self.unit)
        if self.input_weight is not None:
            self.input_weight += product_over_time(d, self.problem.drive[:, start:stop].transpose(0, 1))
        if self.bias is not None:
            self.bias += d.sum((0, 2))

    def steps(self, t: int, gradient: Tensor) -> None:
        assert self.timespans is not None  # only called when needed
        self.timespans[t] = gradient

    def finish(self, adjoint: Tensor) -> Gradients:
        N, needs = self.problem.A.shape[-1], self.needs
        return (
            None if self.drive is None else self.drive.transpose(0, 1),
            self.matrices[:, :N] * (self.problem.scheme.alpha * self.unit) if needs[1] else None,
            self.matrices[:, N:] * self.unit if needs[2] else None,
            adjoint if needs[3] else None,
            None if self.input_weight is None else self.input_weight * self.unit,
            None if self.bias is None else self.bias * self.unit,
            None if self.timespans is None else self.timespans.transpose(0, 1),
            None,
        )


def _noise_of_chunk(
    problem: Problem, start: int, count: int, squeeze: Callable[[Tensor], Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """What each state of a chunk is multiplied by, and what is added to it."""
    assert problem.noise is not None
    _, _, B, N = problem.shape
    drawn = draw_noise(problem.noise, _times(problem, start, start + count), (count, B, N), start)
    factors, added = ([squeeze(part) for part in parts.unbind(1)] for parts in drawn)
    return list(zip(factors, added, strict=True))


def _noise_factors(problem: Problem, start: int, stop: int) -> Sequence[Tensor]:
    """What the states of a chunk were multiplied by, and with them the way back: (S, B, N) each."""
    assert problem.noise is not None
    _, _, B, N = problem.shape
    return draw_factor(problem.noise, _times(problem, start, stop), (stop - start, B, N), start).unbind(1)


def _times(problem: Problem, start: int, stop: int) -> Tensor | float:
    return problem.scheme.step_size if problem.timespans is None else problem.timespans[:, start:stop]


def _squeezer(networks: int) -> Callable[[Tensor], Tensor]:
    """One network runs on plain matrices: ``addmm`` is quicker than a batched product of one."""
    return (lambda x: x[0]) if networks == 1 else (lambda x: x)


def _advance(
    h: Tensor, step: Tensor | float, coefficients: Sequence[float], slopes: Sequence[Tensor], out: Tensor | None = None
) -> Tensor:
    """h + ε Σ cᵢ kᵢ."""
    for c, k in zip(coefficients, slopes, strict=True):
        if c != 0.0:
            if isinstance(step, float):
                h = torch.add(h, k, alpha=step * c, out=out)
            else:
                h = torch.addcmul(h, step, k, value=c, out=out)
    return h


def _in_place(name: str) -> Callable[[Tensor], Tensor]:
    return {"tanh": torch.tanh_, "relu": torch.relu_, "sigmoid": torch.sigmoid_}.get(name, lambda z: z)


def _zeros(like: Tensor | None) -> Tensor | None:
    return None if like is None else torch.zeros_like(like)
