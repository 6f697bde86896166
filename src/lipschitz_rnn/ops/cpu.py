"""The recurrence at the speed of its matrix products, with the backward pass by hand.

Against the reference this saves the autograd graph, writes every result into memory that is already there, and
takes the weight gradients as a few large products instead of one small one per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.adjoint import product_over_time, stage_states, step_gradient
from lipschitz_rnn.ops.problem import Problem, state_dtype

CHUNK_ELEMENTS = 2**20  # a chunk of the backward pass stays within a few megabytes, near the cache

Gradients = tuple[Tensor | None, ...]


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (S, T, slots, B, N); returns the last state."""
    S, T, B, N = problem.shape
    scheme, tableau, sigma = problem.scheme, problem.scheme.tableau, problem.scheme.sigma
    dtype, accumulate = problem.A.dtype, state_dtype(problem.A.dtype)
    squeeze = _squeezer(S)
    multiply_add = torch.addmm if S == 1 else torch.baddbmm

    drive = problem.expanded_drive().transpose(0, 1)
    steps = _steps_over_time(problem, accumulate)
    A_t, W_t = squeeze(problem.A.mT * scheme.alpha), squeeze(problem.W.mT)
    tape = tape.permute(1, 2, 0, 3, 4)
    scratch = problem.A.new_empty(0 if save else (S, B, N))

    h = squeeze(problem.h0.to(accumulate))
    for t in range(T):
        u = squeeze(drive[t])
        step: Tensor | float = scheme.step_size if isinstance(steps, float) else squeeze(steps[t])
        slopes: list[Tensor] = []
        for i, row in enumerate(tableau.stages):
            operand = _advance(h, step, row, slopes).to(dtype)
            z = multiply_add(u, operand, W_t, out=squeeze(tape[t, i + 1] if save else scratch))
            s = _apply_in_place(sigma.name, z)
            slopes.append(multiply_add(s, operand, A_t))
        h = _advance(h, step, tableau.weights, slopes)
        if keep_states:
            squeeze(tape[t, 0]).copy_(h)
    return h.to(dtype, copy=True).reshape(S, B, N)


