"""Units with a real hidden matrix that is orthogonal: exprnn, dtriv, scornn."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.constrained import ConstrainedCell
from lipschitz_rnn.units.matrices import cayley, exponential, planar_rotations, skew
from lipschitz_rnn.units.sequences import Sequences


class OrthogonalCell(ConstrainedCell):
    """h⁺ = modReLU(W h + U x), W orthogonal from a triangle of N(N−1)/2 numbers.

    Input by Kaiming, biases uniform in ±0.01, planes rotated independently at the start (`planar_rotations`).
    `relative_rate` ρ: K = ρ · skew(triangle) starts the same, and Adam or RMSprop, whose steps do not depend on the
    size of a gradient, move K at ρ times the rate of the other parameters. Small ρ suits long sequences, in which W is
    multiplied by itself so often that a small change of K turns the state by much.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: str = "cayley",
        nonlinearity: str = "modrelu",
        relative_rate: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        if not 0.0 < relative_rate < math.inf:
            raise ValueError(f"relative_rate is a positive factor, such as 0.1, got {relative_rate!r}")
        self.relative_rate = relative_rate
        self.triangle = nn.Parameter(planar_rotations(hidden_size, init) / relative_rate)
        nn.init.kaiming_normal_(self.input.weight, nonlinearity="relu")
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def skew_matrix(self) -> Tensor:
        """K: (N, N)."""
        return skew(self.relative_rate * self.triangle, self.hidden_size)


class ExpRNNCell(OrthogonalCell):
    """h⁺ = modReLU(W h + U x), W = exp(K), K = −Kᵀ: W orthogonal with determinant 1.

    Lezcano-Casado, Martínez-Rubio, "Cheap orthogonal constraints in neural networks", ICML 2019. `init`: "cayley"
    (theirs on MNIST) or "henaff". Parameters N(N−1)/2 + N p + N: with heads 69K at N = 360 on MNIST and 200K at
    N = 425 on TIMIT. The paper trains K at a tenth of the other parameters' rate: `relative_rate=0.1`.
    """

    def hidden_matrix(self) -> Tensor:
        return exponential(self.skew_matrix())


class DtrivCell(ExpRNNCell):
    """exprnn around a moving point: W = B exp(K); every `rebase_every` updates B ← B exp(K) and K ← 0.

    Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", NeurIPS 2019 (dynamic
    trivialisation; 100 updates in its code). The move leaves W as it is and is made at the start of a training forward
    pass. B is brought back to the group by a QR factorisation, so that rounding does not add up. The move depends on
    values, so that training runs neither under `vmap` nor in a CUDA graph; exprnn does. An average of weights over
    training would mix coordinates around different points.
    """

    base: Tensor
    seen: Tensor
    updates: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        rebase_every: int = 100,
        init: str = "cayley",
        nonlinearity: str = "modrelu",
        relative_rate: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, nonlinearity=nonlinearity, relative_rate=relative_rate)
        if rebase_every < 1:
            raise ValueError(f"rebase_every must be at least 1, got {rebase_every!r}")
        self.rebase_every = rebase_every
        self.register_buffer("base", torch.eye(hidden_size))
        self.register_buffer("seen", torch.zeros_like(self.triangle))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.rebase()

    @torch.no_grad()
    def rebase(self) -> None:
        """Move the point of expansion to the present W."""
        q, r = torch.linalg.qr(self.hidden_matrix())
        # `.data`: the members of an ensemble are slices of one tensor. What changes here is this member's slice, on
        # which no graph of another member depends, though autograd would see one tensor that has changed.
        self.base.data.copy_(q * torch.sign(r.diagonal()))
        for zeroed in (self.triangle, self.seen, self.updates):
            zeroed.data.zero_()

    @torch.no_grad()
    def count_update(self) -> None:
        """An update shows in K. Passes between two updates see the same K, so that K never moves under a graph that
        still waits for its backward pass."""
        if not has_values(self.triangle):
            raise NotImplementedError(
                "dtriv moves its point of expansion while it trains, which vmap, torch.compile and CUDA graphs do not "
                "allow; train its networks one after another, or use exprnn"
            )
        if not torch.equal(self.triangle, self.seen):
            self.seen.data.copy_(self.triangle)
            self.updates.data.add_(1)
            if int(self.updates) >= self.rebase_every:
                self.rebase()

    def hidden_matrix(self) -> Tensor:
        return self.base @ super().hidden_matrix()

    def run(
        self, x: Tensor, state: State | None, sequences: Sequences, need_output: bool
    ) -> tuple[Tensor | None, State]:
        if self.training:
            self.count_update()
        return super().run(x, state, sequences, need_output)


class ScoRNNCell(OrthogonalCell):
    """h⁺ = modReLU(W h + U x), W = (I + K)⁻¹ (I − K) D, K = −Kᵀ, D = diag(±1) fixed: W orthogonal.

    Helfrich, Willmott, Ye, "Orthogonal recurrent neural networks with scaled Cayley transform", ICML 2018. D has
    `negative_ones` · N entries −1 (a tuned hyperparameter there, N/2 unless told otherwise) and lets W have the
    eigenvalue −1. Parameters N(N−1)/2 + N p + N: 200K at N = 425 on TIMIT with its head.
    """

    signs: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        negative_ones: float = 0.5,
        init: str = "cayley",
        nonlinearity: str = "modrelu",
        relative_rate: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, nonlinearity=nonlinearity, relative_rate=relative_rate)
        if not 0.0 <= negative_ones <= 1.0:
            raise ValueError(f"negative_ones is the share of −1 in D, in [0, 1], got {negative_ones!r}")
        negative = torch.arange(hidden_size) < round(negative_ones * hidden_size)
        self.register_buffer("signs", torch.where(negative, -1.0, 1.0))

    def hidden_matrix(self) -> Tensor:
        return cayley(self.skew_matrix()) * self.signs
