"""How fast two states under the same input approach each other, and the norm in which they do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.ops.common.lengths import length_of
from lipschitz_rnn.ops.common.validation import has_values
from lipschitz_rnn.ops.lipschitz.problem import Problem

_SMALLEST_ROOT = 1e-100  # so that squares of small distances do not underflow, and of large ones do not overflow
STEP_ROUNDING = 2e-6  # a step may exceed the proved one by the rounding of times in float32


@dataclass(frozen=True)
class Contraction:
    """‖Φ(a) − Φ(b)‖_P ≤ ρ ‖a − b‖_P for a step Φ of length ``longest``, for any two states and every input.

    A shorter step ε has the factor 1 − (ε/longest)(1 − ρ): for Euler steps because they are averages of a whole one and
    of staying, for others because exponentials lie below their chords. A step of length zero has the factor 1.

    Attributes:
        factor: ρ, one number, or a tensor (S,) for S networks.
        root: R with P = RᵀR: (N,) for a diagonal P, otherwise (N, N); (S, N) and (S, N, N) for S networks.
        longest: the longest step for which ρ is proved.
        shortest: the shortest one; 0 where all shorter steps are covered, as by Euler's rule and contracting units.
        proved: False for a guess of the caller, with which results are marked as not proved.
    """

    factor: float | Tensor
    root: Tensor
    longest: float
    shortest: float = 0.0
    proved: bool = True
    _norms: dict[Any, Norms] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.root, Tensor):
            raise TypeError(
                f"root is {self.root!r}; it must be a torch.Tensor, (N,) or (N, N): R with P = RᵀR. "
                "Contraction.from_metric makes one from P"
            )
        if self.root.dim() > 1:  # a diagonal may be that of a layer whose parameters are NaN: it is checked with A
            _require_finite("root", self.root)
        if not _all_contract(self.factor):
            raise ValueError(f"factor is {self.factor}; it must be from 0 to 1: a larger one does not contract")
        if not 0.0 <= self.shortest <= self.longest or not 0.0 < self.longest < math.inf:
            raise ValueError(
                f"the steps from {self.shortest} to {self.longest} are no range; give 0 ≤ shortest ≤ longest, and a "
                "longest above 0"
            )

    @classmethod
    def from_metric(
        cls, factor: float | Tensor, metric: Any, step_size: float | tuple[float, float], **options: Any
    ) -> Contraction:
        """From P itself: its diagonal (N,), or the matrix (N, N); step_size is a step, or (shortest, longest)."""
        P = torch.as_tensor(metric, dtype=torch.float64)
        if P.dim() not in (1, 2) or P.shape[0] != P.shape[-1]:
            raise ValueError(f"metric has shape {tuple(P.shape)}; pass P, (N, N), or its diagonal, (N,)")
        _require_finite("metric", P)
        if P.dim() == 1:
            if not bool((P > 0).all()):
                raise ValueError(f"metric has the entry {float(P.min()):g}; the diagonal of a metric P is positive")
            root = P.sqrt()
        else:
            lower, failed = torch.linalg.cholesky_ex(P)
            if bool(failed):
                raise ValueError("metric is not positive definite; pass the P of a certificate")
            root = lower.mT
        shortest, longest = step_size if isinstance(step_size, tuple) else (0.0, step_size)
        return cls(factor, root, longest, shortest, **options)

    def require_steps(self, shortest: float, longest: float) -> None:
        """Raise if steps between these lengths, apart from steps of zero, are not what the factor is proved for."""
        slack = STEP_ROUNDING
        if longest <= self.longest * (1 + slack) and shortest >= self.shortest * (1 - slack):
            return
        covered = f"{self.longest:g}" if self.shortest == self.longest else f"{self.shortest:g} to {self.longest:g}"
        taken = f"{longest:g}" if shortest == longest else f"{shortest:g} to {longest:g}"
        raise ValueError(
            f"the contraction is proved for steps of {covered}, but these are {taken}; certify with a step_size "
            "range that covers them, or pass max_step"
        )


def _all_contract(factor: float | Tensor) -> bool:
    if not isinstance(factor, Tensor):
        if not isinstance(factor, Real):
            raise TypeError(f"factor is {factor!r}; pass a number from 0 to 1, or a tensor (S,) for S networks")
        return 0.0 <= float(factor) <= 1.0
    return torch.compiler.is_compiling() or bool(((factor >= 0) & (factor <= 1)).all())


@dataclass(frozen=True)
class Norms:
    """A contraction in the form that S networks on one device take: everything in float64.

    Attributes:
        factor: ρ, (S, 1, 1).
        root: R, (S, N) or (S, N, N).
    """

    factor: Tensor
    root: Tensor
    longest: float

    @classmethod
    def of(cls, contraction: Contraction, networks: int, like: Tensor) -> Norms:
        """For matrices like A, and kept with the contraction: what a call computes, a CUDA graph finds there."""
        kept, key = contraction._norms, (networks, like.shape[-1], like.device)
        if key in kept:
            return kept[key]
        norms = cls._of(contraction, networks, like)
        if has_values(like):
            kept[key] = norms
        return norms

    @classmethod
    def _of(cls, contraction: Contraction, networks: int, like: Tensor) -> Norms:
        given = contraction.factor
        if isinstance(given, Tensor):
            factor = given.to(like.device, torch.float64).reshape(-1).expand(networks).reshape(networks, 1, 1)
        else:  # filled on the device, without a copy that a CUDA graph could not take over
            factor = like.new_full((networks, 1, 1), given, dtype=torch.float64)
        root, units = contraction.root.detach().to(like.device, torch.float64), like.shape[-1]
        shared, own = ((units,), (units, units)), ((networks, units), (networks, units, units))
        if root.dim() == 2 and networks == units > 1:
            raise ValueError(
                f"the metric has shape {tuple(root.shape)}, which for {networks} networks of {units} units may mean "
                f"two things; pass ({networks}, {units}, {units})"
            )
        if tuple(root.shape) not in (*shared, *own):
            raise ValueError(
                f"the metric has shape {tuple(root.shape)}, but the state has {units} units; it must be ({units},) or "
                f"({units}, {units}), or one of these for each of {networks} network(s)"
            )
        if tuple(root.shape) in shared:
            root = root.expand(networks, *root.shape)
        _require_metric(root, like)
        return cls(factor, root, contraction.longest)

    @classmethod
    def euclidean(cls, networks: int, like: Tensor) -> Norms:
        """For networks that are not known to contract: distances are then only measured."""
        factor = like.new_ones((networks, 1, 1), dtype=torch.float64)
        return cls(factor, like.new_ones((networks, like.shape[-1]), dtype=torch.float64), 1.0)

    @property
    def diagonal(self) -> bool:
        return self.root.dim() == 2

    @cached_property
    def inverse(self) -> Tensor:
        """R⁻¹, in the shape of R."""
        return self.root.reciprocal() if self.diagonal else torch.linalg.inv(self.root)

    def size(self, states: Tensor) -> Tensor:
        """‖h‖_P of (S, …, N)."""
        return self._norm(self.root, states)

    def dual_size(self, adjoints: Tensor) -> Tensor:
        """‖λ‖_{P⁻¹} of (S, …, N): the norm in which the adjoint contracts by the same factors."""
        return self._norm(self.inverse if self.diagonal else self.inverse.mT, adjoints)

    def stretched(self, states: Tensor) -> Tensor:
        """R h of (S, …, N), in float64: the Euclidean norm of this is ‖h‖_P."""
        return _multiplied(self.root, states)

    def _norm(self, root: Tensor, vectors: Tensor) -> Tensor:
        return length_of(_multiplied(root, vectors))

    @cached_property
    def _singular(self) -> Tensor:
        return self.root.abs() if self.diagonal else torch.linalg.svdvals(self.root)

    @cached_property
    def smallest(self) -> Tensor:
        """The smallest singular value s of R, (S,): s‖h‖ ≤ ‖h‖_P."""
        return self._singular.amin(-1)

    @cached_property
    def extremes(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest singular value of R, (S,): s‖h‖ ≤ ‖h‖_P ≤ l‖h‖."""
        return self.smallest, self._singular.amax(-1)

    def operator_norm(self, matrices: Tensor, *, rough: bool = False) -> Tensor:
        """‖M‖_P = ‖R M R⁻¹‖ of (S, N, N), (S,), rounded up; the Frobenius norm, which is larger and cheap, if rough."""
        wide = matrices.detach().to(torch.float64)
        if self.diagonal:
            scaled = self.root.unsqueeze(-1) * wide / self.root.unsqueeze(-2)
        else:
            scaled = self.root @ wide @ self.inverse
        return torch.linalg.matrix_norm(scaled, ord="fro" if rough else 2) * (1 + 1e-10)

    def of_steps(self, problem: Problem) -> Tensor:
        """ρ of each step of a problem, (S, T, B), or (S, 1, 1) where all are equal."""
        if problem.timespans is not None:
            return self.step_factors(problem.timespans)
        share = min(1.0, problem.scheme.step_size / self.longest)
        return 1.0 - share * (1.0 - self.factor)

    def step_factors(self, steps: Tensor) -> Tensor:
        """ρ of each step, (S, T, B), from their lengths."""
        share = (steps.detach().to(torch.float64) / self.longest).clamp(0.0, 1.0)
        return 1.0 - share * (1.0 - self.factor)


