"""What a search hands over to be proved."""

from __future__ import annotations

from dataclasses import dataclass

from lipschitz_rnn.stability.proof.rates import level_to_rate
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.systems import System


@dataclass(frozen=True)
class Candidate:
    """A metric with a level and a multiplier for every system; without multipliers all corners are to be tested."""

    P: Matrix
    multipliers: tuple[Matrix, ...]
    levels: tuple[float, ...]
    method: str

    def rate(self, systems: list[System[Matrix]], linear: bool) -> float:
        """The rate it would prove for all systems (``linear``: as a range of steps inherits it)."""
        return min(
            level_to_rate(level, system.step, linear) for level, system in zip(self.levels, systems, strict=True)
        )
