"""The reference: the recurrence in plain PyTorch, one step after another. It defines the result.

Any dtype, any device, differentiable any number of times. Every other backend is tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.dtypes import state_dtype
from lipschitz_rnn.ops.common.noise import draw_noise, steps_at_once
from lipschitz_rnn.ops.lipschitz.integrators import Tableau
from lipschitz_rnn.ops.lipschitz.nonlinearities import Nonlinearity
from lipschitz_rnn.ops.lipschitz.problem import Problem, needs_float64


def integrate_step(
    h: Tensor,
    u: Tensor,
    A: Tensor,
    W: Tensor,
    step: Tensor | float,
    alpha: float,
    tableau: Tableau,
    sigma: Nonlinearity,
) -> Tensor:
    """One step of ḣ = αA h + σ(W h + u) with u held constant.

    Args:
        h: (…, B, N), the state.
        u: (…, B, N).
        A, W: (…, N, N).
        step: ε, a number or anything that broadcasts against h, such as (…, B, 1).
    """
    A_t, W_t = A.mT, W.mT  # once: the body of an exported loop must not capture the same matrix twice
    slopes: list[Tensor] = []
    for row in tableau.stages:
        operand = (h if not any(row) else h + step * _combine(row, slopes)).to(A.dtype)
        linear = operand @ A_t
        slope = (alpha * linear if alpha != 1.0 else linear) + sigma.function(operand @ W_t + u)
        slopes.append(slope.to(h.dtype))
    return h + step * _combine(tableau.weights, slopes)


def _combine(coefficients: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    terms = [c * k if c != 1.0 else k for c, k in zip(coefficients, slopes, strict=True) if c != 0.0]
    return sum(terms[1:], start=terms[0])


def scan(problem: Problem) -> tuple[Tensor, Tensor]:
    """All states (S, T, B, N), each after its step, and the last one (S, B, N)."""
    if needs_float64(problem):
        wide = scan(problem.to(torch.float64))
        return wide[0].to(problem.A.dtype), wide[1].to(problem.A.dtype)
    scheme = problem.scheme
    dtype = problem.A.dtype
    h = problem.initial_state().to(state_dtype(dtype))
    # Slices of all steps at once: one by one, each would have a gradient as long as the whole sequence.
    drives = problem.expanded_drive().unbind(1)
    steps: Sequence[Tensor | float] = [scheme.step_size] * len(drives)
    if problem.timespans is not None:
        steps = problem.timespans.to(h.dtype).unsqueeze(-1).unbind(1)
    disturbances = None if problem.noise is None else _noise_of_steps(problem)
    states = []
    for u, step in zip(drives, steps, strict=True):
        h = integrate_step(h, u, problem.A, problem.W, step, scheme.alpha, scheme.tableau, scheme.sigma)
        if disturbances is not None:
            factor, added = next(disturbances)
            h = h * factor.to(h.dtype) + added.to(h.dtype)
        states.append(h)
    return torch.stack(states, dim=1).to(dtype), h.to(dtype)


def _noise_of_steps(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """What each state is multiplied by, and what is added to it: (S, B, N) each."""
    assert problem.noise is not None
    S, T, B, N = problem.shape
    chunk = steps_at_once(S, B, N)
    for first in range(0, T, chunk):
        count = min(chunk, T - first)
        spans = problem.timespans
        times = problem.scheme.step_size if spans is None else spans[:, first : first + count]
        factors, added = draw_noise(problem.noise, times, (count, B, N), first)
        yield from zip(factors.unbind(1), added.unbind(1), strict=True)