def _require_finite(name: str, matrix: Tensor) -> None:
    """Raise for an entry that is NaN or infinite, where it can be read without waiting for a GPU."""
    if matrix.device.type != "cpu" or not has_values(matrix):
        return
    places = (~matrix.detach().isfinite()).nonzero()
    if len(places):
        place = tuple(places[0].tolist())
        raise ValueError(
            f"{name} is {matrix[place].item()} at {list(place)}; its entries must be finite: pass the P of a "
            "certificate to Contraction.from_metric, or an invertible R with P = RᵀR as the root"
        )


def _require_metric(root: Tensor, A: Tensor) -> None:
    """Raise for a root (S, N) or (S, N, N) that misses directions, in which it would see no error.

    A GPU's is not waited for. Parameters that are NaN make both A and the root of a contracting layer NaN, and its
    results too.
    """
    if root.device.type != "cpu" or not has_values(root) or not root.numel():
        return
    if has_values(A) and bool(A.isfinite().all()):
        _require_finite("root", root)
    sizes, lost = root.abs(), 0.0
    if root.dim() == 3 and bool(root.isfinite().all()):
        sizes, lost = torch.linalg.svdvals(root), root.shape[-1] * torch.finfo(torch.float64).eps
    low, high = sizes.amin(-1), sizes.amax(-1)
    if bool((low <= lost * high).any()):
        raise ValueError(
            "the root of the metric is zero in some direction; it must be invertible: pass R with P = RᵀR, e.g. by "
            "Contraction.from_metric"
        )
    if bool(((low < _SMALLEST_ROOT) | (high > 1.0 / _SMALLEST_ROOT)).any()):
        raise ValueError(
            f"the root of the metric has sizes from {float(low.min()):.3g} to {float(high.max()):.3g}, whose squares "
            "leave the range of float64; multiply it by a number, which changes no factor"
        )


