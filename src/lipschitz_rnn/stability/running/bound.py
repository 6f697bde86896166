"""What rounding does to the results of a network, for given inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lipschitz_rnn.stability.proof.arithmetic import arithmetic
from lipschitz_rnn.stability.proof.inputs import as_array
from lipschitz_rnn.stability.proof.precision import as_precision
from lipschitz_rnn.stability.proof.rounding import Matrix
from lipschitz_rnn.stability.proof.running import PartBound
from lipschitz_rnn.stability.proof.stepping import OWN
from lipschitz_rnn.units.sequences import reverse


@dataclass(frozen=True)
class RoundingBound:
    """Bounds on the distance between computed and exact states, for given inputs.

    Attributes:
        precision: what the network runs in.
        added: (T, B), what one step's own rounding (and that of its inputs) adds, in the metric's norm.
        states: (T, B), on the distance after each step, in that norm; of the last layer. The norm of two directions is
            that of the longer part.
        last: (B,), on the distance of each sample's last state.
        coordinates: (T, B, D), on each coordinate of the output, with its rounding to the dtype that is returned.
        last_coordinates: (layers · directions, B, N), the same for h_n.
        sizes: (T, B, D), on the magnitudes of the computed output.
        parts: the bounds of all layers and directions, each in its own order of time.
    """

    precision: str
    added: Matrix
    states: Matrix
    last: Matrix
    coordinates: Matrix
    last_coordinates: Matrix
    sizes: Matrix
    ends: Matrix
    parts: tuple[PartBound, ...] = field(repr=False)

    def reading(
        self, weight: Any, bias: Any = None, *, precision: str | None = None, everywhere: bool = False
    ) -> Matrix:
        """Bounds on |ŷ − y| for y = C h + c computed by PyTorch from the output: (B, q), or (T, B, q) ``everywhere``.

        The last valid output of each sample is read, or every one. ``precision`` is that of this product; by default
        the network's.
        """
        C = as_array(weight, "weight", "a matrix (q, D)")
        c = np.zeros(len(C)) if bias is None else as_array(bias, "bias", "a vector (q,)")
        if C.ndim != 2 or C.shape[1] != self.sizes.shape[-1] or c.shape != C.shape[:1]:
            raise ValueError(
                f"weight has shape {C.shape} and bias {c.shape}; they must be (q, {self.sizes.shape[-1]}) and (q,)"
            )
        return self._through(C, *self._head_rounding(np.abs(C), np.abs(c), precision), everywhere)

    def differences(self, weight: Any, bias: Any = None, *, precision: str | None = None) -> Matrix:
        """Bounds on |(ŷ_i − ŷ_j) − (y_i − y_j)| of the last outputs, (B, q, q): sharper than adding two bounds."""
        C = as_array(weight, "weight", "a matrix (q, D)")
        c = np.zeros(len(C)) if bias is None else as_array(bias, "bias", "a vector (q,)")
        q = len(C)
        relative, lost = self._head_rounding(np.abs(C), np.abs(c), precision)
        pairs = (C[:, None] - C[None]).reshape(q * q, -1)
        state = self._through(pairs, 0.0 * pairs, np.zeros(q * q), False).reshape(-1, q, q)
        own = self._through(0.0 * C, relative, lost, False)
        found: Matrix = np.where(np.eye(q) > 0, 0.0, state + own[:, :, None] + own[:, None, :])
        return found

    def _head_rounding(self, C: Matrix, c: Matrix, precision: str | None) -> tuple[Matrix, Matrix]:
        """What multiplies the magnitude of the output, and what is added: infinite for results that may overflow."""
        name = self.precision if precision is None else precision
        relative, lost = head_rounding(C, c, name)
        largest = (self.sizes @ C.T + c).reshape(-1, len(C)).max(0)
        return relative, np.where(largest < arithmetic(name).largest, lost, np.inf)

    def _through(self, C: Matrix, relative: Matrix, lost: Matrix, everywhere: bool) -> Matrix:
        width = 0
        total: Matrix | float = 0.0
        for part, error in zip(self._top(), self._top_errors(), strict=True):
            columns = slice(width, width + part.part.size)
            width += part.part.size
            model = part.part.model
            total = total + error[..., None] * part.part.readings(C[:, columns])
            total = total + self.sizes[..., columns] @ (model.returned * np.abs(C[:, columns])).T
            total = total + model.smallest * np.abs(C[:, columns]).sum(1)
        found: Matrix = (total + self.sizes @ relative.T + lost) * OWN
        if everywhere:
            return found
        picked: Matrix = np.take_along_axis(found, self.ends[None, :, None], 0)[0]
        return picked

    def _top(self) -> tuple[PartBound, ...]:
        return self.parts[-2:] if self.sizes.shape[-1] > self.parts[-1].part.size else self.parts[-1:]

    def _top_errors(self) -> list[Matrix]:
        lengths = torch.from_numpy(self.ends + 1)
        tops = self._top()
        return [tops[0].states, *(reverse(torch.from_numpy(p.states), lengths).numpy() for p in tops[1:])]


def head_rounding(C: Matrix, c: Matrix, precision: str) -> tuple[Matrix, Matrix]:
    """Of C h + c, from |C| (q, D) and |c| (q,): what multiplies the magnitude of h (q, D), and what is added (q,)."""
    model = arithmetic(precision)
    half = as_precision(precision).name in ("bfloat16", "float16")
    relative = model.product(C.shape[1] + 1) + model.matrices + 1.01 * (model.returned if half else model.unit)
    # A head may be cast to 16 bits with its matrix, its bias and its result.
    relative += 4 * model.returned if half else 0.0
    return relative * C, relative * c + model.smallest * (2 + C.shape[1] + C.sum(1))


def collect(found: list[PartBound], directions: int, ends: Matrix, precision: str) -> RoundingBound:
    """The bounds of the whole, in the order of time of the input."""
    order, tops = torch.from_numpy(np.asarray(ends)), found[-directions:]

    def forward(values: Matrix, index: int) -> Matrix:
        return reverse(torch.from_numpy(values), order).numpy() if index == 1 else values

    states = np.max([forward(one.states, i) for i, one in enumerate(tops)], axis=0)
    added = np.max([forward(one.added, i) for i, one in enumerate(tops)], axis=0)
    last = np.asarray(ends)[None] - 1
    return RoundingBound(
        precision=precision,
        added=added,
        states=states,
        last=np.max([np.take_along_axis(one.states, last, 0)[0] for one in tops], axis=0),
        coordinates=np.concatenate([forward(one.coordinates(), i) for i, one in enumerate(tops)], -1),
        last_coordinates=np.stack([np.take_along_axis(one.coordinates(), last[..., None], 0)[0] for one in found]),
        sizes=np.concatenate([forward(one.sizes, i) for i, one in enumerate(tops)], -1),
        ends=last[0],
        parts=tuple(found),
    )
