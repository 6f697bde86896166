"""The time limit of a search, and whom it tells how far it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


class OutOfTime(Exception):
    """The time limit of a search has passed; what was found until then counts."""


@dataclass(frozen=True)
class Progress:
    """How far the search for one recurrence is.

    Attributes:
        name: which part of a model it is; empty if there is only one.
        stage: what is being tried.
        rate: the best rate so far, not proved yet; −∞ before the first one.
        upper_bound: the rate of the slowest slope pattern found, by its computed eigenvalues; ∞ before it is known.
        seconds: since the search began.
    """

    name: str
    stage: str
    rate: float
    upper_bound: float
    seconds: float


@dataclass
class Clock:
    """Asked between the steps of every search. A single factorization is not interrupted."""

    deadline: float = math.inf  # of time.monotonic
    name: str = ""
    listener: Callable[[Progress], None] | None = None
    rate: float = -math.inf
    upper_bound: float = math.inf
    started: float = field(default_factory=time.monotonic)

    @staticmethod
    def after(seconds: float, name: str = "", listener: Callable[[Progress], None] | None = None) -> Clock:
        return Clock(time.monotonic() + seconds, name, listener)

    def tell(self, stage: str, rate: float = -math.inf) -> None:
        """Report what is being tried, and a rate that was reached."""
        self.rate = max(self.rate, rate)
        if self.listener is not None:
            elapsed = time.monotonic() - self.started
            self.listener(Progress(self.name, stage, self.rate, self.upper_bound, elapsed))

    @property
    def left(self) -> float:
        """Seconds, not below zero."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime


UNLIMITED = Clock()
