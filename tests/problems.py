"""Problems with known answers, and the recurrence a second time in plain NumPy.

Nothing here uses the package: it is what the package is measured against.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

INTEGRATORS = ("euler", "midpoint", "heun", "rk4")
ORDERS = {"euler": 1, "midpoint": 2, "heun": 2, "rk4": 4}
NONLINEARITIES = ("tanh", "relu", "sigmoid", "identity")
SIGMA: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0.0),
    "sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "identity": lambda z: z,
}


def symmetric_skew(M: Array, beta: float, gamma: float) -> Array:
    """(1−β)(M + Mᵀ) + β(M − Mᵀ) − γI, as the paper writes it."""
    return (1 - beta) * (M + M.T) + beta * (M - M.T) - gamma * np.eye(len(M))


def step(h: Array, field: Callable[[Array], Array], size: float, integrator: str) -> Array:
    """One step of a textbook method for ḣ = f(h)."""
    if integrator == "euler":
        return h + size * field(h)
    if integrator == "midpoint":
        return h + size * field(h + size / 2 * field(h))
    k1 = field(h)
    if integrator == "heun":
        return h + size / 2 * (k1 + field(h + size * k1))
    k2 = field(h + size / 2 * k1)
    k3 = field(h + size / 2 * k2)
    k4 = field(h + size * k3)
    return h + size / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@dataclass
class Problem:
    """The arguments of ``lipschitz_scan`` for one network: see there for the shapes."""

    u: Tensor
    A: Tensor
    W: Tensor
    hx: Tensor | None
    step_size: float | Tensor
    alpha: float
    integrator: str
    nonlinearity: str
    lengths: Tensor | None
    input_weight: Tensor | None
    bias: Tensor | None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What has a gradient."""
        every = {name: getattr(self, name) for name in ("u", "A", "W", "hx", "step_size", "input_weight", "bias")}
        return {name: value for name, value in every.items() if isinstance(value, Tensor)}

    @property
    def arguments(self) -> dict[str, object]:
        return dict(vars(self))

    def with_gradients(self) -> Problem:
        """The same problem on fresh leaves."""
        leaves = {name: value.detach().clone().requires_grad_() for name, value in self.tensors.items()}
        return Problem(**{**vars(self), **leaves})


def random_problem(
    generator: torch.Generator,
    *,
    integrator: str = "euler",
    nonlinearity: str = "tanh",
    alpha: float = 1.0,
    timespans: bool = False,
    lengths: bool = False,
    initial: bool = True,
    inputs: bool = False,
    bias: bool = False,
    networks: int | None = None,
    steps: int = 5,
    batch: int = 3,
    size: int = 4,
    features: int = 2,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """A scan with entries of order one, so that no term is too small to see; ``networks`` adds the ensemble axis."""
    lead = () if networks is None else (networks,)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*lead, *shape, generator=generator, dtype=dtype)

    return Problem(
        u=normal(steps, batch, features if inputs else size),
        A=normal(size, size, scale=0.7 / math.sqrt(size)),
        W=normal(size, size, scale=1.5 / math.sqrt(size)),
        hx=normal(batch, size) if initial else None,
        step_size=0.1 + 0.4 * torch.rand(*lead, steps, batch, generator=generator, dtype=dtype) if timespans else 0.3,
        alpha=alpha,
        integrator=integrator,
        nonlinearity=nonlinearity,
        lengths=torch.randint(1, steps + 1, (*lead, batch), generator=generator) if lengths else None,
        input_weight=normal(size, features) if inputs else None,
        bias=normal(size) if inputs and bias else None,
    )


def numpy_scan(problem: Problem) -> tuple[Array, Array]:
    """States and last state of one problem, sample by sample and step by step, on column vectors."""
    if problem.A.dim() == 3:
        members = [numpy_scan(member(problem, s)) for s in range(problem.A.shape[0])]
        return np.stack([states for states, _ in members]), np.stack([last for _, last in members])
    x, A, W = (tensor.detach().double().numpy() for tensor in (problem.u, problem.A, problem.W))
    T, B, N = x.shape[0], x.shape[1], len(A)
    sigma = SIGMA[problem.nonlinearity]
    states, last = np.zeros((T, B, N)), np.zeros((B, N))
    for b in range(B):
        h = np.zeros(N) if problem.hx is None else problem.hx[b].detach().double().numpy()
        for t in range(T if problem.lengths is None else int(problem.lengths[b])):
            u = x[t, b]
            if problem.input_weight is not None:
                u = problem.input_weight.detach().double().numpy() @ u
            if problem.bias is not None:
                u = u + problem.bias.detach().double().numpy()
            size = problem.step_size
            size = float(size[t, b]) if isinstance(size, Tensor) else size
            h = step(h, lambda y, u=u: problem.alpha * A @ y + sigma(W @ y + u), size, problem.integrator)
            states[t, b] = h
        last[b] = h
    return states, last


def member(problem: Problem, s: int) -> Problem:
    """One network of an ensemble on its own."""
    chosen = {name: value[s] if isinstance(value, Tensor) else value for name, value in vars(problem).items()}
    return Problem(**chosen)


def linear_solution(K: Tensor, u: Tensor, h0: Tensor, time: float) -> Tensor:
    """The solution of ḣ = K h + u, u constant: h(t) = e^{Kt}(h₀ + K⁻¹u) − K⁻¹u."""
    rest = torch.linalg.solve(K, u)
    return torch.linalg.matrix_exp(K * time) @ (h0 + rest) - rest


def tanh_solution(w: float, u: float, h0: float, time: float) -> float:
    """The solution of ḣ = tanh(w h + u): with z = w h + u, d(sinh z)/dt = w sinh z."""
    z = math.asinh(math.sinh(w * h0 + u) * math.exp(w * time))
    return (z - u) / w


def relative_error(value: Tensor, exact: Tensor) -> float:
    """‖value − exact‖ / ‖exact‖ in float64."""
    value, exact = value.detach().double(), exact.detach().double()
    return float((value - exact).norm() / exact.norm())
