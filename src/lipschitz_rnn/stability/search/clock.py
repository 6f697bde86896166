"""The time limit of a search."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class OutOfTime(Exception):
    """The time limit of a search has passed; what was found until then counts."""


@dataclass(frozen=True)
class Clock:
    """Asked between the steps of every search. A single factorization is not interrupted."""

    deadline: float = math.inf  # of time.monotonic

    @staticmethod
    def after(seconds: float) -> Clock:
        return Clock(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds, not below zero."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime


UNLIMITED = Clock()
