"""Units that integrate h' = σ(W h + U x + b) with `lipschitz_scan`: neural-ode, residual, antisymmetric, nais."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops import lipschitz_scan
from lipschitz_rnn.ops.common.validation import seen_values
from lipschitz_rnn.units.base import State
from lipschitz_rnn.units.cells import TimedCell
from lipschitz_rnn.units.lipschitz.autocast import to_compute_dtype
from lipschitz_rnn.units.lipschitz.settings import backend as check_backend
from lipschitz_rnn.units.lipschitz.settings import integrator as check_integrator
from lipschitz_rnn.units.lipschitz.settings import nonlinearity as check_nonlinearity
from lipschitz_rnn.units.matrices import skew, triangle_size
from lipschitz_rnn.units.noise import describe_noise
from lipschitz_rnn.units.recurrence import Recurrence, Statement, as_number, repeatable_matrices
from lipschitz_rnn.units.sequences import Sequences


class ContinuousCell(TimedCell):
    """h' = σ(W h + U x + b) over one step of length `step_size`: the Lipschitz unit without its linear term.

    The input is constant over a step. Input weights are initialised like `nn.Linear` unless a unit says otherwise.
    """

    adds_noise = True
    stackable_options = (*TimedCell.stackable_options, "step_size")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.03,
        integrator: str = "euler",
        nonlinearity: str = "tanh",
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not step_size > 0.0:
            raise ValueError(f"step_size is {step_size!r}; it must be positive")
        check_integrator("integrator", integrator)
        check_nonlinearity("nonlinearity", nonlinearity)
        self.step_size, self.integrator, self.nonlinearity = step_size, integrator, nonlinearity
        self.backend = check_backend("backend", backend)
        self.input = nn.Linear(input_size, hidden_size)

    @abstractmethod
    def weights(self) -> Tensor:
        """W: (N, N)."""

    def project(self, x: Tensor) -> Tensor:
        """x unchanged: the scan computes U x + b itself, without storing it where a backend can avoid that."""
        return x

    def scan(
        self, inputs: Tensor, state: State, weights: Tensor, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        x, W, h0, U, b = to_compute_dtype(inputs, weights, state[0], self.input.weight, self.input.bias)
        states, last = lipschitz_scan(
            x,
            torch.zeros_like(W),
            W,
            h0,
            step_size=self.step_size if sequences.timespans is None else sequences.timespans,
            alpha=0.0,
            integrator=self.integrator,
            nonlinearity=self.nonlinearity,
            lengths=sequences.lengths,
            backend=self.backend,
            input_weight=U,
            bias=b,
            need_output=need_output,
            noise=self.drawn_noise(sequences.generator, x),
        )
        return states, (last,)

    def flat_recurrence(self) -> list[Statement]:
        """What `stated_recurrences` of a subclass returns: without a linear term, the factor is 1 where σ is flat."""
        owner = type(self).__name__

        def make() -> tuple[Tensor]:
            return (self.current_weights(self.input.weight.device),)

        (W,) = repeatable_matrices(make, owner)
        step = as_number("step_size", self.step_size, owner)
        return [Recurrence(torch.zeros_like(W), W, 0.0, self.nonlinearity, self.integrator, (step, step))]

    def extra_repr(self) -> str:
        text = f"step_size={self.step_size}, integrator={self.integrator!r}, nonlinearity={self.nonlinearity!r}"
        return text + describe_noise(self)


class NeuralODECell(ContinuousCell):
    """h' = tanh(W h + U x + b), Euler: h⁺ = h + ε tanh(W h + U x + b).

    The neural ODE of the Lipschitz paper's robustness study, after Rubanova, Chen, Duvenaud, "Latent ordinary
    differential equations for irregularly-sampled time series", NeurIPS 2019. W ~ N(0, (init_scale / N)²), as in the
    Lipschitz unit with which it is compared. Parameters N² + N p + N.
    """

    def __init__(self, input_size: int, hidden_size: int, *, init_scale: float = 0.1, **options: object) -> None:
        super().__init__(input_size, hidden_size, **options)  # type: ignore[arg-type]
        self.hidden = nn.Parameter(torch.empty(hidden_size, hidden_size).normal_(0.0, init_scale / hidden_size))

    def weights(self) -> Tensor:
        return self.hidden

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`, which says why nothing is proved for all states and inputs."""
        return self.flat_recurrence()


