"""Continuous-time units with a gate on the derivative: antisymmetric-gated, lipschitz-gated."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import TimedCell
from lipschitz_rnn.units.continuous import antisymmetric_matrix, chang_initialisation
from lipschitz_rnn.units.lipschitz import SymmetricSkew
from lipschitz_rnn.units.matrices import triangle_size


class GatedCell(TimedCell):
    """h⁺ = h + ε sigmoid(W h + V x + c) ⊙ (α A h + tanh(W h + U x + b)): W is shared; A is optional."""

    def __init__(self, input_size: int, hidden_size: int, step_size: float, alpha: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        if not step_size > 0.0:
            raise ValueError(f"step_size is {step_size!r}; it must be positive")
        self.step_size, self.alpha = step_size, alpha
        self.input = nn.Linear(input_size, hidden_size)
        self.gate = nn.Linear(input_size, hidden_size)

    @abstractmethod
    def hidden_matrices(self) -> tuple[Tensor | None, Tensor]:
        """A (None without a linear term) and W: (N, N) each."""

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([self.input(x), self.gate(x)], -1)

    def weights(self) -> tuple[Tensor | None, Tensor]:
        linear, hidden = self.hidden_matrices()
        return None if linear is None else self.alpha * linear.mT, hidden.mT

    def step_over(
        self, time: float | Tensor, inputs: Tensor, state: State, weights: tuple[Tensor | None, Tensor]
    ) -> State:
        (h,), (linear, hidden) = state, weights
        drive, gate = inputs.chunk(2, -1)
        shared = h @ hidden
        rate = torch.tanh(drive + shared)
        if linear is not None:
            rate = rate + h @ linear
        return (h + time * torch.sigmoid(gate + shared) * rate,)


class GatedAntisymmetricCell(GatedCell):
    """h⁺ = h + ε sigmoid(W h + V x + c) ⊙ tanh(W h + U x + b), W = K − γI with K = −Kᵀ exactly.

    The gated form of `AntisymmetricCell`, with the same paper and initialisation. The gate adds N p + N parameters: 10K
    at N = 128 on MNIST with the head.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        gamma: float = 0.001,
        init_scale: float = 1.0,
        step_size: float = 0.01,
    ) -> None:
        super().__init__(input_size, hidden_size, step_size)
        self.gamma = gamma
        self.triangle = nn.Parameter(torch.empty(triangle_size(hidden_size)))
        chang_initialisation(self.triangle, hidden_size, init_scale, self.input, self.gate)

    def hidden_matrices(self) -> tuple[None, Tensor]:
        return None, antisymmetric_matrix(self.triangle, self.hidden_size, self.gamma)


class GatedLipschitzCell(GatedCell):
    """h⁺ = h + ε sigmoid(W h + V x + c) ⊙ (α A h + tanh(W h + U x + b)), A and W symmetric-skew matrices.

    From the public code of Erichson, Azencot, Queiruga, Hodgkinson, Mahoney, "Lipschitz recurrent neural networks",
    ICLR 2021; not in the paper. Matrices and initialisation are those of the Lipschitz unit.
    Parameters 2N² + 2N p + 2N.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        beta: float | tuple[float, float] = 0.75,
        gamma: float | tuple[float, float] = 0.001,
        step_size: float = 0.03,
        alpha: float = 1.0,
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(input_size, hidden_size, step_size, alpha)
        betas, gammas = ((value, value) if isinstance(value, int | float) else value for value in (beta, gamma))
        self.shapes = [SymmetricSkew(*pair) for pair in zip(betas, gammas, strict=True)]
        self.free = nn.Parameter(torch.randn(2, hidden_size, hidden_size) * (init_scale / hidden_size))

    def hidden_matrices(self) -> tuple[Tensor, Tensor]:
        A, W = (shape(M) for shape, M in zip(self.shapes, self.free, strict=True))
        return A, W
