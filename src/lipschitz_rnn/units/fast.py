"""Small units for small devices: fastrnn, fastgrnn and fastgrnn-lsq."""

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.fastgrnn import fastgrnn_scan
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.fused import kept_map, kept_scan, runs_fused
from lipschitz_rnn.units.lipschitz.settings import backend as check_backend
from lipschitz_rnn.units.recurrence import Statement
from lipschitz_rnn.units.sequences import Sequences


def _small(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.1 * torch.randn(*shape))


class FastRNNCell(Cell):
    """h⁺ = α tanh(W h + U x + b) + β h with learned scalars α, β in (0, 1).

    Kusupati et al., "FastGRNN: a fast, accurate, stable and tiny kilobyte sized gated recurrent neural network",
    NeurIPS 2018. Initial weights 0.1 N(0, 1), b = 1, α = sigmoid(−3), β = sigmoid(3). Parameters N² + N p + N + 2. All
    steps run as one kernel on a GPU, and on any device if `backend` is set.
    """

    def __init__(self, input_size: int, hidden_size: int, *, backend: str = "auto") -> None:
        super().__init__(input_size, hidden_size)
        self.backend = check_backend("backend", backend)
        self.input = nn.Linear(input_size, hidden_size)
        self.input.weight = _small(hidden_size, input_size)
        nn.init.ones_(self.input.bias)
        self.hidden = _small(hidden_size, hidden_size)
        self.shares = nn.Parameter(torch.tensor([-3.0, 3.0]))

    def weights(self) -> tuple[Tensor, ...]:
        return self.hidden.mT, *torch.sigmoid(self.shares)

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, ...]) -> State:
        hidden, alpha, beta = weights
        return (alpha * torch.tanh(inputs + state[0] @ hidden) + beta * state[0],)

    def project(self, x: Tensor) -> Tensor:
        return x if runs_fused(x, self.backend) else super().project(x)

    def scan(
        self, inputs: Tensor, state: State, weights: tuple[Tensor, ...], sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        if not runs_fused(inputs, self.backend):
            return super().scan(inputs, state, weights, sequences, need_output)
        hidden, alpha, beta = weights
        given = (self.input.weight, self.input.bias, sequences, self.backend, need_output)
        states, last = kept_scan(inputs, hidden.mT, beta, state[0], *given, scale=alpha)
        return states, (last,)

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`."""
        return [kept_map(self, lambda weights: (weights[0].mT, weights[2], weights[1]))]


class FastGRNNLSQCell(Cell):
    """z = sigmoid(W h + U x + b_z), g = tanh(W h + U x + b_g), h⁺ = (ζ(1 − z) + ν) ⊙ g + z ⊙ h; gates share W and U.

    FastGRNN without compression: "LSQ" means without low rank, sparsity and quantisation. Paper and initialisation as
    in `FastRNNCell`, with ζ = sigmoid(1), ν = sigmoid(−4). Parameters N² + N p + 2N + 2. Except with `lengths`,
    gradients are written by hand, and on a GPU a step is one product and one kernel.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.biases = nn.Parameter(torch.ones(2, hidden_size))
        self.shares = nn.Parameter(torch.tensor([1.0, -4.0]))
        self.make_matrices()

    def make_matrices(self) -> None:
        self.input_matrix = _small(self.hidden_size, self.input_size)
        self.hidden = _small(self.hidden_size, self.hidden_size)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """U: (N, p) and W: (N, N)."""
        return self.input_matrix, self.hidden

    def project(self, x: Tensor) -> Tensor:
        """U x, which both gates share: (T, B, N)."""
        return x @ self.matrices()[0].mT

    def weights(self) -> tuple[Tensor, ...]:
        return self.matrices()[1].mT, *self.biases, *torch.sigmoid(self.shares)

    def step(self, inputs: Tensor, state: State, weights: tuple[Tensor, ...]) -> State:
        (h,), (hidden, gate_bias, update_bias, zeta, nu) = state, weights
        shared = h @ hidden + inputs.to(h.dtype)  # under autocast both terms have 16 bits, and so would their sum
        z = torch.sigmoid(shared + gate_bias)
        return ((zeta * (1.0 - z) + nu) * torch.tanh(shared + update_bias) + z * h,)

    def scan(
        self, inputs: Tensor, state: State, weights: tuple[Tensor, ...], sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        if sequences.lengths is not None or len(inputs) == 0:
            return super().scan(inputs, state, weights, sequences, need_output)
        hidden, gate_bias, update_bias, zeta, nu = weights
        states = fastgrnn_scan(inputs, hidden.mT, gate_bias, update_bias, zeta, nu, state[0])
        return states, (states[-1].clone(),)


class FastGRNNCell(FastGRNNLSQCell):
    """FastGRNN with compression: low rank, U = U₁ U₂ᵀ and W = W₁ W₂ᵀ, sparse factors, 8-bit weights.

    `input_rank` and `hidden_rank`: None means full rank; `hidden_rank` is N/4 by default. `density`: the fraction of
    each factor's entries to keep, largest first (the paper's iterative hard thresholding, here with a straight-through
    gradient). `quantize`: round each factor to 8 bits, also straight-through. The step is that of `FastGRNNLSQCell`.
    Parameters 2 N r + N p + 2N + 2 before sparsity.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        input_rank: int | None = None,
        hidden_rank: int | None = 0,
        density: float = 1.0,
        quantize: bool = False,
    ) -> None:
        self.ranks = (input_rank, max(1, hidden_size // 4) if hidden_rank == 0 else hidden_rank)
        for name, rank in zip(("input_rank", "hidden_rank"), self.ranks, strict=True):
            if rank is not None and not 1 <= rank <= hidden_size:
                raise ValueError(f"{name} is {rank!r}; it must be from 1 to hidden_size = {hidden_size}, or None")
        if not 0.0 < density <= 1.0:
            raise ValueError(f"density is {density!r}; it must be in (0, 1]")
        self.density, self.quantize = density, quantize
        super().__init__(input_size, hidden_size)

    def make_matrices(self) -> None:
        def factors(columns: int, rank: int | None) -> nn.ParameterList:
            shapes = [(self.hidden_size, columns)] if rank is None else [(self.hidden_size, rank), (columns, rank)]
            return nn.ParameterList([_small(*shape) for shape in shapes])

        self.input_factors = factors(self.input_size, self.ranks[0])
        self.hidden_factors = factors(self.hidden_size, self.ranks[1])

    def extra_repr(self) -> str:
        ranks = f"input_rank={self.ranks[0]}, hidden_rank={self.ranks[1]}"
        return f"{ranks}, density={self.density}, quantize={self.quantize}"

    def matrices(self) -> tuple[Tensor, Tensor]:
        def product(factors: nn.ParameterList) -> Tensor:
            parts = [self.compressed(factor) for factor in factors]
            return parts[0] if len(parts) == 1 else parts[0] @ parts[1].mT

        return product(self.input_factors), product(self.hidden_factors)

    def compressed(self, factor: Tensor) -> Tensor:
        """The factor with its smallest entries zeroed and the rest rounded to 255 levels; straight-through gradient."""
        value = factor.detach()
        if self.density < 1.0:
            kept = max(1, round(self.density * value.numel()))
            places = value.abs().flatten().topk(kept).indices  # exactly as many, also where entries are equal
            value = torch.zeros_like(value).flatten().scatter(0, places, value.flatten()[places]).view_as(value)
        if self.quantize:
            level = value.abs().max() / 127.0
            value = torch.where(level > 0.0, torch.round(value / level) * level, 0.0)  # all zero: nothing to round
        return factor + (value - factor.detach())