class ResidualCell(NeuralODECell):
    """h⁺ = h + ε σ(W h + U x + b): a residual block shared over time, with a full step (ε = 1) by default.

    After He et al., "Deep residual learning", CVPR 2016, and Yue, Fu, Liang, "Residual recurrent neural networks for
    learning sequential representations", Information 9, 2018. A full step moves every entry by up to 1, so the
    state can grow with the length of the sequence. With a smaller `step_size` this is exactly the Euler neural ODE; the
    Lipschitz paper's code also gives this unit a step ε. Parameters N² + N p + N.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 1.0,
        init_scale: float = 0.1,
        nonlinearity: str = "tanh",
        backend: str = "auto",
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            init_scale=init_scale,
            step_size=step_size,
            nonlinearity=nonlinearity,
            backend=backend,
        )


def antisymmetric_matrix(triangle: Tensor, size: int, gamma: float | Tensor) -> Tensor:
    """K − γI with K = −Kᵀ."""
    if isinstance(gamma, Tensor):
        gamma = gamma.to(triangle.dtype)
    return skew(triangle, size) - gamma * torch.eye(size, dtype=triangle.dtype, device=triangle.device)


def chang_initialisation(triangle: Tensor, size: int, sigma: float, *inputs: nn.Linear) -> None:
    """Initialisation of Chang et al.: W ~ N(0, σ²/N) below the diagonal, U ~ N(0, 1/p), biases zero."""
    nn.init.normal_(triangle, std=sigma / math.sqrt(size))
    for layer in inputs:
        nn.init.normal_(layer.weight, std=1.0 / math.sqrt(layer.in_features))
        nn.init.zeros_(layer.bias)


class AntisymmetricCell(ContinuousCell):
    """h⁺ = h + ε tanh((K − γI) h + U x + b) with K = −Kᵀ exactly.

    Chang, Chen, Haber, Chi, "AntisymmetricRNN: a dynamical system view on recurrent neural networks", ICLR 2019.
    Initialised as in the paper: W ~ N(0, σ²/N), U ~ N(0, 1/p), b = 0, with σ (`init_scale`) tuned over 0, 1, 2, 4, 8,
    16. Only the triangle is stored, as in the paper: N(N−1)/2 + N p + N parameters (10K at N = 128 with the head).
    """

    stackable_options = (*ContinuousCell.stackable_options, "gamma", "init_scale")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        gamma: float = 0.001,
        init_scale: float = 1.0,
        step_size: float = 0.01,
        **options: object,
    ) -> None:
        super().__init__(input_size, hidden_size, step_size=step_size, **options)  # type: ignore[arg-type]
        self.gamma, self.init_scale = gamma, init_scale
        self.triangle = nn.Parameter(torch.empty(triangle_size(hidden_size)))
        chang_initialisation(self.triangle, hidden_size, init_scale, self.input)

    def weights(self) -> Tensor:
        return antisymmetric_matrix(self.triangle, self.hidden_size, self.gamma)

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`, which says why nothing is proved for all states and inputs."""
        return self.flat_recurrence()


class NaisCell(ContinuousCell):
    """h⁺ = h + ε tanh(A h + U x + b), A = −RᵀR − κI with ‖RᵀR‖ ≤ 1 − 2κ: the eigenvalues of A lie in [κ − 1, −κ].

    Ciccone, Gallieri, Masci, Osendorfer, Gomez, "NAIS-Net: stable deep networks from non-autonomous differential
    equations", NeurIPS 2018, with one block shared over time and one input per step. For ε ≤ 1 every step is a
    contraction in h. The paper projects R after each update: if ‖RᵀR‖_F > 1 − 2κ, R becomes
    R √((1 − 2κ) / ‖RᵀR‖_F). Here this scaling is part of the forward pass, so no update can leave the set. R starts
    normal with standard deviation 1/√N, which the scaling moves to the boundary of the set: the widest range of time
    constants. Parameters N² + N p + N: 18K at N = 128 on MNIST with the head.
    """

    adds_noise = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        kappa: float = 0.01,
        step_size: float = 1.0,
        nonlinearity: str = "tanh",
        backend: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, step_size=step_size, nonlinearity=nonlinearity, backend=backend)
        if not 0.0 < kappa < 0.5:
            raise ValueError(f"kappa is {kappa!r}; it must be in (0, 0.5)")
        if step_size > 1.0:
            raise ValueError(f"step_size is {step_size!r}; nais is a contraction only for steps of at most 1")
        self.kappa = kappa
        self.root = nn.Parameter(torch.empty(hidden_size, hidden_size).normal_(0.0, 1.0 / math.sqrt(hidden_size)))

    def scan(
        self, inputs: Tensor, state: State, weights: Tensor, sequences: Sequences, need_output: bool = True
    ) -> tuple[Tensor | None, State]:
        values = None if sequences.timespans is None else seen_values(sequences.timespans)
        if values is not None and values.numel() > 0 and (longest := float(values.max())) > 1.0 + 1e-6:
            raise ValueError(
                f"timespans reaches {longest:g}; nais is a contraction only for steps of at most 1. Rescale time"
            )
        return super().scan(inputs, state, weights, sequences, need_output)

    def weights(self) -> Tensor:
        gram = self.root.mT @ self.root
        allowed = 1.0 - 2.0 * self.kappa
        damping = self.kappa * torch.eye(self.hidden_size, dtype=gram.dtype, device=gram.device)
        return -gram * (allowed / torch.linalg.matrix_norm(gram).clamp(min=allowed)) - damping

    def stated_recurrences(self) -> list[Statement]:
        """For `stability.certify`, which says why nothing is proved for all states and inputs."""
        return self.flat_recurrence()
