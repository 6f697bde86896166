"""Units that control the spectrum of a non-orthogonal hidden matrix: soft-orth, spectral-rnn, nnrnn."""

import math

import torch
from torch import Tensor, nn

from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.constrained import ConstrainedCell
from lipschitz_rnn.units.fused import kept_scan, require_fused, runs_fused
from lipschitz_rnn.units.matrices import (
    exponential,
    householder_product,
    planar_rotations,
    random_unitary,
    skew,
    triangle_size,
    within_margin,
)
from lipschitz_rnn.units.sequences import Sequences

FUSED = ("tanh", "relu", "identity")


class FusedConstrainedCell(ConstrainedCell):
    """A constrained cell whose steps run as one kernel on a GPU, and on any device if `backend` is set.

    That holds for the nonlinearities of the fused scan: tanh, relu and identity. Others run step by step.
    """

    backend = "auto"  # of modules pickled before there was the option

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: str, backend: str) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        self.backend = require_fused(
            backend, nonlinearity in FUSED, f"nonlinearity {nonlinearity!r} is none of {', '.join(FUSED)}"
        )

    def _fused(self, x: Tensor) -> bool:
        return self.nonlinearity in FUSED and runs_fused(x, self.backend)

    def project(self, x: Tensor) -> Tensor:
        return x if self._fused(x) else super().project(x)

    def scan(
        self, inputs: Tensor, state: State, weights: Tensor, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        if not self._fused(inputs):
            return super().scan(inputs, state, weights, sequences, need_output)
        given = (self.input.weight, self.bias, sequences, self.backend, need_output)
        states, last = kept_scan(inputs, weights.mT, 0.0, state[0], *given, nonlinearity=self.nonlinearity)
        return states, (last,)


class SoftOrthogonalCell(FusedConstrainedCell):
    """h⁺ = tanh(W h + U x + b), W = P diag(s) Qᵀ with P, Q orthogonal and 1 − m < s < 1 + m.

    Vorontsov, Trabelsi, Kadoury, Pal, "On orthogonality and learning recurrent networks with long term dependencies",
    ICML 2017. The paper moves P and Q along geodesics; here P = P₀ exp(K) and Q = Q₀ exp(L) with random P₀, Q₀, so any
    optimiser stays in the set. s starts at 1. W has N² parameters: 18K at N = 128 on MNIST with the head.
    """

    bases: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        margin: float = 0.1,
        nonlinearity: str = "tanh",
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity, backend=backend)
        if not 0.0 <= margin < 1.0:
            raise ValueError(f"margin is {margin!r}; it must be in [0, 1)")
        self.margin = margin
        self.triangles = nn.Parameter(torch.zeros(2, triangle_size(hidden_size)))
        self.free_values = nn.Parameter(torch.zeros(hidden_size))
        self.register_buffer("bases", torch.stack([random_unitary(hidden_size) for _ in range(2)]))
        nn.init.xavier_uniform_(self.input.weight)

    def hidden_matrix(self) -> Tensor:
        left, right = (
            base @ exponential(skew(triangle, self.hidden_size))
            for base, triangle in zip(self.bases, self.triangles, strict=True)
        )
        return (left * within_margin(self.free_values, self.margin)) @ right.mT


