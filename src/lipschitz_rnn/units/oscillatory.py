"""Two later units, from a second-order and from a multiscale differential equation: cornn, lem."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops import lipschitz_scan
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import TimedCell
from lipschitz_rnn.units.lipschitz.autocast import to_compute_dtype
from lipschitz_rnn.units.lipschitz.settings import backend as check_backend
from lipschitz_rnn.units.recurrence import FeedbackMap, Statement, as_number, repeatable_matrices
from lipschitz_rnn.units.sequences import Sequences


def _uniform(*shape: int, reach: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-reach, reach))


class CoRNNCell(TimedCell):
    """Coupled oscillators: z⁺ = z + Δt (tanh(W y + V z + U x + b) − γ y − ε z), y⁺ = y + Δt z⁺. The state is (y, z).

    Rusch, Mishra, "Coupled oscillatory recurrent neural network (coRNN)", ICLR 2021, with the paper's Δt, γ and ε for
    ordered MNIST. All weights start uniform in ±1/√(p + 2N), like one linear layer of (x, y, z). Parameters
    2N² + N p + N.

    This is also a Lipschitz unit of size 2N. With q = y − Δt z, the y of the previous step, both equations are Euler
    steps: q' = z and z' = tanh(W q + (V + Δt W) z + U x + b) − γ q − (ε + Δt γ) z; in the first, the nonlinear term is
    tanh(0) = 0. This form takes more arithmetic but runs all steps in one kernel. It is used on a GPU, and on any
    device if `backend` is set. With timespans or noise, which act on (y, z), the steps run in a Python loop.
    """

    adds_noise = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.042,
        gamma: float = 2.7,
        epsilon: float = 4.7,
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.step_size, self.gamma, self.epsilon = step_size, gamma, epsilon
        self.backend = check_backend("backend", backend)
        reach = 1.0 / math.sqrt(input_size + 2 * hidden_size)
        self.input = nn.Linear(input_size, hidden_size)
        for parameter in self.input.parameters():
            nn.init.uniform_(parameter, -reach, reach)
        self.hidden = _uniform(2, hidden_size, hidden_size, reach=reach)

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size)

    def project(self, x: Tensor) -> Tensor:
        """U x + b, or x unchanged if the fused scan computes U x + b itself."""
        return x if self._fused(x) else self.input(x)

    def _fused(self, x: Tensor) -> bool:
        return x.is_cuda or self.backend != "auto"

    def weights(self) -> Tensor:
        """(W V)ᵀ: (2N, N)."""
        return torch.cat([self.hidden[0], self.hidden[1]], -1).mT

    def step_over(self, time: float | Tensor, inputs: Tensor, state: State, weights: Tensor) -> State:
        y, z = state
        force = torch.tanh(inputs + torch.cat([y, z], -1) @ weights)
        z = z + time * (force - self.gamma * y - self.epsilon * z)
        return y + time * z, z

    def scan(
        self, inputs: Tensor, state: State, weights: Tensor, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        fused = self._fused(inputs)
        # q depends on the previous step's length: with timespans the matrices of the scan would change at every step.
        obstacle = "timespans" if sequences.timespans is not None else "noise" if self.training and self.noisy else None
        if fused and obstacle is not None:
            if self.backend != "auto":
                raise ValueError(
                    f"backend is {self.backend!r}, with which cornn takes only steps of equal length without noise; "
                    f"build the unit with backend='auto' to use {obstacle}"
                )
            inputs, fused = self.input(inputs), False
        if not fused:
            return super().scan(inputs, state, weights, sequences, need_output)
        y, z = state
        U, b = (torch.cat([torch.zeros_like(part), part]) for part in (self.input.weight, self.input.bias))
        start = torch.cat([y - self.step_size * z, z], -1)
        x, A, W, h0, U, b = to_compute_dtype(inputs, *self._matrices(weights), start, U, b)
        states, last = lipschitz_scan(
            x,
            A,
            W,
            h0,
            self.step_size,
            lengths=sequences.lengths,
            backend=self.backend,
            input_weight=U,
            bias=b,
            need_output=need_output,
        )
        end = (self._positions(last), last[..., self.hidden_size :])
        return None if states is None else self._positions(states), end

    def _matrices(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """A and W of the state (q, z), (2N, 2N) each."""
        W, V = weights.mT.chunk(2, -1)
        one, zero = torch.eye(len(W), dtype=W.dtype, device=W.device), torch.zeros_like(W)
        damping = self.epsilon + self.step_size * self.gamma
        A = torch.cat([torch.cat([zero, one], -1), torch.cat([-self.gamma * one, -damping * one], -1)])
        return A, torch.cat([torch.cat([zero, zero], -1), torch.cat([W, V + self.step_size * W], -1)])

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`: the map of (y, z) for steps of length `step_size`; with timespans it is another."""
        step, gamma, epsilon = (
            as_number(name, getattr(self, name), "coRNN") for name in ("step_size", "gamma", "epsilon")
        )

        def make() -> tuple[Tensor, ...]:
            W, V = self.current_weights(self.hidden.device).mT.chunk(2, -1)
            return W, V

        W, V = repeatable_matrices(make, type(self).__name__)
        one = torch.eye(len(W), dtype=torch.float64, device=W.device)
        # z⁺ = z + Δt (w − γ y − ε z) and y⁺ = y + Δt z⁺.
        rows = [[1 - step**2 * gamma, step - step**2 * epsilon], [-step * gamma, 1 - step * epsilon]]
        # Nothing rounds the ones. The fused scan holds ε + Δt γ in place of ε.
        damping = epsilon + step * gamma
        sums = [[2 * step**2 * gamma, 2 * (step + step**2 * damping)], [2 * step * gamma, 2 * step * damping]]
        F, terms = (torch.kron(one.new_tensor(table), one) for table in (rows, sums))
        G = torch.cat([step**2 * one, step * one])
        # It also holds V + Δt W in place of V.
        around = torch.cat([W.abs(), V.abs() + 2 * step * W.abs()], -1)
        return [FeedbackMap(F, G, torch.cat([W, V], -1), None, "tanh", terms=(terms, None, around, None))]

    def _positions(self, states: Tensor) -> Tensor:
        """y = q + Δt z."""
        q, z = states.chunk(2, -1)
        return q + self.step_size * z


class LEMCell(TimedCell):
    """Long expressive memory: two states (y, z) with learned time steps d and a.

    a = Δt sigmoid(W₁ y + U₁ x + b₁), d = Δt sigmoid(W₂ y + U₂ x + b₂),
    z⁺ = (1 − a) ⊙ z + a ⊙ tanh(W₃ y + U₃ x + b₃), y⁺ = (1 − d) ⊙ y + d ⊙ tanh(W₄ z⁺ + U₄ x + b₄).

    Rusch, Mishra, Erichson, Mahoney, "Long expressive memory for sequence modeling", ICLR 2022. All weights and
    biases start uniform in ±1/√N. Parameters 4(N² + N p + N): one bias vector fewer than an LSTM.
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

    def step_over(self, time: float | Tensor, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor]) -> State:
        y, z = state
        now, last = inputs.split([3 * self.hidden_size, self.hidden_size], -1)
        a, d, target = (now + y @ weights[0]).chunk(3, -1)
        a, d = time * torch.sigmoid(a), time * torch.sigmoid(d)
        z = (1.0 - a) * z + a * torch.tanh(target)
        drive = last + z.to(weights[1].dtype) @ weights[1]  # with timespans z is at least float32
        return (1.0 - d) * y + d * torch.tanh(drive), z
