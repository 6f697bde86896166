"""How long a network remembers on given data: how fast the difference of two states fades."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipschitz_rnn.units.lipschitz.contracting import ContractingPair


@dataclass(frozen=True)
class MemoryLength:
    """The fading of a difference, seen on data and, for a contracting layer, proved.

    Attributes:
        distances: (T,), the distance of two runs after each step, relative to the largest, at its worst sample.
        tau: steps per factor e, as seen; infinite if nothing has faded.
        proved_tau: the same as proved for every input, in the metric, for a single contracting layer that takes its own
            steps; None for others, and with timespans.
    """

    distances: Tensor
    tau: float
    proved_tau: float | None

    def steps_to(self, factor: float) -> int | None:
        """After how many steps the difference stays below ``factor`` of its largest; None if it does not."""
        if not 0 < factor < 1:
            raise ValueError(f"factor is {factor!r}; it must lie between 0 and 1, e.g. 1e-6")
        above = (self.distances >= factor).nonzero()
        last = int(above[-1]) + 1 if len(above) else 0
        return last + 1 if last < len(self.distances) else None

    def __str__(self) -> str:
        seen = "nothing fades" if math.isinf(self.tau) else f"a difference fades by e in {self.tau:.3g} steps"
        known = "" if self.proved_tau is None else f", proved for every input: {self.proved_tau:.3g}"
        steps = self.steps_to(1e-6)
        left = f"; after {len(self.distances)} steps {float(self.distances[-1]):.2g} is left" if steps is None else ""
        return f"{seen}{known}{left}" + (f"; below 1e-6 after {steps} steps" if steps is not None else "")


@torch.no_grad()
def memory_length(layer: Any, x: Tensor, **options: Any) -> MemoryLength:
    """Run a layer twice over the same input, from the state zero and from the state where that ends.

    Args:
        layer: a :class:`LipschitzRNN` that reads in one direction; dropout and noise off, as by ``eval()``.
        x: (T, B, p), or as the layer takes it; ``options`` go to the call, such as ``timespans``.

    The difference is that of the outputs: of a stack, what is left of it at the top. How long it lasts is what the
    parallel scan has to run again at each border.
    """
    if getattr(layer, "bidirectional", False):
        raise ValueError("the layer reads in both directions, and its memory has two ends; measure one direction")
    setting, layer.parallel = layer.parallel, None
    try:
        one, last = layer(x, **options)
        other, _ = layer(x, last, **options)
    finally:
        layer.parallel = setting
    time_axis = 1 if layer.batch_first and one.dim() == 3 else 0
    apart = (other.double() - one.double()).norm(dim=-1).movedim(time_axis, 0).flatten(1).amax(1)
    largest = float(apart.max())
    relative = apart / largest if largest > 0 else apart
    return MemoryLength(relative, _tau(relative), _proved(layer, options.get("timespans")))


def _tau(distances: Tensor) -> float:
    """Steps per factor e between the largest distance and where it reaches rounding, or the end."""
    floor = 1e-5  # above the rounding of float32
    above = (distances >= floor).nonzero()
    if not len(above):
        return 0.0
    first, last = int(distances.argmax()), int(above[-1])
    fallen = -math.log(float(distances[last]))
    return (last - first) / fallen if fallen > 0 and last > first else math.inf


def _proved(layer: Any, timespans: Any) -> float | None:
    """1/(λε) of a single contracting layer in its own steps. Of a stack no layer's rate bounds how the output fades."""
    cells = list(layer.cells.values())
    if timespans is not None or len(cells) != 1 or not isinstance(cells[0].hidden, ContractingPair):
        return None
    return 1.0 / (cells[0].hidden.rate * cells[0].hidden.step_size)
