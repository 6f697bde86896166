"""The step h⁺ = σ(W h + U x + b) shared by orthogonal and unitary units, which differ in how W is parametrized."""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipschitz_rnn.ops.common.tracing import traceless
from lipschitz_rnn.ops.modrelu import modrelu_scan
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.matrices import mod_relu
from lipschitz_rnn.units.sequences import Sequences

NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "identity": lambda z: z,
}


class ConstrainedCell(Cell):
    """h⁺ = σ(W h + U x + b), with W = `hidden_matrix()` computed once per forward pass.

    σ is "tanh", "relu", "leaky_relu", "identity" or "modrelu", whose bias b acts on the modulus (U x then has no bias).
    """

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: str = "modrelu") -> None:
        super().__init__(input_size, hidden_size)
        if nonlinearity != "modrelu" and nonlinearity not in NONLINEARITIES:
            allowed = ", ".join(["modrelu", *NONLINEARITIES])
            raise ValueError(f"nonlinearity is {nonlinearity!r}; choose one of {allowed}")
        self.nonlinearity = nonlinearity
        self.input = nn.Linear(input_size, hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    @abstractmethod
    def hidden_matrix(self) -> Tensor:
        """W: (N, N), real or complex."""

    def weights(self) -> Tensor:
        return self.hidden_matrix().mT

    def step(self, inputs: Tensor, state: State, weights: Tensor) -> State:
        z = inputs + state[0] @ weights
        if self.nonlinearity == "modrelu":
            return (mod_relu(z, self.bias),)
        return (NONLINEARITIES[self.nonlinearity](z + self.bias),)

    def scan(
        self, inputs: Tensor, state: State, weights: Tensor, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        if self.nonlinearity != "modrelu" or sequences.lengths is not None or len(inputs) == 0:
            return super().scan(inputs, state, weights, sequences, need_output)
        states = modrelu_scan(inputs, weights.mT, self.bias, state[0])
        return states, (states[-1].clone(),)

    def extra_repr(self) -> str:
        return f"nonlinearity={self.nonlinearity!r}"


class UnitaryCell(ConstrainedCell):
    """h⁺ = modReLU(W h + U x), all complex, with W unitary. The output of a step is (Re h, Im h): 2N real numbers.

    Initialised like the first unitary RNN: Glorot for U, b = 0, and a learned h₀, uniform with E‖h₀‖² = 1.

    All steps run as one scan of these 2N real numbers. With `lengths`, and where a compiler or an exporter traces the
    unit, the loop over complex numbers is used.
    """

    complex_state = True

    def __init__(self, input_size: int, hidden_size: int, *, learn_initial_state: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.output_size = 2 * hidden_size
        self.input = nn.Linear(input_size, 2 * hidden_size, bias=False)
        nn.init.xavier_uniform_(self.input.weight)
        self.start = None
        if learn_initial_state:
            reach = math.sqrt(3 / (2 * hidden_size))
            self.start = nn.Parameter(torch.empty(2, hidden_size).uniform_(-reach, reach))

    def run(
        self, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        if self.bias.dtype in (torch.bfloat16, torch.float16):
            raise TypeError(
                f"the parameters are {self.bias.dtype}, but this unit has a complex state, which PyTorch computes in "
                "float32 and float64 only; convert the unit with .float(), and use autocast for 16 bits"
            )
        return super().run(x, state, sequences, need_output)

    def scan(
        self, inputs: Tensor, state: State, weights: Tensor, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        if sequences.lengths is not None or len(inputs) == 0 or not traceless():
            drive = torch.complex(*inputs.to(self.bias.dtype).chunk(2, -1))
            return self.scan_steps(drive, state, weights, sequences, need_output)
        W = torch.cat([weights.real, weights.imag], -1).mT
        states = modrelu_scan(inputs, W, self.bias, self.output(state[0]))
        return states, (torch.complex(*states[-1].chunk(2, -1)),)

    def initial_state(self, batch: int, inputs: Tensor) -> State:
        start = self.bias.new_zeros(2, self.hidden_size) if self.start is None else self.start
        return (torch.complex(start[0], start[1]).expand(batch, -1),)

    def output(self, h: Tensor) -> Tensor:
        return torch.cat([h.real, h.imag], -1) if h.is_complex() else h