def backward(
    problem: Problem,
    tape: Tensor,
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    needs: Sequence[bool],
) -> Gradients:
    """Gradients of ``problem.tensors``, None where ``needs`` says so, from the tape that ``forward`` wrote."""
    S, T, B, N = problem.shape
    stages = len(problem.scheme.tableau)
    dtype, accumulate = problem.A.dtype, state_dtype(problem.A.dtype)
    chunk = max(1, min(T, CHUNK_ELEMENTS // max(1, S * B * N)))

    tape = tape.permute(1, 2, 0, 3, 4)
    states, activations = tape[:, 0], tape[:, 1:]
    incoming = None if grad_states is None else grad_states.transpose(0, 1)
    steps = _steps_over_time(problem, accumulate)
    weights = torch.cat(
        (problem.A * problem.scheme.alpha, problem.W), dim=1
    )  # [αA; W], so that one product serves both
    adjoint = (
        torch.zeros_like(problem.h0, dtype=accumulate) if grad_last is None else grad_last.to(accumulate, copy=True)
    )

    outputs = _GradientSums(problem, needs)
    for start in range((T - 1) // chunk * chunk, -1, -chunk):
        stop = min(T, start + chunk)
        first = problem.h0 if start == 0 else states[start - 1]
        previous = torch.cat((first[None].to(dtype), states[start : stop - 1]))
        values = activations[start:stop]
        chunk_steps = steps if isinstance(steps, float) else steps[start:stop]
        stage, slopes = stage_states(problem, previous, values, chunk_steps, all_slopes=outputs.needs_steps)
        sigma_slopes = problem.scheme.sigma.slope_from_value(values)
        both = problem.A.new_empty(stop - start, stages, S, B, 2 * N)  # κ and d side by side
        for t in range(stop - 1, start - 1, -1):
            if incoming is not None:
                adjoint = adjoint.add_(incoming[t])
            step: Tensor | float = steps if isinstance(steps, float) else steps[t]
            c = t - start
            stage_adjoints = _walk_stages(problem, adjoint, step, both[c], sigma_slopes[c], weights)
            if outputs.needs_steps:
                outputs.steps(t, step_gradient(problem, adjoint, stage_adjoints, [k[c] for k in slopes]))
            for eta in stage_adjoints.values():
                adjoint.add_(eta)
        outputs.collect(start, stop, both, stage)
    return outputs.finish(adjoint)


def _walk_stages(
    problem: Problem, adjoint: Tensor, step: Tensor | float, both: Tensor, sigma_slopes: Tensor, weights: Tensor
) -> dict[int, Tensor]:
    """The adjoint of one step, stage by stage: fills κ and d into ``both`` and returns every ηᵢ."""
    tableau, N = problem.scheme.tableau, problem.A.shape[-1]
    etas: dict[int, Tensor] = {}
    for i in range(len(tableau) - 1, -1, -1):
        kappa, d = both[i, ..., :N], both[i, ..., N:]
        torch.mul(adjoint, step * tableau.weights[i], out=kappa)
        for j in range(i + 1, len(tableau)):
            if tableau.stages[j][i] != 0.0:
                kappa.add_((etas[j] * step) * tableau.stages[j][i])
        torch.mul(kappa, sigma_slopes[i], out=d)
        etas[i] = torch.bmm(both[i], weights)
    return etas


class _GradientSums:
    """Collects the gradients of a problem's tensors chunk by chunk, and only those that are needed."""

    def __init__(self, problem: Problem, needs: Sequence[bool]) -> None:
        self.problem, self.needs = problem, needs
        S, T, B, N = problem.shape
        accumulate = state_dtype(problem.A.dtype)
        self.matrices = torch.zeros(S, 2 * N, N, dtype=accumulate, device=problem.A.device)
        self.drive = torch.empty_like(problem.drive.transpose(0, 1)) if needs[0] else None
        self.input_weight = _zeros(problem.input_weight, accumulate) if needs[4] else None
        self.bias = _zeros(problem.bias, accumulate) if needs[5] else None
        self.needs_steps = bool(needs[6])
        self.timespans = problem.h0.new_empty((T, S, B), dtype=accumulate) if self.needs_steps else None

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
                self.drive[start:stop] = d
            return
        if self.drive is not None:
            self.drive[start:stop] = d @ self.problem.input_weight
        if self.input_weight is not None:
            self.input_weight += product_over_time(d, self.problem.drive[:, start:stop].transpose(0, 1))
        if self.bias is not None:
            self.bias += d.sum((0, 2), dtype=self.bias.dtype)

    def steps(self, t: int, gradient: Tensor) -> None:
        assert self.timespans is not None  # only called when needed
        self.timespans[t] = gradient

    def finish(self, adjoint: Tensor) -> Gradients:
        problem, N, needs = self.problem, self.problem.A.shape[-1], self.needs
        found = (
            None if self.drive is None else self.drive.transpose(0, 1),
            self.matrices[:, :N] * problem.scheme.alpha if needs[1] else None,
            self.matrices[:, N:] if needs[2] else None,
            adjoint if needs[3] else None,
            self.input_weight,
            self.bias,
            None if self.timespans is None else self.timespans.transpose(0, 1),
        )
        return tuple(
            None if gradient is None or tensor is None else gradient.to(tensor.dtype)
            for gradient, tensor in zip(found, problem.tensors, strict=True)
        )


def _steps_over_time(problem: Problem, dtype: torch.dtype) -> Tensor | float:
    """The step size as a number, or (T, S, B, 1)."""
    if problem.timespans is None:
        return problem.scheme.step_size
    return problem.timespans.to(dtype).transpose(0, 1).unsqueeze(-1)


def _squeezer(networks: int) -> Callable[[Tensor], Tensor]:
    """One network runs on plain matrices: ``addmm`` is quicker than a batched product of one."""
    return (lambda x: x[0]) if networks == 1 else (lambda x: x)


def _advance(h: Tensor, step: Tensor | float, coefficients: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """h + ε Σ cᵢ kᵢ."""
    for c, k in zip(coefficients, slopes, strict=True):
        if c != 0.0:
            h = torch.add(h, k, alpha=step * c) if isinstance(step, float) else torch.addcmul(h, step, k, value=c)
    return h


def _apply_in_place(name: str, z: Tensor) -> Tensor:
    return z if name == "identity" else getattr(torch, f"{name}_")(z)


def _zeros(like: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if like is None else torch.zeros_like(like, dtype=dtype)
