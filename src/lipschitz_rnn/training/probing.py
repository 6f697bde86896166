"""Numbers noted of every network after each epoch, such as its eigenvalues; found while a GPU trains on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import nn

from lipschitz_rnn.training.ensemble import Ensemble, Values

# From all networks, and the epoch after which they are as they are, counted from 0.
Probe = Callable[[Sequence[nn.Module], int], Sequence[Mapping[str, float]]]


class Probing:
    """Starts a probe of all members and hands its record over later, at a place that the loop chooses.

    On a CPU nothing runs beside the training: a second user of its threads could change the bits of a result.
    """

    def __init__(self, probe: Probe | None, ensemble: Ensemble) -> None:
        self._probe, self._ensemble = probe, ensemble
        self._pool = ThreadPoolExecutor(1) if probe is not None and ensemble.device.type == "cuda" else None
        self._started: tuple[dict[str, Any], Future[Sequence[Mapping[str, float]]]] | None = None

    @property
    def pending(self) -> bool:
        """Whether a record is still to be collected."""
        return self._started is not None

    @property
    def beside(self) -> bool:
        """Whether training may go on before the record is collected."""
        return self._pool is not None

    def start(self, place: Mapping[str, Any], values: Values) -> None:
        """Probe the networks with these values; `place` says when that is: epoch and step."""
        if self._probe is None:
            return
        members = self._ensemble.members(values, "cpu")
        if self._pool is not None:
            future = self._pool.submit(self._probe, members, place["epoch"])
        else:
            future = Future()
            future.set_result(self._probe(members, place["epoch"]))
        self._started = dict(place), future

    def collect(self) -> dict[str, Any] | None:
        """The record of what was started, name -> one number per member; None where nothing was."""
        if self._started is None:
            return None
        (place, future), self._started = self._started, None
        found = future.result()
        names = dict.fromkeys(name for values in found for name in values)
        numbers = {name: [values.get(name, math.nan) for values in found] for name in names}
        plain = {name: [value if math.isfinite(value) else None for value in row] for name, row in numbers.items()}
        return {"kind": "probe", **place, **plain}
