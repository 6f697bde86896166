"""Constrained matrices from unconstrained parameters, their initialisation, and the modReLU of unitary units.

`torch.nn.utils.parametrizations.orthogonal` has the same exponential and Cayley maps (the tests compare them), but
stores N² numbers, of which only those below the diagonal matter. Here a group of dimension d takes d parameters.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipschitz_rnn.ops.modrelu.reference import gain, modrelu


def triangle_size(size: int) -> int:
    """Number of entries below the diagonal of a (size, size) matrix: the dimension of the orthogonal group."""
    return size * (size - 1) // 2


def skew(triangle: Tensor, size: int) -> Tensor:
    """Skew-symmetric matrix from the n(n−1)/2 entries below its diagonal: Kᵀ = −K exactly."""
    rows, columns = torch.tril_indices(size, size, -1, device=triangle.device)
    lower = triangle.new_zeros(size, size).index_put((rows, columns), triangle)
    return lower - lower.mT


def skew_hermitian(numbers: Tensor, size: int) -> Tensor:
    """Skew-Hermitian S from n² real numbers: real parts below the diagonal, imaginary parts on and below it."""
    real, imaginary = numbers.split([triangle_size(size), triangle_size(size) + size])
    rows, columns = torch.tril_indices(size, size, device=numbers.device)
    lower = numbers.new_zeros(size, size).index_put((rows, columns), imaginary)
    return torch.complex(skew(real, size), lower + lower.mT)


Map = Callable[[Tensor], Tensor]


def in_float32_at_least(function: Map) -> Map:
    """PyTorch has no factorizations of 16 bits, and its exponential of them is NaN."""

    @functools.wraps(function)
    def wide(matrix: Tensor) -> Tensor:
        if matrix.dtype in (torch.bfloat16, torch.float16):
            return function(matrix.float()).to(matrix.dtype)
        return function(matrix)

    return wide


@in_float32_at_least
def exponential(K: Tensor) -> Tensor:
    """exp(K) of a skew-symmetric or skew-Hermitian K, (…, n, n): orthogonal or unitary."""
    if torch.compiler.is_compiling() or not (K.is_cuda and torch.cuda.is_current_stream_capturing()):
        return torch.matrix_exp(K)
    return exponential_by_series(K)  # torch.matrix_exp reads the values of K, which a CUDA graph does not allow


def exponential_by_series(K: Tensor) -> Tensor:
    """exp(K) from 18 terms of the series at K/16, squared four times, without looking at the values of K.

    For a skew K the truncation error of the series is below (‖K‖₂/16)¹⁹/19!: 10⁻¹⁵ at ‖K‖₂ = 20, and 10⁻⁹ at 40.
    """
    squarings, terms, block = 4, 18, 6
    powers = [torch.eye(K.shape[-1], dtype=K.dtype, device=K.device), K / 2**squarings]
    while len(powers) <= block:
        powers.append(powers[-1] @ powers[1])
    result = powers[0] / math.factorial(terms)
    for start in range(terms - block, -1, -block):  # Horner's rule in the sixth power
        coefficients = [1.0 / math.factorial(start + i) for i in range(block)]
        result = result @ powers[block]
        for coefficient, power in zip(reversed(coefficients), reversed(powers[:block]), strict=True):
            result = result + coefficient * power
    for _ in range(squarings):
        result = result @ result
    return result


@in_float32_at_least
def cayley(K: Tensor) -> Tensor:
    """(I + K)⁻¹ (I − K): maps skew-symmetric K to orthogonal matrices without the eigenvalue −1."""
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return torch.linalg.solve(identity + K, identity - K)


@in_float32_at_least
def householder_product(vectors: Tensor) -> Tensor:
    """H₁ H₂ … H_m with H = I − 2 v vᵀ / ‖v‖²: (m, n) -> (n, n), orthogonal.

    In compact form I − Vᵀ T V, where T⁻¹ is upper triangular with ‖v‖²/2 on the diagonal and vᵢ·vⱼ above it.
    """
    products = vectors @ vectors.mT
    inverse = products.triu(1) + torch.diag_embed(products.diagonal() / 2)
    identity = torch.eye(vectors.shape[-1], dtype=vectors.dtype, device=vectors.device)
    return identity - vectors.mT @ torch.linalg.solve_triangular(inverse, vectors, upper=True)


def random_unitary(size: int, complex_entries: bool = False) -> Tensor:
    """A Haar-distributed unitary (or orthogonal) matrix."""
    gaussian = torch.randn(size, size, dtype=torch.complex64 if complex_entries else torch.float32)
    q, r = torch.linalg.qr(gaussian)
    return q * torch.sgn(r.diagonal())


def planar_rotations(size: int, kind: str) -> Tensor:
    """The triangle of a block-diagonal skew matrix: independent rotations in the planes (0, 1), (2, 3), ...

    "henaff": angles uniform in (−π, π), Henaff et al. 2016. "cayley": tan(t/2) with t uniform in (0, π/2), from the
    scaled Cayley unit, Helfrich et al. 2018.
    """
    planes = size // 2
    if kind == "henaff":
        entries = torch.empty(planes).uniform_(-math.pi, math.pi)
    elif kind == "cayley":
        entries = torch.tan(torch.empty(planes).uniform_(0.0, math.pi / 2) / 2)
    else:
        raise ValueError(f"init is {kind!r}; choose 'cayley' or 'henaff'")
    matrix = torch.zeros(size, size)
    matrix[torch.arange(planes) * 2 + 1, torch.arange(planes) * 2] = entries
    return matrix[tuple(torch.tril_indices(size, size, -1))]


def within_margin(free: Tensor, margin: float) -> Tensor:
    """Maps real numbers to (1 − margin, 1 + margin), and 0 to 1."""
    return 1.0 + 2.0 * margin * (torch.sigmoid(free) - 0.5)


def mod_relu(z: Tensor, bias: Tensor) -> Tensor:
    """(z / |z|) relu(|z| + b) for real or complex z; 0 at z = 0.

    For real z the sign is exact. For complex z the denominator is |z| + 10⁻⁵, as in the code of the first unitary RNN,
    because the derivative of z / |z| grows like 1 / |z|.
    """
    if not z.is_complex():
        return modrelu(z, bias)
    return z * gain(z.abs(), bias)