class SpectralRNNCell(FusedConstrainedCell):
    """h⁺ = relu(W h + U x + b), W = P diag(s) Qᵀ, P and Q products of `reflectors` Householder reflections.

    Zhang, Lei, Dhillon, "Stabilizing gradients for deep neural networks via efficient SVD parameterization", ICML
    2018. 1 − r < s < 1 + r with r = `margin`; s starts at 1. Reflector k has zeros before entry k. The default is N/4
    reflectors, as in the paper. With m reflectors W has m(2N − m + 1) + N parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        reflectors: int | None = None,
        margin: float = 0.01,
        nonlinearity: str = "relu",
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity, backend=backend)
        self.reflectors = max(1, hidden_size // 4) if reflectors is None else reflectors
        if not 1 <= self.reflectors <= hidden_size:
            raise ValueError(f"reflectors is {reflectors!r}; it must be from 1 to hidden_size = {hidden_size}")
        if not 0.0 <= margin < 1.0:
            raise ValueError(f"margin is {margin!r}; it must be in [0, 1)")
        self.margin = margin
        entries = self.reflectors * hidden_size - triangle_size(self.reflectors)
        self.entries = nn.Parameter(torch.randn(2, entries) / math.sqrt(hidden_size))
        self.free_values = nn.Parameter(torch.zeros(hidden_size))
        nn.init.xavier_uniform_(self.input.weight)

    def hidden_matrix(self) -> Tensor:
        rows, columns = torch.triu_indices(self.reflectors, self.hidden_size, device=self.entries.device)
        empty = self.entries.new_zeros(self.reflectors, self.hidden_size)
        left, right = (householder_product(empty.index_put((rows, columns), part)) for part in self.entries)
        return (left * within_margin(self.free_values, self.margin)) @ right.mT


class NonNormalCell(ConstrainedCell):
    """h⁺ = modReLU(W h + U x), W = P (Λ + T) Pᵀ: P orthogonal, Λ block-diagonal rotations, T block-triangular.

    Kerg et al., "Non-normal recurrent neural network (nnRNN): learning long time dependencies while improving
    expressivity with transient dynamics", NeurIPS 2019. P = exp(K). Initially K is
    Henaff's, the angles are uniform in (0, 2π), and T = 0. Λ has blocks γ [[cos θ, −sin θ], [sin θ, cos θ]] with
    eigenvalues γ e^{±iθ}. γ = 1 unless `learn_modulus`; then `penalty()` is the paper's δ Σ (γ − 1)². W has N² − N
    parameters (+ N/2 with γ).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: str = "henaff",
        learn_modulus: bool = False,
        modulus_penalty: float = 1.0,
        nonlinearity: str = "modrelu",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        if hidden_size % 2:
            raise ValueError(f"hidden_size is {hidden_size}; nnrnn rotates planes, so it must be even")
        planes = hidden_size // 2
        self.modulus_penalty = modulus_penalty
        self.triangle = nn.Parameter(planar_rotations(hidden_size, init))
        self.angles = nn.Parameter(torch.empty(planes).uniform_(0.0, 2 * math.pi))
        self.upper = nn.Parameter(torch.zeros(triangle_size(planes), 2, 2))
        self.modulus = nn.Parameter(torch.ones(planes)) if learn_modulus else None
        nn.init.xavier_normal_(self.input.weight)
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def schur_form(self) -> Tensor:
        """Λ + T: block upper triangular with 2 × 2 blocks."""
        planes, device = self.hidden_size // 2, self.angles.device
        cosine, sine = torch.cos(self.angles), torch.sin(self.angles)
        if self.modulus is not None:
            cosine, sine = self.modulus * cosine, self.modulus * sine
        rotations = torch.stack([cosine, -sine, sine, cosine], -1).unflatten(-1, (2, 2))
        row, column = torch.triu_indices(planes, planes, 1, device=device)
        diagonal = torch.arange(planes, device=device)
        positions = (torch.cat([row, diagonal]), torch.cat([column, diagonal]))
        blocks = torch.cat([self.upper, rotations])
        blocks = blocks.new_zeros(planes, planes, 2, 2).index_put(positions, blocks)
        return blocks.transpose(1, 2).reshape(self.hidden_size, self.hidden_size)

    def hidden_matrix(self) -> Tensor:
        basis = exponential(skew(self.triangle, self.hidden_size))
        return basis @ self.schur_form() @ basis.mT

    def penalty(self) -> Tensor | None:
        return None if self.modulus is None else self.modulus_penalty * (self.modulus - 1.0).square().sum()
