"""One sequence at a time, forward: streaming and small services.

With a batch of one a step is a matrix-vector product of a microsecond or two, and each of PyTorch's calls around it
costs as much again. NumPy's calls cost a third, so the loop runs on NumPy views of the same memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.integrators import Tableau
from lipschitz_rnn.ops.lipschitz.problem import Problem

Array = NDArray[Any]
Sigma = Callable[[Array, Array], Array]


def serves(problem: Problem) -> bool:
    S, _, B, _ = problem.shape
    return problem.noise is None and S == 1 and B == 1 and problem.A.dtype in (torch.float32, torch.float64)


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (1, T, slots, 1, N); returns the last state.

    Steps of one size ε are taken in units of it: with g = h/ε a stage is k = (εαA) g + σ((εW) g + u), and
    g⁺ = g + Σ bᵢkᵢ has no factor left to multiply by.
    """
    _, T, _, N = problem.shape
    scheme, tableau = problem.scheme, problem.scheme.tableau
    unit = scheme.step_size if problem.timespans is None else 1.0
    start = 0.0 if problem.h0 is None else problem.h0[0, 0].detach().numpy() / unit
    rows = tape[0, :, :, 0].detach().numpy()
    apply_sigma = SIGMAS[scheme.nonlinearity]
    values = rows[:, 1:] if save else itertools.repeat([np.empty(N, rows.dtype) for _ in tableau.weights])
    with np.errstate(all="ignore"):  # an overflow shows in the result, as everywhere in PyTorch
        if len(tableau) == 1 and problem.timespans is None:
            path = _euler(problem, unit, start, values, apply_sigma, keep_states or save)
        else:
            steps = [1.0] * T if problem.timespans is None else problem.timespans[0, :, 0].tolist()
            path = _stages(problem, _stacked(problem, unit, N), start, values, apply_sigma, tableau, steps)
        if keep_states:
            np.multiply(path[1:, :N], unit, rows[:, 0])
    return torch.from_numpy((path[-1, :N] * path.dtype.type(unit)).reshape(1, 1, N))


def _stacked(problem: Problem, unit: float, width: int) -> Array:
    """[εαA; εW], (2N, width), zero beyond N columns; in Fortran order, which is fastest for a product with a vector."""
    N = problem.shape[-1]
    A, W = (matrix[0].detach().numpy().T for matrix in (problem.A, problem.W))
    columns = np.zeros((width, 2 * N), A.dtype)
    np.multiply(A, problem.scheme.alpha * unit, columns[:N, :N])
    np.multiply(W, unit, columns[:N, N:])
    return columns.T


def _euler(
    problem: Problem,
    unit: float,
    start: Array | float,
    values: Iterable[Sequence[Array]],
    apply_sigma: Sigma,
    keep: bool,
) -> Array:
    """Euler steps of one size: g⁺ = g + ((εαA) g + σ((εW) g + u)).

    Inputs of few features are appended to the state, (g, x, 1), so that one product takes in all of u = U x + b; others
    are added. What is not finite is among those: it would reach A's half of the product as 0 · ∞.

    Returns:
        The states before and after each step, (T + 1, ·); where nothing is kept of them it may be the last alone.
    """
    _, T, _, N = problem.shape
    x = problem.drive[0, :, 0].detach().numpy()
    U, b = problem.input_weight, problem.bias
    augmented = U is not None and x.shape[1] <= N // 4 and bool(np.isfinite(x).all())
    width = N + (x.shape[1] + 1 if augmented else 0)
    # 1 + εαA would save the addition of g, and lose a digit over a thousand steps.
    operand = _stacked(problem, unit, width)
    alone = augmented and not keep
    path = np.empty((1 if alone else T + 1, width), operand.dtype)
    path[0, :N] = start
    if augmented:
        assert U is not None
        operand[N:, N:-1] = U[0].detach().numpy()
        operand[N:, -1] = 0.0 if b is None else b[0].detach().numpy()
        path[:, -1] = 1.0
    both = np.empty(2 * N, operand.dtype)
    linear, z = both[:N], both[N:]
    dot, add = operand.dot, np.add
    if alone:  # in place, with nothing but the state
        row, g = path[0], path[0, :N]
        place, samples = (N, x[:, 0].tolist()) if x.shape[1] == 1 else (slice(N, -1), x)
        for sample in samples:
            row[place] = sample
            dot(row, both)
            add(add(linear, apply_sigma(z, z), linear), g, g)
        return path
    states = list(path[:, :N])
    if augmented:
        path[:T, N:-1] = x
        for row, g, g_next, (value,) in zip(path, states, states[1:], values, strict=False):
            dot(row, both)
            add(add(linear, apply_sigma(z, value), linear), g, g_next)
    else:
        drive = problem.expanded_drive()[0, :, 0].detach().numpy()
        for g, u, g_next, (value,) in zip(states, drive, states[1:], values, strict=False):
            dot(g, both)
            add(add(linear, apply_sigma(add(z, u, z), value), linear), g, g_next)
    return path


