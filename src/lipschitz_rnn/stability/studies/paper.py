"""The paper's studies of stability as numbers (``plots`` draws them): pendulum, spectrum against β, Lemma 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.studies.spectra import proposition1_bounds, spectrum
from lipschitz_rnn.units.lipschitz import LipschitzRNN, SymmetricSkew

PENDULUM_SETTINGS = ((0.5, 0.0), (0.75, 0.01), (0.85, 0.01), (1.0, 0.0))


@dataclass(frozen=True)
class FittedPendulum:
    """A two-dimensional unit ḣ = A h + tanh(W h + b) that was fitted to a pendulum.

    ``equilibrium`` is the rest point near the origin, and ``growth`` the largest real part of the Jacobian there:
    positive, trajectories leave it; negative, they are attracted; zero, they circle it.
    """

    beta: float
    gamma: float
    A: Matrix
    W: Matrix
    b: Matrix
    equilibrium: Matrix
    growth: float
    error: float

    def field(self, states: Matrix) -> Matrix:
        """ḣ for states (…, 2)."""
        return states @ self.A.T + np.tanh(states @ self.W.T + self.b)

    def trajectory(self, start: Sequence[float], time: float = 30.0, step: float = 0.01) -> Matrix:
        """States (T, 2) from ``start`` by midpoint steps."""
        h = np.asarray(start, dtype=np.float64)
        states = [h]
        for _ in range(int(time / step)):
            h = h + step * self.field(h + 0.5 * step * self.field(h))
            states.append(h)
        return np.array(states)


def fit_pendulum(
    beta: float, gamma: float, *, seed: int = 1, steps: int = 60, amplitude: float = 1.5
) -> FittedPendulum:
    """Fit the unit to θ̈ = −sin θ, with h = (θ, θ̇), by least squares on the field within |h| ≤ ``amplitude``.

    The pendulum itself circles its rest point, so ``growth`` tends to zero the longer one fits, and its sign for β < 1
    depends on the start and on when one stops. The default start and length show the four cases of the paper's figure;
    only the last one, β = 1 and γ = 0, is certain: both matrices are skew-symmetric, so the Jacobian's trace is zero.
    """
    generator = torch.Generator().manual_seed(seed)
    radius = amplitude * torch.rand(256, generator=generator, dtype=torch.float64).sqrt()
    angle = 2 * torch.pi * torch.rand(256, generator=generator, dtype=torch.float64)
    h = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1)
    target = torch.stack((h[:, 1], -h[:, 0].sin()), dim=1)
    hidden = SymmetricSkew(beta, gamma)
    M_A, M_W = (0.3 * torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    parameters = [M_A.requires_grad_(), M_W.requires_grad_(), torch.zeros(2, dtype=torch.float64, requires_grad=True)]
    optimizer = torch.optim.Adam(parameters, lr=0.05)

    def loss() -> Tensor:
        A, W = hidden(parameters[0]), hidden(parameters[1])
        return (h @ A.T + torch.tanh(h @ W.T + parameters[2]) - target).square().mean()

    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    with torch.no_grad():
        A, W, b = hidden(parameters[0]).numpy(), hidden(parameters[1]).numpy(), parameters[2].numpy()
        error = loss().sqrt().item()
    equilibrium = _equilibrium(A, W, b)
    slopes = 1 - np.tanh(W @ equilibrium + b) ** 2
    growth = float(np.linalg.eigvals(A + slopes[:, None] * W).real.max())
    return FittedPendulum(beta, gamma, A, W, b, equilibrium, growth, error)


def _equilibrium(A: Matrix, W: Matrix, b: Matrix) -> Matrix:
    """A zero of A h + tanh(W h + b) near the origin, by Newton's method."""
    h = np.zeros(2)
    for _ in range(50):
        value = np.tanh(W @ h + b)
        h = h - np.linalg.solve(A + (1 - value**2)[:, None] * W, A @ h + value)
    return h


@dataclass(frozen=True)
class SpectrumAgainstBeta:
    """Extreme real parts of the eigenvalues of S_{β,γ} and the bound of Proposition 1, all (trials, betas)."""

    betas: Matrix
    real_min: Matrix
    real_max: Matrix
    lower_bound: Matrix
    upper_bound: Matrix


def spectrum_against_beta(
    size: int, *, trials: int = 5, betas: Sequence[float] | None = None, gamma: float = 0.001, seed: int = 0
) -> SpectrumAgainstBeta:
    """Spectra of random S_{β,γ} of one size, M with entries from N(0, 1/N), for β from ½ to 1."""
    grid = np.linspace(0.5, 1.0, 21) if betas is None else np.asarray(betas, dtype=np.float64)
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(trials):
        M = rng.normal(size=(size, size)) / np.sqrt(size)
        for beta in grid:
            values = spectrum(SymmetricSkew(float(beta), gamma)(torch.from_numpy(M)))
            rows.append((values.real_min, values.real_max, *proposition1_bounds(M, float(beta), gamma)))
    table = np.array(rows).reshape(trials, len(grid), 4)
    return SpectrumAgainstBeta(grid, table[..., 0], table[..., 1], table[..., 2], table[..., 3])


@dataclass(frozen=True)
class Lemma2:
    """max |Δλ(A_sym)| + max |Δλ(W_sym)| in one gradient step for each β, and its slope in doubly logarithmic scale."""

    betas: Matrix
    change: Matrix
    slope: float


def measure_lemma2(
    *, size: int = 16, betas: Sequence[float] = (0.8, 0.9, 0.95, 0.975, 0.9875), rate: float = 0.1, seed: int = 0
) -> Lemma2:
    """One step of gradient descent on the same data from the same M for every β: the change falls like (1 − β)²."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 8, 2, generator=generator, dtype=torch.float64)
    target = torch.randn(8, size, generator=generator, dtype=torch.float64)
    changes = []
    for beta in betas:
        rnn = LipschitzRNN(2, size, beta=beta, step_size=0.1, dtype=torch.float64)
        start = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in rnn.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=start, dtype=torch.float64) / size**0.5)
        before = _symmetric_eigenvalues(rnn)
        output, _ = rnn(x)
        (output[-1] - target).square().mean().backward()
        with torch.no_grad():
            for parameter in rnn.parameters():
                if parameter.grad is not None:
                    parameter.sub_(rate * parameter.grad)
        after = _symmetric_eigenvalues(rnn)
        changes.append(sum(float((new - old).abs().max()) for new, old in zip(after, before, strict=True)))
    grid, change = np.asarray(betas, dtype=np.float64), np.array(changes)
    slope = float(np.polyfit(np.log(1 - grid), np.log(change), 1)[0])
    return Lemma2(grid, change, slope)


@torch.no_grad()
def _symmetric_eigenvalues(rnn: LipschitzRNN) -> list[Tensor]:
    return [torch.linalg.eigvalsh(0.5 * (matrix + matrix.T)) for matrix in rnn.hidden_matrices()]
