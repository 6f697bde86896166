"""An attack on the module that runs. It knows a certificate's claim and metric, and nothing of how that was made.

Jacobians come from autograd through the module's own forward, one step long, and pairs of trajectories from the same
forward over many steps. States, inputs and step lengths are searched for by selection and mutation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.integrators import get_integrator
from lipschitz_rnn.stability import Certificate

Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(inputs (T, B, p), states (rows, B, N), timespans (T, B) or None) -> states of all steps of one row, (T, B, N)."""


@dataclass
class Attack:
    """One layer and direction of a module against its certificate.

    Attributes:
        step: the module's forward.
        shape: (rows, N, p) of all states and of the input.
        row: which state the certificate is about.
        unit: u of the dtype that Jacobians and states come back in.
        dtype: what the module takes.
    """

    step: Step
    certificate: Certificate
    shape: tuple[int, int, int]
    row: int
    unit: float
    dtype: torch.dtype
    seed: int = 0
    population: int = 48
    rounds: int = 5
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.root = np.linalg.cholesky(self.certificate.metric)
        self.inverse = np.linalg.inv(self.root).T
        assert self.certificate.step_range is not None
        self.shortest, self.longest = self.certificate.step_range

    def excess_of_jacobians(self) -> float:
        """By how much the worst Jacobian found exceeds the claim and the rounding of its own computation."""
        rows, n, p = self.shape
        h, x, spans = self._first_population()
        best = -math.inf
        for _ in range(self.rounds):
            excess = self._jacobian_excess(h, x, spans)
            best = max(best, float(excess.max()))
            keep = torch.from_numpy(np.argsort(-excess)[: self.population // 4].copy())
            chosen = keep[torch.randint(len(keep), (self.population,), generator=self.generator)]
            chosen[: len(keep)] = keep
            fresh = torch.arange(self.population) >= len(keep)
            moved = 10.0 ** (4 * self._random(self.population) - 3) * fresh
            h = h[:, chosen] * (1 + 0.1 * self._normal(rows, self.population, n) * fresh[:, None])
            h = h + moved[:, None] * self._normal(rows, self.population, n)
            x = x[:, chosen] + moved[:, None] * self._normal(1, self.population, p)
            redrawn = self._spans(1)
            spans = torch.where(self._random(self.population) < 0.5, spans[:, chosen], redrawn)
        return best

    def excess_of_trajectories(self, steps: int = 40) -> float:
        """By how much a step brought two states less close together than claimed, after rounding, relative to 1."""
        rows, n, p = self.shape
        h, _, _ = self._first_population()
        pairs = self.population // 2
        x = 3 * self._normal(steps, pairs, p).repeat(1, 2, 1)
        spans = self._spans(steps)[:, :pairs].repeat(1, 2)
        # All other layers start alike, so that the two states of this row see the same input.
        h[:, pairs:] = torch.where(torch.arange(rows)[:, None, None] == self.row, h[:, pairs:], h[:, :pairs])
        h[self.row, :pairs] = h[self.row, pairs:] + self._normal(pairs, n)
        states = self._run(x, h, spans).detach().double().numpy()
        states = np.concatenate((h[self.row].to(self.dtype).double().numpy()[None], states))
        distance = np.linalg.norm((states[:, :pairs] - states[:, pairs:]) @ self.root, axis=-1)
        size = np.abs(states).max(axis=-1)
        size = np.maximum(size[:, :pairs], size[:, pairs:])
        lengths = spans[:, :pairs].double().numpy()
        claim = np.vectorize(self._claim)(lengths)
        growth = self._growth_of_rounding()
        rounding = 8 * n * self.unit * growth * (1 + size[:-1] + size[1:]) * np.linalg.norm(self.root, 2)
        broken = (distance[1:] - claim * distance[:-1] - rounding) / (distance[:-1] + rounding)
        return float(np.nanmax(np.where(np.isfinite(broken), broken, -math.inf)))

    def _jacobian_excess(self, h: Tensor, x: Tensor, spans: Tensor) -> np.ndarray:
        h = h.to(self.dtype).requires_grad_()
        after = self._run(x, h, spans)[-1]
        rows = [
            torch.autograd.grad(after[:, i].sum(), h, retain_graph=True)[0][self.row] for i in range(after.shape[-1])
        ]
        J = torch.stack(rows, dim=1).double().numpy()
        finite = np.isfinite(J).all(axis=(1, 2))
        J[~finite] = 0.0
        norms = np.linalg.norm(self.root.T @ J @ self.inverse, 2, axis=(1, 2))
        rounding = (4 * self.shape[1] + 16) * self.unit * self._growth_of_rounding()
        claims = np.array([self._claim(float(length)) for length in spans[0]])
        return np.where(finite, norms - claims - rounding, -math.inf)

    def _claim(self, length: float) -> float:
        """What the certificate says about one step of this length."""
        assert self.certificate.factor is not None
        if self.shortest == self.longest:
            return self.certificate.factor
        return 1.0 - self.certificate.rate * length

    def _growth_of_rounding(self) -> float:
        """‖|Lᵀ| (1 + |εK|)^stages |L⁻ᵀ|‖: what errors of one unit in every product can become."""
        if self.certificate.map_matrices:
            F, G, C, E = (np.abs(matrix) for matrix in self.certificate.map_matrices)
            whole = np.eye(len(F)) + F + G @ np.linalg.solve(np.eye(len(E)) - E, C)
            return float(np.linalg.norm(np.abs(self.root.T) @ whole @ np.abs(self.inverse), 2))
        A, W = (np.abs(matrix) for matrix in (self.certificate.A, self.certificate.W))
        K = np.eye(len(A)) + self.longest * (abs(self.certificate.alpha) * A + W)
        stages = np.linalg.matrix_power(K, len(get_integrator(self.certificate.dynamics)))
        return float(np.linalg.norm(np.abs(self.root.T) @ stages @ np.abs(self.inverse), 2))

    def _run(self, x: Tensor, h: Tensor, spans: Tensor) -> Tensor:
        times = None if self.shortest == self.longest else spans.to(self.dtype)
        return self.step(x.to(self.dtype), h.to(self.dtype), times)

    def _first_population(self) -> tuple[Tensor, Tensor, Tensor]:
        """Small and huge states, and states whose slopes are a random pattern of 0 and 1, by way of W⁻¹."""
        rows, n, p = self.shape
        scale = 10.0 ** (3 * self._random(self.population) - 1.5)
        h = scale[:, None] * self._normal(rows, self.population, n)
        if self.certificate.map_matrices:
            W = torch.from_numpy(self.certificate.map_matrices[2])
        else:
            W = torch.from_numpy(self.certificate.W) + 1e-6 * torch.eye(n)
        flat = self._random(self.population, len(W)) < 0.5
        pattern = flat.double() * 20 * self._normal(self.population, len(W)).sign()
        half = self.population // 2
        found = torch.linalg.pinv(W, rtol=1e-9) @ pattern.T
        h[self.row, :half] = found.T[:half].clamp(-1e3, 1e3)
        h[self.row, 0] = 0.0
        return h, 0.1 * scale[None, :, None] * self._normal(1, self.population, p), self._spans(1)

    def _spans(self, steps: int) -> Tensor:
        share = self._random(steps, self.population)
        ends = self._random(steps, self.population)
        share = torch.where(
            ends < 0.3, torch.zeros(()).double(), torch.where(ends > 0.7, torch.ones(()).double(), share)
        )
        return (self.shortest + (self.longest - self.shortest) * share).clamp(max=self.longest)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def _random(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)
