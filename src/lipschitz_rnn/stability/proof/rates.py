"""Levels, factors and rates of decay: what one says about another, up to rounding for a search, proved for a claim.

The level t of a difference δ is what the inequality bounds: t = ρ² for the factor ρ of a step of length ε, t = −2λ in
continuous time. A factor is e^{−λε}, or 1 − λε where a range of steps inherits it from its ends.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

_DIGITS = 60  # of the decimal arithmetic, whose logarithm and exponential are correctly rounded


def level_to_rate(level: float, step: float | None, linear: bool = False) -> float:
    """λ of a level, up to rounding. ``linear`` gives the λ of ρ = 1 − λε."""
    if step is None:
        return -level / 2
    if level <= 0:
        return math.inf
    return (1 - math.sqrt(level)) / step if linear else -math.log(level) / (2 * step)


def rate_to_level(rate: float, step: float | None, linear: bool = False) -> float:
    """The level that a rate asks for, up to rounding: the inverse of :func:`level_to_rate`."""
    if step is None:
        return -2 * rate
    return max(1 - rate * step, 0.0) ** 2 if linear else math.exp(min(-2 * rate * step, 700.0))


def proved_rate(level: float, step: Fraction | None, linear: bool = False) -> float:
    """A float that does not exceed the λ of a level."""
    if step is None:
        return -level / 2 if abs(level) > 1e-300 else -abs(level)
    if level <= 0:
        return math.inf
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        exact = Decimal(level)
        length = Decimal(step.numerator) / Decimal(step.denominator)
        rate = (1 - exact.sqrt()) / length if linear else -exact.ln() / (2 * length)
        # Each of these few operations is within one unit of its last of 60 digits.
        slack = Decimal(10) ** (8 - _DIGITS) * (abs(rate) + 1 / length)
        return round_down(rate - slack)


def proved_factor(level: float) -> float:
    """A float that is at least √level."""
    return math.nextafter(math.sqrt(level), math.inf) if level > 0 else 0.0


def proved_decay(rate: float) -> float:
    """A float that is at least e^{−rate}."""
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        return -round_down(-(-Decimal(rate)).exp() * (1 + Decimal(10) ** (8 - _DIGITS)))


def round_down(value: Decimal | Fraction) -> float:
    """The largest float that does not exceed the value, or the one below it."""
    nearest = float(value)
    if math.isinf(nearest):
        return nearest if nearest < 0 else math.nextafter(math.inf, 0.0)
    return nearest if Fraction(nearest) <= Fraction(value) else math.nextafter(nearest, -math.inf)


def round_up(value: Decimal | Fraction) -> float:
    """The smallest float that is not below the value, or the one above it."""
    return -round_down(-value)
