"""The Lipschitz nonlinearities σ of ḣ = A h + σ(W h + u), and what the stability theory needs to know about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Nonlinearity:
    """σ with its slope written in terms of its own value, so that a backward pass stores one tensor only.

    Attributes:
        slope_from_value: s = σ(z) ↦ σ′(z).
        slope_range: the smallest interval that holds (σ(a) − σ(b)) / (a − b) for all a ≠ b.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    slope_from_value: Callable[[Tensor], Tensor]
    slope_range: tuple[float, float]

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant of σ."""
        return max(abs(slope) for slope in self.slope_range)

    @property
    def monotone(self) -> bool:
        """Whether σ never decreases."""
        return self.slope_range[0] >= 0.0


def _identity(z: Tensor) -> Tensor:
    return z.clone()


NONLINEARITIES: dict[str, Nonlinearity] = {
    nonlinearity.name: nonlinearity
    for nonlinearity in (
        Nonlinearity("tanh", torch.tanh, lambda s: 1 - s * s, (0.0, 1.0)),
        Nonlinearity("relu", torch.relu, lambda s: (s > 0).to(s.dtype), (0.0, 1.0)),
        Nonlinearity("sigmoid", torch.sigmoid, lambda s: s * (1 - s), (0.0, 0.25)),
        Nonlinearity("identity", _identity, torch.ones_like, (1.0, 1.0)),
    )
}


def get_nonlinearity(name: str) -> Nonlinearity:
    """Look up a nonlinearity by name."""
    if name not in NONLINEARITIES:
        raise ValueError(f"nonlinearity is {name!r}; choose one of {', '.join(NONLINEARITIES)}")
    return NONLINEARITIES[name]
