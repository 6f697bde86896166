"""Explicit Runge–Kutta methods as tableaux.

A step of size ε from h with the vector field f is

    kᵢ = f(h + ε Σⱼ aᵢⱼ kⱼ),    h⁺ = h + ε Σᵢ bᵢ kᵢ,

with the input held constant over the step, so that the nodes cᵢ play no part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

HIGHEST_ORDER = 4  # whose conditions are checked here
ROUNDING = 1e-12  # of coefficients such as 1/6 and of the sums below


@dataclass(frozen=True)
class Tableau:
    """The coefficients of one method, checked when it is made: an explicit method of the order that it declares.

    Attributes:
        order: global error is O(ε^order) for smooth σ; at most 4.
        stages: row i holds aᵢ₀ … aᵢ,ᵢ₋₁.
        weights: b₀ … bₛ₋₁.
    """

    name: str
    order: int
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_form(self)
        for condition, value, needed in _order_conditions(self):
            if abs(value - needed) > ROUNDING * max(1.0, *(abs(b) for b in self.weights)):
                raise ValueError(
                    f"tableau {self.name!r} is not of order {self.order}: {condition} is {value:.6g} and must be "
                    f"{needed:.6g}. Correct the coefficients, or declare a lower order"
                )

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def chained(self) -> bool:
        """Whether every stage depends only on the previous one."""
        return not any(any(row[:-1]) for row in self.stages)


def _check_form(tableau: Tableau) -> None:
    name, stages, weights = tableau.name, tableau.stages, tableau.weights
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a tableau is {name!r}; it must be a word")
    if isinstance(tableau.order, bool) or tableau.order not in range(1, HIGHEST_ORDER + 1):
        raise ValueError(
            f"tableau {name!r} declares order {tableau.order!r}; it must be 1 to {HIGHEST_ORDER}, "
            "whose conditions are checked"
        )
    if not _is_tuple_of_numbers(weights) or not weights:
        raise ValueError(f"weights of tableau {name!r} are {weights!r}; they must be a tuple of finite numbers")
    if not isinstance(stages, tuple) or len(stages) != len(weights):
        raise ValueError(f"tableau {name!r} has weights for {len(weights)} stages; stages must be as many rows")
    for i, row in enumerate(stages):
        if not _is_tuple_of_numbers(row) or len(row) != i:
            raise ValueError(
                f"stages[{i}] of tableau {name!r} is {row!r}; it must be a tuple of {i} finite numbers, one for "
                "each stage before: the method must be explicit"
            )


def _is_tuple_of_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )


def _order_conditions(tableau: Tableau) -> list[tuple[str, float, float]]:
    """One for each rooted tree of up to ``order`` nodes: its name, the value, and 1/γ, which the value must be."""
    b = tableau.weights

    def through(values: list[float]) -> list[float]:
        """Σⱼ aᵢⱼ vⱼ for each stage i."""
        return [sum(a * v for a, v in zip(row, values, strict=False)) for row in tableau.stages]

    def weighted(*factors: list[float]) -> float:
        return math.fsum(b_i * math.prod(values) for b_i, *values in zip(b, *factors, strict=True))

    c = through([1.0] * len(b))
    squares, inner = [value**2 for value in c], through(c)
    trees = [
        (1, "Σ bᵢ", weighted(), 1),
        (2, "Σ bᵢcᵢ", weighted(c), 1 / 2),
        (3, "Σ bᵢcᵢ²", weighted(squares), 1 / 3),
        (3, "Σ bᵢaᵢⱼcⱼ", weighted(inner), 1 / 6),
        (4, "Σ bᵢcᵢ³", weighted(squares, c), 1 / 4),
        (4, "Σ bᵢcᵢaᵢⱼcⱼ", weighted(c, inner), 1 / 8),
        (4, "Σ bᵢaᵢⱼcⱼ²", weighted(through(squares)), 1 / 12),
        (4, "Σ bᵢaᵢⱼaⱼₖcₖ", weighted(through(inner)), 1 / 24),
    ]
    return [(name, value, needed) for order, name, value, needed in trees if order <= tableau.order]


EULER = Tableau("euler", 1, ((),), (1.0,))
MIDPOINT = Tableau("midpoint", 2, ((), (0.5,)), (0.0, 1.0))
HEUN = Tableau("heun", 2, ((), (1.0,)), (0.5, 0.5))
RK4 = Tableau("rk4", 4, ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6))

INTEGRATORS: dict[str, Tableau] = {tableau.name: tableau for tableau in (EULER, MIDPOINT, HEUN, RK4)}
ALIASES = {"rk2": "midpoint"}


def get_integrator(name: str) -> Tableau:
    """Look up a method by name; ``rk2`` is the paper's name for ``midpoint``."""
    canonical = ALIASES.get(name, name)
    if canonical not in INTEGRATORS:
        raise ValueError(f"integrator is {name!r}; choose one of {', '.join([*INTEGRATORS, *ALIASES])}")
    return INTEGRATORS[canonical]
