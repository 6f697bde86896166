"""Units with a real orthogonal hidden matrix: exprnn, dtriv, scornn."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.constrained import ConstrainedCell
from lipschitz_rnn.units.matrices import cayley, exponential, planar_rotations, skew
from lipschitz_rnn.units.sequences import Sequences


class OrthogonalCell(ConstrainedCell):
    """h⁺ = modReLU(W h + U x), with W orthogonal and parametrized by a triangle of N(N−1)/2 numbers.

    Initialisation: Kaiming for U, biases uniform in ±0.01, independent rotations of planes for W (`planar_rotations`).
    `relative_rate` ρ: with K = ρ · skew(triangle) and the same initial K, Adam and RMSprop, whose steps do not depend
    on the scale of the gradient, change K at ρ times the learning rate. A small ρ suits long sequences: W is applied so
    often that a small change of K rotates the state a lot.
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
            raise ValueError(f"relative_rate is {relative_rate!r}; it must be positive and finite, e.g. 0.1")
        self.relative_rate = relative_rate
        self.triangle = nn.Parameter(planar_rotations(hidden_size, init) / relative_rate)
        nn.init.kaiming_normal_(self.input.weight, nonlinearity="relu")
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def skew_matrix(self) -> Tensor:
        """K: (N, N)."""
        return skew(self.relative_rate * self.triangle, self.hidden_size)


class ExpRNNCell(OrthogonalCell):
    """h⁺ = modReLU(W h + U x), W = exp(K), K = −Kᵀ, so that W is orthogonal with determinant 1.

    Lezcano-Casado, Martínez-Rubio, "Cheap orthogonal constraints in neural networks", ICML 2019. `init`: "cayley"
    (the paper's choice for MNIST) or "henaff". Parameters N(N−1)/2 + N p + N; with the head, 69K at N = 360 on MNIST
    and 200K at N = 425 on TIMIT. The paper trains K at a tenth of the learning rate: `relative_rate=0.1`.
    """

    def hidden_matrix(self) -> Tensor:
        return exponential(self.skew_matrix())


class DtrivCell(ExpRNNCell):
    """exprnn with a moving base point: W = B exp(K); every `rebase_every` updates, B ← B exp(K) and K ← 0.

    Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", NeurIPS 2019 (dynamic
    trivialisation; every 100 updates in its code). Rebasing leaves W unchanged and happens at the start of a training
    forward pass. A QR factorisation keeps B orthogonal, so that rounding errors do not accumulate. Rebasing depends on
    values, so training works neither under `vmap` nor in a CUDA graph; exprnn trains in both. Do not average weights
    over training: that would mix coordinates around different base points.
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
            raise ValueError(f"rebase_every is {rebase_every!r}; it must be at least 1")
        self.rebase_every = rebase_every
        self.register_buffer("base", torch.eye(hidden_size))
        self.register_buffer("seen", torch.zeros_like(self.triangle))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.rebase()

    @torch.no_grad()
    def rebase(self) -> None:
        """Move the base point to the current W."""
        W = self.hidden_matrix()
        q, r = torch.linalg.qr(W.float() if W.dtype in (torch.bfloat16, torch.float16) else W)
        # `.data`, because the members of an ensemble are slices of one tensor. Only this member's slice changes, and no
        # other member's graph depends on it, but autograd would count a change of the whole tensor.
        self.base.data.copy_(q * torch.sign(r.diagonal()))
        for zeroed in (self.triangle, self.seen, self.updates):
            zeroed.data.zero_()

    @torch.no_grad()
    def count_update(self) -> None:
        """Count the updates, recognised by a changed K, and rebase when due.

        K stays the same between two updates, so it never changes while a graph waits for its backward pass.
        """
        if not has_values(self.triangle):
            raise NotImplementedError(
                "dtriv moves its base point during training, which vmap, torch.compile and CUDA graphs do not support; "
                "train its networks one after another, or use exprnn"
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
    """h⁺ = modReLU(W h + U x), W = (I + K)⁻¹ (I − K) D, K = −Kᵀ, D = diag(±1) fixed, so that W is orthogonal.

    Helfrich, Willmott, Ye, "Orthogonal recurrent neural networks with scaled Cayley transform", ICML 2018. D allows
    W to have the eigenvalue −1; `negative_ones` is the fraction of its entries that are −1 (tuned in the paper; 1/2 by
    default). Parameters N(N−1)/2 + N p + N: 200K at N = 425 on TIMIT with the head.
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
            raise ValueError(f"negative_ones is {negative_ones!r}; it must be in [0, 1], the fraction of −1 in D")
        negative = torch.arange(hidden_size) < round(negative_ones * hidden_size)
        self.register_buffer("signs", torch.where(negative, -1.0, 1.0))

    def hidden_matrix(self) -> Tensor:
        return cayley(self.skew_matrix()) * self.signs