def _stages(
    problem: Problem,
    matrices: Array,
    start: Array | float,
    values: Iterable[Sequence[Array]],
    apply_sigma: Sigma,
    tableau: Tableau,
    steps: Sequence[float],
) -> Array:
    """Any method, any times: the states before and after each step, (T + 1, N)."""
    _, T, _, N = problem.shape
    drive = problem.expanded_drive()[0, :, 0].detach().numpy()
    path = np.empty((T + 1, N), matrices.dtype)
    path[0] = start
    take_step = Step(matrices, apply_sigma, tableau)
    for g, u, out, step, step_values in zip(path, drive, path[1:], steps, values, strict=False):
        np.copyto(out, take_step(g, u, step, step_values))
    return path


class Step:
    """One step of any method: k = M g + σ(M′ g + u) at each stage, with [M; M′] = ``matrices``, (2N, N)."""

    def __init__(self, matrices: Array, apply_sigma: Sigma, tableau: Tableau) -> None:
        self.matrices, self.tableau, self.apply_sigma = np.asfortranarray(matrices), tableau, apply_sigma
        self.dot = self.matrices.dot
        N = matrices.shape[1]
        self.both = np.empty(2 * N, matrices.dtype)
        self.linear, self.z = self.both[:N], self.both[N:]
        self.slopes = [np.empty_like(self.z) for _ in tableau.weights]
        self.point, self.change = np.empty_like(self.z), np.empty_like(self.z)

    def __reduce__(self) -> tuple[type[Step], tuple[Array, Sigma, Tableau]]:
        # What is copied or pickled by its attributes would have arrays of its own where these are views of others.
        return Step, (self.matrices, self.apply_sigma, self.tableau)

    def __call__(self, g: Array, u: Array, step: float, values: Sequence[Array]) -> Array:
        """The state after g, in memory that the next call writes to; σ of each stage goes to ``values``."""
        linear, z, both = self.linear, self.z, self.both
        for coefficients, slope, value in zip(self.tableau.stages, self.slopes, values, strict=True):
            self.dot(_advance(g, coefficients, self.slopes, step, self.change, self.point), both)
            np.add(z, u, z)
            np.add(linear, self.apply_sigma(z, value), slope)
        return _advance(g, self.tableau.weights, self.slopes, step, self.change, self.point)


def _advance(
    g: Array, coefficients: tuple[float, ...], slopes: list[Array], step: float, change: Array, out: Array
) -> Array:
    """g + step Σ cᵢ kᵢ into ``out``; g itself where nothing is added."""
    for c, slope in zip(coefficients, slopes, strict=False):
        factor = step * c
        if factor == 1.0:
            g = np.add(g, slope, out)
        elif c != 0.0:
            g = np.add(g, np.multiply(slope, slope.dtype.type(factor), change), out)
    return g


def _sigmoid(z: Array, out: Array) -> Array:
    """By tanh, which never overflows."""
    half = z.dtype.type(0.5)
    np.tanh(np.multiply(z, half, out), out)
    np.multiply(np.add(out, 1, out=out), half, out)
    return out


def _relu(z: Array, out: Array) -> Array:
    return np.maximum(z, 0, out=out)


def _identity(z: Array, out: Array) -> Array:
    np.copyto(out, z)
    return out


SIGMAS: dict[str, Sigma] = {
    "tanh": np.tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "identity": _identity,
}
