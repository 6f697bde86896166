"""Units with a real hidden matrix that is orthogonal: exprnn, dtriv, scornn."""

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.checks import has_values
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.constrained import ConstrainedCell
from lipschitz_rnn.units.matrices import cayley, planar_rotations, skew


class OrthogonalCell(ConstrainedCell):
    """h⁺ = modReLU(W h + U x), W orthogonal from a triangle of N(N−1)/2 numbers.

    Input by Kaiming, biases uniform in ±0.01, planes rotated independently at the start (`planar_rotations`).
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, init: str = "cayley", nonlinearity: str = "modrelu"
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        self.triangle = nn.Parameter(planar_rotations(hidden_size, init))
        nn.init.kaiming_normal_(self.input.weight, nonlinearity="relu")
        nn.init.uniform_(self.bias, -0.01, 0.01)


class ExpRNNCell(OrthogonalCell):
    """h⁺ = modReLU(W h + U x), W = exp(K), K = −Kᵀ: W orthogonal with determinant 1.

    Lezcano-Casado, Martínez-Rubio, "Cheap orthogonal constraints in neural networks", ICML 2019. `init`: "cayley"
    (theirs on MNIST) or "henaff". Parameters N(N−1)/2 + N p + N: with heads 69K at N = 360 on MNIST and 200K at
    N = 425 on TIMIT. The paper trains K at a tenth of the other parameters' rate.
    """

    def hidden_matrix(self) -> Tensor:
        return torch.matrix_exp(skew(self.triangle, self.hidden_size))


class DtrivCell(ExpRNNCell):
    """exprnn around a moving point: W = B exp(K); every `rebase_every` updates B ← B exp(K) and K ← 0.

    Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", NeurIPS 2019 (dynamic
    trivialisation; 100 updates in its code). The move leaves W as it is and is made at the start of a training forward
    pass. B is brought back to the group by a QR factorisation, so that rounding does not add up. Members of an
    ensemble share one tensor of parameters that must not change in between: there the point stays where it is.
    """

    base: Tensor
    updates: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        rebase_every: int = 100,
        init: str = "cayley",
        nonlinearity: str = "modrelu",
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, nonlinearity=nonlinearity)
        if rebase_every < 1:
            raise ValueError(f"rebase_every must be at least 1, got {rebase_every!r}")
        self.rebase_every = rebase_every
        self.register_buffer("base", torch.eye(hidden_size))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.rebase()

    @torch.no_grad()
    def rebase(self) -> None:
        """Move the point of expansion to the present W."""
        q, r = torch.linalg.qr(self.hidden_matrix())
        self.base.copy_(q * torch.sign(r.diagonal()))
        self.triangle.zero_()
        self.updates.zero_()
        self.seen_version = self.triangle._version

    def hidden_matrix(self) -> Tensor:
        return self.base @ super().hidden_matrix()

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        # An optimiser's update shows in the parameter's version. Several passes between two updates see the same
        # one, so that the parameter never moves under a graph that still waits for its backward pass.
        if self.training and self._owns_parameters() and self.triangle._version != self.seen_version:
            self.seen_version = self.triangle._version
            self.updates.add_(1)
            if int(self.updates) >= self.rebase_every:
                self.rebase()
        return super().run(x, state, lengths)

    def _owns_parameters(self) -> bool:
        """Whether they may be changed here: not under a function transform, and not a slice of an ensemble's."""
        whole = self.triangle._base
        return has_values(self.triangle) and (whole is None or whole.numel() == self.triangle.numel())


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
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, nonlinearity=nonlinearity)
        if not 0.0 <= negative_ones <= 1.0:
            raise ValueError(f"negative_ones is the share of −1 in D, in [0, 1], got {negative_ones!r}")
        negative = torch.arange(hidden_size) < round(negative_ones * hidden_size)
        self.register_buffer("signs", torch.where(negative, -1.0, 1.0))

    def hidden_matrix(self) -> Tensor:
        return cayley(skew(self.triangle, self.hidden_size)) * self.signs
