"""LSTMs with momentum on the input of the gates: momentum-lstm, srlstm."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipschitz_rnn.ops.common.dtypes import without_autocast
from lipschitz_rnn.ops.linear import linear_scan
from lipschitz_rnn.ops.lstm import lstm_scan
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.sequences import Sequences


class MomentumCell(Cell):
    """The LSTM shared by both units. Parameters 4(N² + N p + 2N), as in an LSTM.

    Initialised as in Nguyen et al.'s code: orthogonal input weights, ones on the main diagonal of the (4N, N) hidden
    weights, both forget biases 1, all other biases 0.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.input = nn.Linear(input_size, 4 * hidden_size)
        self.hidden = nn.Linear(hidden_size, 4 * hidden_size)
        nn.init.orthogonal_(self.input.weight)
        nn.init.eye_(self.hidden.weight)
        for bias in (self.input.bias, self.hidden.bias):
            nn.init.zeros_(bias)
            nn.init.ones_(bias[hidden_size : 2 * hidden_size])

    def weights(self) -> tuple[Tensor, Tensor]:
        return self.hidden.weight.mT, self.hidden.bias

    @staticmethod
    def gated(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """h⁺ and c⁺ of the LSTM from the gates i, f, g, o."""
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class MomentumLSTMCell(MomentumCell):
    """v⁺ = μ v + s (U x + b), then an LSTM on the gates W h + b' + v⁺. The state is (h, c, v).

    Nguyen, Baraniuk, Bertozzi, Osher, Wang, "MomentumRNN: integrating momentum into recurrent neural networks",
    NeurIPS 2020; μ = 0.6 (`momentum`) and s = 0.6 (`step_size`) on MNIST, 0.3 and 0.1 on TIMIT. At
    N = 256, with the head: 268K ≈ 270K.

    v depends on the input only. With `fused=True` it is computed for all steps in parallel, and the gates by
    `lipschitz_rnn.ops.lstm.lstm_scan`: in half precision on a GPU with N ≤ 128, one kernel for all steps and networks.
    From v = 0, the momentum acts on x and on the 1 that b multiplies, which are few numbers, and U comes after it.
    With `lengths` the loop is used in either case.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        momentum: float = 0.6,
        step_size: float = 0.6,
        fused: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.momentum, self.step_size, self.fused = momentum, step_size, fused

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size, 4 * self.hidden_size)

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor]) -> State:
        h, c, v = state
        v = self.momentum * v + self.step_size * inputs
        return (*self.gated(h @ weights[0] + weights[1] + v, c), v)

    def run(
        self, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        if not self.fused or state is not None or sequences.lengths is not None or len(x) == 0:
            return super().run(x, state, sequences, need_output)
        h, c, v = self.initial_state(x.shape[1], x)
        hidden, bias = self.current_weights(x.device)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        added = self.step_size * F.pad(x, (0, 1), value=1.0).to(wide)
        gathered = linear_scan(added.new_full((1, 1, 1), self.momentum), added, torch.zeros_like(added[0]))
        U = torch.cat([self.input.weight, self.input.bias.unsqueeze(-1)], -1)
        output, h, c = lstm_scan(gathered.to(x.dtype), U, hidden.mT, bias, h, c)
        with without_autocast(x.device):
            v = F.linear(gathered[-1], U.to(wide)).to(v.dtype)
        return output if need_output else None, (h, c, v)

    def scan(
        self,
        inputs: Tensor,
        state: State,
        weights: tuple[Tensor, Tensor],
        sequences: Sequences,
        need_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        if not self.fused or sequences.lengths is not None or len(inputs) == 0:
            return super().scan(inputs, state, weights, sequences, need_output)
        h, c, v = state
        wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
        added = self.step_size * inputs.to(wide)
        driving = linear_scan(added.new_full((1, 1, 1), self.momentum), added, v.to(wide))
        size, parameter = driving.shape[-1], weights[0]
        one = torch.eye(size, dtype=parameter.dtype, device=parameter.device)
        output, h, c = lstm_scan(driving.to(inputs.dtype), one, weights[0].mT, weights[1], h, c)
        return output, (h, c, driving[-1].to(v.dtype))


class ScheduledRestartLSTMCell(MomentumCell):
    """p⁺ = W h + b' − s (U x + b), then an LSTM on the gates p⁺ + k/(k + 3) (p⁺ − p); k counts steps modulo F.

    Nesterov momentum with scheduled restarts, from the same paper as `MomentumLSTMCell`; F = 40 (`restart`; None means
    never) and s = 0.9 on permuted MNIST, 2 and 1 on ordered MNIST, 2 and 0.1 on TIMIT. The state is (h, c, p, k), so a
    sequence can be processed in pieces with the same result.
    """

    clocks = (3,)

    def __init__(self, input_size: int, hidden_size: int, *, restart: int | None = 40, step_size: float = 0.9) -> None:
        super().__init__(input_size, hidden_size)
        if restart is not None and restart < 1:
            raise ValueError(f"restart is {restart!r}; it must be a number of steps, at least 1, or None")
        self.restart, self.step_size = restart, step_size

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size, 4 * self.hidden_size, 1)

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, Tensor]) -> State:
        h, c, before, k = state
        p = h @ weights[0] + weights[1] - self.step_size * inputs
        h, c = self.gated(p + k / (k + 3.0) * (p - before), c)
        k = k + 1.0
        return h, c, p, k if self.restart is None else torch.remainder(k, self.restart)
