"""Two successors built from second-order and two-scale differential equations: cornn, lem."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell


def _uniform(*shape: int, reach: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-reach, reach))


class CoRNNCell(Cell):
    """Coupled oscillators: z⁺ = z + Δt (tanh(W y + V z + U x + b) − γ y − ε z), y⁺ = y + Δt z⁺. The state is (y, z).

    Rusch, Mishra, "Coupled oscillatory recurrent neural network (coRNN)", ICLR 2021, with the Δt, γ and ε of its
    ordered MNIST. All weights uniform in ±1/√(p + 2N), one linear layer of (x, y, z). Parameters 2N² + N p + N.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.042,
        gamma: float = 2.7,
        epsilon: float = 4.7,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.step_size, self.gamma, self.epsilon = step_size, gamma, epsilon
        reach = 1.0 / math.sqrt(input_size + 2 * hidden_size)
        self.input = nn.Linear(input_size, hidden_size)
        for parameter in self.input.parameters():
            nn.init.uniform_(parameter, -reach, reach)
        self.hidden = _uniform(2, hidden_size, hidden_size, reach=reach)

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size)

    def weights(self) -> Tensor:
        """(W V)ᵀ: (2N, N)."""
        return torch.cat([self.hidden[0], self.hidden[1]], -1).mT

    def step(self, inputs: Tensor, state: State, weights: Tensor) -> State:
        y, z = state
        force = torch.tanh(inputs + torch.cat([y, z], -1) @ weights)
        z = z + self.step_size * (force - self.gamma * y - self.epsilon * z)
        return y + self.step_size * z, z


class LEMCell(Cell):
    """Long expressive memory: two learned time steps a, d and two states y, z. The state is (y, z).

    a = Δt sigmoid(W₁ y + U₁ x + b₁), d = Δt sigmoid(W₂ y + U₂ x + b₂),
    z⁺ = (1 − a) ⊙ z + a ⊙ tanh(W₃ y + U₃ x + b₃), y⁺ = (1 − d) ⊙ y + d ⊙ tanh(W₄ z⁺ + U₄ x + b₄).

    Rusch, Mishra, Erichson, Mahoney, "Long expressive memory for sequence modeling", ICLR 2022. All weights and
    biases uniform in ±1/√N. Parameters 4(N² + N p + N), one bias fewer than an LSTM.
    """

    def __init__(self, input_size: int, hidden_size: int, *, step_size: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        self.step_size = step_size
        reach = 1.0 / math.sqrt(hidden_size)
        self.input = nn.Linear(input_size, 4 * hidden_size)
        for parameter in self.input.parameters():
            nn.init.uniform_(parameter, -reach, reach)
        self.hidden = _uniform(4, hidden_size, hidden_size, reach=reach)

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size)

    def weights(self) -> tuple[Tensor, Tensor]:
        return self.hidden[:3].flatten(0, 1).mT, self.hidden[3].mT

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor]) -> State:
        y, z = state
        now, last = inputs.split([3 * self.hidden_size, self.hidden_size], -1)
        a, d, target = (now + y @ weights[0]).chunk(3, -1)
        a, d = self.step_size * torch.sigmoid(a), self.step_size * torch.sigmoid(d)
        z = (1.0 - a) * z + a * torch.tanh(target)
        return (1.0 - d) * y + d * torch.tanh(last + z @ weights[1]), z
