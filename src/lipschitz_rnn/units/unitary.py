"""Units with a complex state and a unitary hidden matrix: urnn, full-urnn, eurnn, kronecker."""

import math
from functools import reduce

import torch
from torch import Tensor, nn

from lipschitz_rnn.units.constrained import UnitaryCell
from lipschitz_rnn.units.matrices import exponential, random_unitary, skew_hermitian


def _phase(angle: Tensor) -> Tensor:
    return torch.complex(torch.cos(angle), torch.sin(angle))


def _angles(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-math.pi, math.pi))


class URNNCell(UnitaryCell):
    """h⁺ = modReLU(W h + U x), W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁, unitary by construction.

    D: diagonal phases, R = I − 2 v vᴴ / ‖v‖²: complex reflections, F: Fourier transform, Π: a fixed permutation.
    Arjovsky, Shah, Bengio, "Unitary evolution recurrent neural networks", ICML 2016; angles start uniform in (−π, π),
    reflection vectors uniform in (−1, 1). W has 7N parameters, the unit 2N p + 10N with b and a learned h₀.

    With a 10-class head on (Re h, Im h) and N = 512 this is 16K, as in Arjovsky et al. The 9K in the Lipschitz paper's
    table is 7N for W and 10N for a head on N real values, without input weights, bias and initial state.
    """

    permutation: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, learn_initial_state: bool = True) -> None:
        super().__init__(input_size, hidden_size, learn_initial_state=learn_initial_state)
        self.angles = _angles(3, hidden_size)
        self.reflections = nn.Parameter(torch.empty(2, 2, hidden_size).uniform_(-1.0, 1.0))
        self.register_buffer("permutation", torch.randperm(hidden_size))

    def hidden_matrix(self) -> Tensor:
        first, second, third = _phase(self.angles).unsqueeze(-1)
        vectors = torch.complex(self.reflections[:, 0], self.reflections[:, 1])

        def reflect(matrix: Tensor, v: Tensor) -> Tensor:
            return matrix - 2 * torch.outer(v, v.conj() @ matrix) / v.abs().square().sum()

        matrix = torch.fft.fft(torch.diag(first.squeeze(-1)), dim=0, norm="ortho")
        matrix = second * reflect(matrix, vectors[0])[self.permutation]
        return third * reflect(torch.fft.ifft(matrix, dim=0, norm="ortho"), vectors[1])


class FullURNNCell(UnitaryCell):
    """h⁺ = modReLU(W h + U x), W any unitary matrix: W = W₀ exp(S) with Sᴴ = −S and a random W₀.

    Wisdom, Powers, Hershey, Le Roux, Atlas, "Full-capacity unitary recurrent neural networks", NeurIPS 2016. The paper
    takes Cayley steps on the unitary group; here the exponential covers the same group, so any optimiser keeps W
    unitary. W has N² parameters; with input weights, b, h₀ and head 274K ≈ 270K at N = 512 on MNIST.
    """

    base: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, learn_initial_state: bool = True) -> None:
        super().__init__(input_size, hidden_size, learn_initial_state=learn_initial_state)
        self.logarithm = nn.Parameter(torch.zeros(hidden_size**2))
        # Stored as two real matrices: a complex buffer would lose its imaginary part in `.double()`.
        self.register_buffer("base", torch.view_as_real(random_unitary(hidden_size, complex_entries=True)))

    def hidden_matrix(self) -> Tensor:
        base = torch.view_as_complex(self.base)
        return base @ exponential(skew_hermitian(self.logarithm, self.hidden_size))


