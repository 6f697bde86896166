"""Explicit Runge–Kutta methods as tableaux.

A step of size ε from h with the vector field f is

    kᵢ = f(h + ε Σⱼ aᵢⱼ kⱼ),    h⁺ = h + ε Σᵢ bᵢ kᵢ,

with the input held constant over the step, so that the nodes cᵢ play no part.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tableau:
    """The coefficients of one method.

    Attributes:
        order: global error is O(ε^order) for smooth σ.
        stages: row i holds aᵢ₀ … aᵢ,ᵢ₋₁.
        weights: b₀ … bₛ₋₁.
    """

    name: str
    order: int
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.weights)


EULER = Tableau("euler", 1, ((),), (1.0,))
MIDPOINT = Tableau("midpoint", 2, ((), (0.5,)), (0.0, 1.0))
HEUN = Tableau("heun", 2, ((), (1.0,)), (0.5, 0.5))
RK4 = Tableau("rk4", 4, ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6))

INTEGRATORS: dict[str, Tableau] = {tableau.name: tableau for tableau in (EULER, MIDPOINT, HEUN, RK4)}
ALIASES = {"rk2": "midpoint"}


def get_integrator(name: str) -> Tableau:
    """Look a method up by name; ``rk2`` is the paper's name for ``midpoint``."""
    canonical = ALIASES.get(name, name)
    if canonical not in INTEGRATORS:
        raise ValueError(f"integrator is {name!r}; choose one of {', '.join([*INTEGRATORS, *ALIASES])}")
    return INTEGRATORS[canonical]
