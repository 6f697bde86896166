"""Numbers recorded for every network after each epoch, such as its eigenvalues, computed while a GPU trains on."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from lipschitz_rnn.training.ensemble import Ensemble, Values


@dataclass(frozen=True)
class Moment:
    """When a probe sees the networks: after this epoch, counted from 0, and this number of optimiser steps."""

    epoch: int
    step: int


Numbers = Sequence[Mapping[str, float]]  # for each network, name -> number
Probe = Callable[[Sequence[nn.Module], Moment], Numbers] | Callable[[Sequence[nn.Module]], Numbers]


class Probing:
    """Starts a probe of all members and returns its record later, when the loop collects it.

    On a CPU nothing runs in the background: sharing threads could change the last bits of a result.
    """

    def __init__(self, probe: Probe | None, ensemble: Ensemble) -> None:
        self._probe = None if probe is None else _with_moment(probe)
        self._ensemble = ensemble
        self._pool = ThreadPoolExecutor(1) if probe is not None and ensemble.device.type == "cuda" else None
        self._started: tuple[Moment, Future[Numbers]] | None = None

    @property
    def pending(self) -> bool:
        """Whether a record is still to be collected."""
        return self._started is not None

    @property
    def in_background(self) -> bool:
        """Whether training may go on before the record is collected."""
        return self._pool is not None

    def start(self, when: Moment, values: Values) -> None:
        """Probe the networks with these values."""
        if self._probe is None:
            return
        members = self._ensemble.members(values, "cpu")
        if self._pool is not None:
            future = self._pool.submit(self._probe, members, when)
        else:
            future = Future()
            future.set_result(self._probe(members, when))
        self._started = when, future

    def collect(self) -> dict[str, Any] | None:
        """The record of the probe that was started, name -> one number per member; None if there is none."""
        if self._started is None:
            return None
        (when, future), self._started = self._started, None
        found = future.result()
        names = dict.fromkeys(name for values in found for name in values)
        numbers = {name: [values.get(name, math.nan) for values in found] for name in names}
        plain = {name: [value if math.isfinite(value) else None for value in row] for name, row in numbers.items()}
        return {"kind": "probe", **asdict(when), **plain}


def _with_moment(probe: Probe) -> Callable[[Sequence[nn.Module], Moment], Numbers]:
    """Adapt a probe that does not take the moment."""
    try:
        inspect.signature(probe).bind((), None)
    except TypeError:
        plain: Any = probe
        return lambda networks, when: plain(networks)
    except ValueError:  # a C function without a signature
        pass
    return probe  # type: ignore[return-value]
