"""Early stopping: when no network has improved on validation data for a number of epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lipschitz_rnn.tasks import Metric


class Patience:
    """Counts, for every network, the epochs since its validation metric or its validation loss was last better.

    Both count: a metric such as accuracy moves in jumps, and stays equal where it is already perfect.
    """

    def __init__(self, epochs: int | None, metric: Metric, members: int) -> None:
        self._epochs, self._sign = epochs, 1.0 if metric.higher_is_better else -1.0
        self._metric: list[float | None] = [None] * members
        self._loss: list[float | None] = [None] * members
        self._waited = [0] * members

    def consider(self, metric: Sequence[float], loss: Sequence[float]) -> None:
        """The scores of an epoch, one per network."""
        for i, (score, value) in enumerate(zip(metric, loss, strict=True)):
            better = [_better(self._sign * score, self._metric[i]), _better(-value, self._loss[i])]
            if better[0]:
                self._metric[i] = self._sign * score
            if better[1]:
                self._loss[i] = -value
            self._waited[i] = 0 if any(better) else self._waited[i] + 1

    def is_over(self, alive: Sequence[bool]) -> bool:
        """Whether every network that still trains has waited long enough."""
        if self._epochs is None:
            return False
        waited = [count for count, living in zip(self._waited, alive, strict=True) if living]
        return bool(waited) and min(waited) >= self._epochs

    def state(self) -> dict[str, Any]:
        return {"metric": self._metric, "loss": self._loss, "waited": self._waited}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """`state` is None in checkpoints of versions without early stopping."""
        if state is not None:
            self._metric, self._loss = list(state["metric"]), list(state["loss"])
            self._waited = list(state["waited"])


def _better(value: float, best: float | None) -> bool:
    return math.isfinite(value) and (best is None or value > best)
