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

from lipschitz_rnn.ops.integrators import Tableau
from lipschitz_rnn.ops.problem import Problem

Array = NDArray[Any]
Sigma = Callable[[Array, Array], Array]


def serves(problem: Problem) -> bool:
    S, _, B, _ = problem.shape
    return S == 1 and B == 1 and problem.A.dtype in (torch.float32, torch.float64)


def forward(problem: Problem, tape: Tensor, keep_states: bool, save: bool) -> Tensor:
    """Writes states and, with ``save``, the values of σ to the tape, (1, T, slots, 1, N); returns the last state.

    Steps of one size ε are taken in units of it: with g = h/ε a stage is k = (εαA) g + σ((εW) g + u), and
    g⁺ = g + Σ bᵢkᵢ has no factor left to multiply by.
    """
    _, T, _, N = problem.shape
    scheme, tableau = problem.scheme, problem.scheme.tableau
    unit = scheme.step_size if problem.timespans is None else 1.0
    steps = None if problem.timespans is None else problem.timespans[0, :, 0].tolist()
    matrices = np.asfortranarray(
        torch.cat((problem.A[0] * (scheme.alpha * unit), problem.W[0] * unit)).detach().numpy()
    )
    drive = problem.expanded_drive()[0, :, 0].detach().numpy()
    rows = tape[0, :, :, 0].detach().numpy()
    apply_sigma = _SIGMAS[scheme.nonlinearity]

    values = rows[:, 1:] if save else itertools.repeat([np.empty(N, matrices.dtype) for _ in tableau.weights])
    # Beside every input stands the state before its step, so that one addition serves both. The last has a row too.
    path = np.empty((T + 1, 2 * N), matrices.dtype)
    path[0, :N] = 0.0 if problem.h0 is None else problem.h0[0, 0].detach().numpy() / unit
    path[:T, N:] = drive
    with np.errstate(all="ignore"):  # a state that overflows shows in the result, as everywhere in PyTorch
        if len(tableau) == 1 and steps is None:
            _euler(path, matrices, values, apply_sigma)
        else:
            _stages(path, matrices, values, apply_sigma, tableau, steps or [1.0] * T)
        if keep_states:
            np.multiply(path[1:, :N], unit, rows[:, 0])
    return torch.from_numpy(path[T, :N] * path.dtype.type(unit)).reshape(1, 1, N)


def _euler(path: Array, matrices: Array, values: Iterable[Sequence[Array]], apply_sigma: Sigma) -> None:
    """Euler steps of one size, without a call more than they need."""
    N = path.shape[1] // 2
    both = np.empty_like(path[0])
    linear, z = both[:N], both[N:]
    states = list(path[:, :N])
    dot, add = np.dot, np.add
    for row, g, g_next, (value,) in zip(path[:-1], states, states[1:], values, strict=False):
        dot(matrices, g, both)
        add(both, row, both)
        add(linear, apply_sigma(z, value), g_next)


def _stages(
    path: Array,
    matrices: Array,
    values: Iterable[Sequence[Array]],
    apply_sigma: Sigma,
    tableau: Tableau,
    steps: Sequence[float],
) -> None:
    """Any method, any times."""
    N = path.shape[1] // 2
    both, operand, change = np.empty_like(path[0]), np.empty_like(path[0, :N]), np.empty_like(path[0, :N])
    linear, z = both[:N], both[N:]
    slopes = [np.empty_like(operand) for _ in tableau.weights]
    for row, out, step, step_values in zip(path[:-1], path[1:, :N], steps, values, strict=False):
        g, u = row[:N], row[N:]
        for coefficients, slope, value in zip(tableau.stages, slopes, step_values, strict=True):
            np.dot(matrices, _advance(g, coefficients, slopes, step, change, operand), both)
            np.add(z, u, z)
            np.add(linear, apply_sigma(z, value), slope)
        np.copyto(out, _advance(g, tableau.weights, slopes, step, change, operand))


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


_SIGMAS: dict[str, Sigma] = {
    "tanh": np.tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "identity": _identity,
}
