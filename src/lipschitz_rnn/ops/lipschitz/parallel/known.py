"""Numbers of every chunk, brought together where it is decided from them how to go on, and what follows from them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.parallel.chunks import Chunks
from lipschitz_rnn.ops.lipschitz.parallel.contraction import Norms, accumulate, accumulate_back
from lipschitz_rnn.ops.lipschitz.parallel.line import Line
from lipschitz_rnn.ops.lipschitz.parallel.plan import allowed


class Known:
    """Numbers (S, K, B) in float64 of the chunks of all processes: on the host, unless nothing may wait for it.

    A GPU is done with a number long after it was asked for one, and then waits for what the host makes of it. So new
    numbers are collected and fetched together, and all further arithmetic happens on the host.

    Attributes:
        factors: ρ of every step where all are equal, (S, 1, 1), on the device; else None.
    """

    def __init__(self, chunks: Chunks, norms: Norms, proved: bool, fixed: bool, line: Line) -> None:
        S, _, rows, _ = chunks.cut.shape
        K = chunks.plan.chunks
        self.chunks, self.norms, self.proved, self.fixed, self.line = chunks, norms, proved, fixed, line
        self._shape = (S, K, rows // K)
        self._new: dict[str, Tensor] = {}
        self.factors = norms.of_steps(chunks.cut) if proved and chunks.cut.timespans is None else None
        if self.factors is not None:
            self.add(factor=self.factors)
        self._values: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        """Tensors that expand to (S, K, B), to be fetched with the next ones."""
        self._new |= values

    def fetch(self) -> None:
        if not self._new:
            return
        stacked = torch.stack([value.to(torch.float64).expand(self._shape) for value in self._new.values()])
        if self.line.size > 1:
            stacked = torch.cat(self.line.gathered(stacked), dim=2)
        found = (stacked if self.fixed else stacked.cpu()).unbind()
        self._values |= dict(zip(self._new, found, strict=True))
        self._new = {}

    def __getitem__(self, name: str) -> Tensor:
        self.fetch()
        return self._values[name]

    def get(self, name: str) -> Tensor | None:
        return self[name] if name in self._new or name in self._values else None

    def fading(self, first: int, stop: int) -> Tensor:
        """By what some steps of each chunk multiply an error at most; zero if nothing is proved."""
        if not self.proved:
            return torch.zeros_like(next(iter(self._values.values())))
        if self.factors is not None:
            return _rounded_up(self["factor"] ** (stop - first), stop - first)
        name = f"steps {first} to {stop}"
        if name not in self._values:
            self.add(**{name: irregular_fading(self.chunks, self.norms, first, stop)})
        return self[name]


def irregular_fading(chunks: Chunks, norms: Norms, first: int, stop: int) -> Tensor:
    """The product of the factors of some steps of different lengths, (S, K, B)."""
    spans, K = chunks.cut.timespans, chunks.plan.chunks
    assert spans is not None
    product = norms.step_factors(spans[:, first:stop]).log().sum(1).exp()
    return _rounded_up(product.unflatten(1, (product.shape[1] // K, K)).transpose(1, 2), stop - first)


def _rounded_up(product: Tensor, steps: int) -> Tensor:
    return (product * (1.0 + 1e-12 * steps)).clamp(max=1.0)


def passed_on(fading: Tensor, handed: Tensor) -> Tensor:
    """The error of each chunk's first state, from what every chunk hands to the next one, (S, K, B)."""
    zero, one = torch.zeros_like(handed[:, :1]), torch.ones_like(fading[:, :1])
    return accumulate(torch.cat((one, fading[:, :-1]), dim=1), torch.cat((zero, handed[:, :-1]), dim=1))


def passed_back(fading: Tensor, handed: Tensor) -> Tensor:
    """The error at the end of each chunk, from what every chunk hands to the one before it, (S, K, B)."""
    zero, one = torch.zeros_like(handed[:, :1]), torch.ones_like(fading[:, :1])
    return accumulate_back(torch.cat((fading[:, 1:], one), dim=1), torch.cat((handed[:, 1:], zero), dim=1))


def largest_relative(errors: Tensor, sizes: Tensor) -> Tensor:
    """max over samples of error/size from (S, K, B) and (S, B); 0/0 counts as 0."""
    worst = errors.amax(1) if errors.shape[1] else torch.zeros_like(sizes)
    ratio = torch.where(worst == 0.0, 0.0, worst / sizes)
    return ratio.amax() if ratio.numel() else ratio.new_zeros(())


def promising(before: float, after: float, relative: float, tolerance: float, passes: int) -> bool:
    """Whether so many further passes would do, if each shrinks the gaps as this one did."""
    return after < before and relative * (after / before) ** passes <= tolerance


def only_rounding(fading: Tensor, relative: Tensor, tolerance: float, dtype: torch.dtype) -> bool:
    """Whether the error exceeds the tolerance by no more than rounding at every border adds to it.

    Two rounded trajectories stay apart by some units however long they run. In the tolerance these count once; in the
    bound each border has them, and they add up where a chunk shrinks an error by little.
    """
    borders = float(passed_on(fading, torch.ones_like(fading)).amax())
    found = float(relative)
    return not math.isnan(found) and found <= tolerance + allowed(0.0, dtype) * max(0.0, borders - 1.0)