class EURNNCell(UnitaryCell):
    """h⁺ = modReLU(W h + U x), W = F_L … F₁ D: L = `capacity` layers of 2 × 2 rotations of neighbours, D phases.

    A rotation is [[e^{iφ} cos θ, −e^{iφ} sin θ], [sin θ, cos θ]]. Layers pair (0, 1), (2, 3), … and (1, 2), (3, 4), …
    alternately; L = N reaches every unitary matrix. `fft=True` uses log₂ N layers with pairs at distance 1, 2, 4, …
    instead. Jing et al., "Tunable efficient unitary neural networks (EUNN) and their application to RNNs", ICML 2017;
    all angles start uniform in (−π, π). W has about (L + 1) N parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        capacity: int = 2,
        fft: bool = False,
        learn_initial_state: bool = True,
    ) -> None:
        super().__init__(input_size, hidden_size, learn_initial_state=learn_initial_state)
        if fft and hidden_size & (hidden_size - 1):
            raise ValueError(f"hidden_size is {hidden_size}; fft=True needs a power of two")
        if not 1 <= capacity <= hidden_size:
            raise ValueError(f"capacity is {capacity!r}; it must be from 1 to hidden_size = {hidden_size}")
        self.capacity, self.fft = capacity, fft
        self.layers = hidden_size.bit_length() - 1 if fft else capacity
        self.rotations = nn.ParameterList([_angles(2, len(self._pairs(layer)[0])) for layer in range(self.layers)])
        self.angles = _angles(hidden_size)

    def _pairs(self, layer: int) -> tuple[Tensor, Tensor]:
        """First and second indices of the pairs that a layer rotates."""
        index = torch.arange(self.hidden_size, device=self.bias.device)
        if self.fft:
            blocks = index.view(-1, 2, 1 << layer)
            return blocks[:, 0].flatten(), blocks[:, 1].flatten()
        first = index[layer % 2 : self.hidden_size - 1 : 2]
        return first, first + 1

    def hidden_matrix(self) -> Tensor:
        matrix = torch.diag(_phase(self.angles))
        for layer, (theta, phi) in enumerate(self.rotations):
            cosine, sine, phase = torch.cos(theta), torch.sin(theta), _phase(phi)
            first, second = self._pairs(layer)
            paired = (torch.cat([first, second]),)
            # Row i becomes keep[i] · row i + mix[i] · row partner[i]; a row without a partner is unchanged.
            keep = torch.ones_like(self.angles).to(phase.dtype).index_put(paired, torch.cat([phase * cosine, cosine]))
            mix = torch.zeros_like(keep).index_put(paired, torch.cat([-phase * sine, sine]))
            partner = torch.arange(self.hidden_size, device=theta.device)
            partner = partner.index_put(paired, torch.cat([second, first]))
            matrix = keep.unsqueeze(-1) * matrix + mix.unsqueeze(-1) * matrix[partner]
        return matrix


class KroneckerCell(UnitaryCell):
    """h⁺ = modReLU(W h + U x), W = W₁ ⊗ … ⊗ W_F with small complex factors, kept near unitary by a penalty.

    Jose, Cissé, Fleuret, "Kronecker recurrent units", ICML 2018. `penalty()` is λ Σ ‖W_fᴴ W_f − I‖²; add it to the
    loss. Factors start unitary. By default their sizes are the prime factors of N (2 × 2 for N = 2^F: 8F parameters);
    `factors` sets them. At N = 512 on MNIST, without a learned h₀: 11.9K, of which 0.5K are modReLU biases, which the
    paper's 11K does not count.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        factors: tuple[int, ...] | None = None,
        unitary_penalty: float = 1.0,
        learn_initial_state: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, learn_initial_state=learn_initial_state)
        sizes = tuple(factors) if factors is not None else prime_factors(hidden_size)
        if math.prod(sizes) != hidden_size:
            raise ValueError(f"factors is {sizes}; their product must be hidden_size = {hidden_size}")
        self.unitary_penalty = unitary_penalty
        start = [torch.view_as_real(random_unitary(size, complex_entries=True).contiguous()) for size in sizes]
        self.factors = nn.ParameterList([nn.Parameter(factor.clone()) for factor in start])

    def hidden_matrix(self) -> Tensor:
        return reduce(torch.kron, [torch.view_as_complex(factor) for factor in self.factors])

    def penalty(self) -> Tensor:
        total = self.bias.new_zeros(())
        for factor in self.factors:
            w = torch.view_as_complex(factor)
            identity = torch.eye(len(w), dtype=w.dtype, device=w.device)
            total = total + (w.mH @ w - identity).abs().square().sum()
        return self.unitary_penalty * total


def prime_factors(number: int) -> tuple[int, ...]:
    """12 -> (2, 2, 3)."""
    found, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return (*found, number) if number > 1 or not found else tuple(found)
