"""The rounding of all steps of a sample, carried to its scores: docs/stability.md, theorem 7.

e = ĥ − h(x + Δ) obeys e⁺ = J′e + r, where J′ = I + ε(αA + D′W) has slopes D′ of chords of σ, and |r| ≤ ε|D′η| + |ω|.
The r of one step moves a difference of scores by at most

    min( |λ_t|ᵀ|r_t| + μ_t‖r_t‖_P,  k_t‖r_t‖_P ),    μ_{t−1} = ρ_t μ_t + ‖εWᵀ(D′ − D̂)λ_t‖ in the dual metric,

where λ is the adjoint of the sample itself, μ what other slopes can add to it, and k the kernel of the certificate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.stability.radius.linearized import Linearized
from lipschitz_rnn.stability.radius.remainder import slope_change

_TINY = 2.0**-500  # more than squares that underflow can take from a root


def least(rows: Tensor, length: Tensor, by_ellipsoid: Tensor) -> Tensor:
    """The smaller bound of every entry."""
    return torch.minimum(rows * length[..., None], by_ellipsoid)


class ErrorBounds:
    """Step by step, for changes of K sizes (K, B)."""

    def __init__(self, line: Linearized, size: Tensor) -> None:
        assert line.rounded is not None
        assert line.head is not None
        assert line.fed is not None
        assert line.errors is not None
        self.line, self.size, self.rounded, self.head = line, size, line.rounded, line.head
        self.growth, self.around = line.fed, line.errors
        self.length = torch.zeros_like(size)  # ‖e‖_P
        # e = f + g: f follows the sample's own J, and g has what other slopes make of it.
        self.squared = torch.zeros_like(size)  # n² of the ellipsoids around f
        self.turn = torch.zeros_like(size)  # ‖g‖_P
        self.longest = torch.zeros_like(size)  # of ‖e‖_P
        self.largest = torch.zeros_like(size)  # of |ĥ − h|
        self.states = size.new_zeros(*size.shape, len(line.reach))  # Σ w_t |ĥ_t − h_t|
        # For every step: |λ|ᵀ|r| and what the slopes add to μ, (K, B, q); ‖r‖_P (K, B), and of its fed part.
        self.bent = size.new_zeros(*size.shape, line.adjoint.shape[2])  # Σ ε|λ|ᵀ|D′ − D̂||W e|
        self.along: list[Tensor] = []
        self.turned: list[Tensor] = []
        self.lengths: list[Tensor] = []
        self.fed: list[Tensor] = []

    def step(self, t: int, V: Tensor, moved: Tensor) -> None:
        """Step t, where the argument of σ has moved by at most V, and the state before it by ``moved``."""
        line, around = self.line, self.around
        found = self.rounded.at(t, self._before(t, moved), self.size)
        first = least(line.across, self.length + self.turn, around.bound(t, self.squared))  # |W f|
        met = least(line.across, self.length, first + line.across * self.turn[..., None])  # |W e|
        inside = found.inside + found.fed_inside
        change = slope_change(line.own.part.sigma, line.a[t], line.slope[t], V + met + inside, line.off[t])
        steep = (line.slope[t] + change).clamp(max=line.stepper.lipschitz)
        own = steep * found.inside + found.outside  # |r|/ε without what the change of the input feeds
        self.along.append(torch.einsum("bqn,kbn->kbq", line.adjoint[t], own))
        self.bent = self.bent + torch.einsum("bqn,kbn->kbq", line.adjoint[t], change * met)
        self.turned.append(turned_by(line.adjoint[t], change, line.across, line.whole))
        step = line.step[t].squeeze(-1)
        self.lengths.append(step * line.stepper.length(own))
        self.fed.append(step * line.stepper.length(found.fed))
        self.length = (line.factor[t] * self.length + self.lengths[-1] + self.fed[-1]) * (1 + 1e-12)
        self.longest = torch.maximum(self.longest, self.length)
        self.turn = (line.factor[t] * self.turn + step * line.stepper.length(change * first)) * (1 + 1e-12)
        self.squared = around.grown(t, self.squared, own + found.fed, step > 0)

    def read(self, moved: Tensor, norm: str) -> Tensor:
        """(K, B, q): what rounding takes from the differences, after the last step."""
        line = self.line
        self._before(len(line.a), moved)
        lost = torch.einsum("bqn,kbn->kbq", self.head.each, self.states) + line.missed * self.longest[..., None]
        carried, mu, fed, known = (torch.zeros_like(lost) for _ in range(4))
        for t in range(len(line.a) - 1, -1, -1):
            kernel = torch.minimum(mu, line.kernel[t])
            length = self.lengths[t][..., None]
            carried = carried + torch.minimum(self.along[t] + kernel * length, line.kernel[t] * length)
            # What the input feeds adds up in the norm of the change.
            one, other = kernel * self.fed[t][..., None], line.kernel[t] * self.fed[t][..., None]
            fed, known = (fed + one**2, known + other**2) if norm == "l2" else (fed + one, known + other)
            mu = (line.factor[t][..., None] * mu + self.turned[t]) * (1 + 1e-12)
        if norm == "l2":
            fed, known = fed.sqrt() + _TINY, known.sqrt() + _TINY
        along = self.growth * self.size[..., None]
        carried = carried + torch.minimum(along + fed, known)
        # The same second term by the bounds on e: sharper where slopes hardly change.
        lost = lost + torch.minimum(carried, sum(self.along, along) + self.bent)
        scores = (self.states @ self.head.size.T).amax(-1)
        fits = self.rounded.fits(self.largest, self.size) & (scores < self.head.limit)
        return torch.where(fits[..., None], lost, torch.inf).nan_to_num(nan=torch.inf)

    def _before(self, t: int, moved: Tensor) -> Tensor:
        """|ĥ − h| before step t, which is what is read after the one before."""
        first = self.around.entries(t, self.squared) + self.line.reach * self.turn[..., None]
        grown = moved + least(self.line.reach, self.length, first)
        self.largest = torch.maximum(self.largest, grown.amax(-1))
        if t > 0:
            self.states = self.states + self.head.weights[t - 1][..., None] * grown
        return grown


def turned_by(adjoint: Tensor, change: Tensor, across: Tensor, whole: float) -> Tensor:
    """‖εWᵀ(D′ − D̂)λ‖ in the dual metric, (K, B, q): row by row, or by the norm of W."""
    rows = torch.einsum("bqn,kbn->kbq", adjoint, across * change)
    return torch.minimum(rows, whole * torch.einsum("bqn,kbn->kbq", adjoint**2, change**2).sqrt() + _TINY)
