"""The factor against the data: two states under the same input must approach each other as fast as it says."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.precision import rounds_float32
from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks, Path, apart
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms
from lipschitz_rnn.ops.lipschitz.problem import Problem

AUDITED_STEPS = 16


class ContradictedFactorError(RuntimeError):
    """Two states of the data at hand did not approach each other as fast as the contraction says."""


class Audit:
    """The first steps of every chunk, as the first and the second pass went through them.

    The distance of the two must shrink by ρ_t in each step, up to a bound on the rounding of both.
    """

    def __init__(self, chunks: Chunks, norms: Norms, path: Path, factor: Tensor | None) -> None:
        """After the first pass and before the second; ``factor`` is ρ where all steps are equal."""
        self._chunks, self._norms, self._factor = chunks, norms, factor
        self._problem = chunks.steps(0, min(AUDITED_STEPS, chunks.plan.steps), None)
        self._earlier = self._first_states(path)

    def _first_states(self, path: Path) -> Tensor:
        """The state before the first step and those after each, in coordinates in which the metric is Euclidean."""
        steps = self._problem.drive.shape[1]
        if path.keep or path.saved:
            states = path.tape[:, :steps, 0]
        else:
            states = self._chunks.states_of(replace(self._problem, h0=path.start))
        return self._norms.stretched(torch.cat((path.start.unsqueeze(1), states), dim=1))

    def compare(self, path: Path) -> Tensor:
        """After some steps of the second pass: by how much a distance is above what ρ allows at most, (S, K, B)."""
        distances = torch.linalg.vector_norm(self._first_states(path) - self._earlier, dim=-1)
        factors = self._norms.of_steps(self._problem) if self._factor is None else self._factor
        self._distances = distances
        above = torch.addcmul(distances[:, 1:], factors, distances[:, :-1], value=-1.0).amax(1)
        return apart(above, self._chunks.plan.chunks)

    def rounding(self) -> Tensor:
        """How far rounding alone may bring a distance above that, (S, K, B). It is seldom needed, and takes longer."""
        norms, problem = self._norms, self._problem
        sizes = torch.linalg.vector_norm(self._earlier, dim=-1).amax(1) + self._distances.amax(1)  # of either pass
        unit = step_rounding(problem, norms).squeeze(-1)
        return apart(4.0 * unit * sizes + _drive_rounding(problem, norms), self._chunks.plan.chunks)


def contradiction(norms: Norms) -> ContradictedFactorError:
    return ContradictedFactorError(
        f"the contraction factor {float(norms.factor.max()):.9g} is contradicted by this data: two states under the "
        "same input approached each other more slowly. The certificate belongs to other matrices, another step or "
        "another precision; certify the network as it runs, or use parallel=None"
    )


def step_rounding(problem: Problem, norms: Norms) -> Tensor:
    """A bound on the rounding of one step, relative to ‖h‖_P before and after it: (S, 1, 1)."""
    scheme, sigma = problem.scheme, problem.scheme.sigma
    held = (scheme.alpha * problem.A.detach().double()).abs() + sigma.lipschitz * problem.W.detach().double().abs()
    gain = norms.longest * norms.operator_norm(held, rough=True)
    terms = 2 * problem.A.shape[-1] + 16
    growth = (1.0 + gain) ** len(scheme.tableau)
    return (terms * len(scheme.tableau) * _unit(problem) * (1.0 + gain) * growth).reshape(-1, 1, 1)


def _drive_rounding(problem: Problem, norms: Norms) -> Tensor:
    """What the rounding of U x + b and of σ adds, in the metric, at most in any step: (S, rows)."""
    terms = 2 * (problem.A.shape[-1] + problem.drive.shape[-1]) + 16
    ones = norms.size(torch.ones_like(problem.A[:, :1]))
    x = problem.drive.detach().double().abs()
    if problem.input_weight is None:
        largest = norms.size(x)
    else:
        U = problem.input_weight.detach().double().abs()
        b = 0.0 if problem.bias is None else problem.bias.detach().double().abs()[:, None, None]
        largest = norms.size(x @ U.mT.unsqueeze(1) + b)
    return 4.0 * terms * len(problem.scheme.tableau) * _unit(problem) * norms.longest * (largest.amax(1) + ones)


def _unit(problem: Problem) -> float:
    """The relative rounding error of a product as the backend takes it."""
    if problem.A.dtype == torch.float32 and not problem.scheme.exact_products and rounds_float32(problem.A.device):
        return float(torch.finfo(torch.bfloat16).eps)
    return float(torch.finfo(problem.A.dtype).eps)