def _multiplied(root: Tensor, vectors: Tensor) -> Tensor:
    """R v of (S, …, N) in float64, with R as a diagonal (S, N) or (S, N, N)."""
    networks, units = root.shape[0], root.shape[-1]
    if root.dim() == 2:  # a product with float32 is taken in float64 without a copy of it
        return vectors.detach() * root.reshape(networks, *(1,) * (vectors.dim() - 2), units)
    flat = vectors.detach().to(torch.float64).reshape(networks, -1, units)
    return (flat @ root.mT).reshape(vectors.shape)


def largest_each(values: Tensor) -> Tensor:
    """The largest number of each network, (S,); 0 where there are no samples."""
    return values.flatten(1).amax(1) if values.numel() else values.new_zeros(len(values))


def accumulate(factors: Tensor, terms: Tensor) -> Tensor:
    """v₀ = d₀, v_t = d_t + f_t v_{t−1} along the last axis but one, by doubling: log₂ T operations on whole tensors."""
    shift, length = 1, terms.shape[-2]
    factors = factors.expand_as(terms)
    while shift < length:
        head, tail = terms[..., :shift, :], terms[..., shift:, :]
        terms = torch.cat((head, tail + factors[..., shift:, :] * terms[..., :-shift, :]), dim=-2)
        kept = factors[..., shift:, :] * factors[..., :-shift, :]
        factors = torch.cat((factors[..., :shift, :], kept), dim=-2)
        shift *= 2
    return terms


def accumulate_back(factors: Tensor, terms: Tensor) -> Tensor:
    """The same from the last to the first: v_t = d_t + f_t v_{t+1}."""
    return accumulate(factors.expand_as(terms).flip(-2), terms.flip(-2)).flip(-2)
