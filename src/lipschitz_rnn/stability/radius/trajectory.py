"""The exact network's states, computed in float64 with a proved bound on the distance to them.

A computed step is off by at most a vector e, entry by entry: |fl(XY) − XY| ≤ γ|X||Y| for products, 16 units for σ. In
the metric of the part ‖error⁺‖_P ≤ ρ‖error‖_P + ‖e‖_P + g‖error of the input‖, as for any other disturbance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.ops.common.lengths import length_of as rounded_length_of
from lipschitz_rnn.stability.proof.rounding import UNIT, Ball
from lipschitz_rnn.stability.radius.kernels import ProvedNetwork, ProvedPart, Timeline

_SIGMA = 16.0  # units that tanh and the sigmoid of a mathematical library may be off by; they promise one to four
_TINY = 2.0**-1000


@dataclass(frozen=True)
class Trajectory:
    """States after every step, (T, B, N), and a bound on their distance from the exact ones in ‖·‖_P, (T, B)."""

    states: Tensor
    error: Tensor


def enclosed_states(proved: ProvedNetwork, timeline: Timeline) -> tuple[Trajectory, ...]:
    """The trajectories of all parts of the last layer, in the order of time."""
    given = timeline.samples.given
    inputs = given.inputs
    below: tuple[Trajectory, ...] = ()
    found: tuple[Trajectory, ...] = ()
    for layer, parts in enumerate(proved.layers):
        found = tuple(_run(proved, timeline, layer, d, inputs, below) for d in range(len(parts)))
        inputs, below = torch.cat([trajectory.states for trajectory in found], -1), found
    return found


def _run(
    proved: ProvedNetwork, timeline: Timeline, layer: int, direction: int, inputs: Tensor, below: tuple[Trajectory, ...]
) -> Trajectory:
    part = proved.layers[layer][direction]
    steps = timeline.steps(part.part)
    fed = torch.zeros_like(steps.lengths)  # what the errors of the inputs add in one step
    if layer > 0:
        for source, trajectory in enumerate(below):
            gain = part.step_gains(steps, proved.coupling(layer, direction, source))
            fed = fed + gain * timeline.ordered(trajectory.error, part.part)
    elif timeline.samples.given.error is not None:
        error = timeline.ordered(timeline.samples.given.error, part.part)
        fed = fed + part.step_gains(steps, part.entry(Ball.exact(part.part.U))) * error
    stepper = Stepper(part, inputs.device)
    x = timeline.ordered(inputs, part.part)
    T, B = steps.lengths.shape
    h, error = x.new_zeros(B, part.part.size), x.new_zeros(B)
    states, errors = x.new_empty(T, B, part.part.size), x.new_empty(T, B)
    factors = part.step_factors(steps)
    for t in range(T):
        drive, size = stepper.drive(x[t])
        for n in range(int(steps.counts[t].max())):
            step = steps.lengths[t].masked_fill(steps.counts[t] <= n, 0.0)[:, None]
            following, off = stepper(h, drive, size, step)
            moved = (factors[t] * error + stepper.length(off) + fed[t]) * (1 + 16 * UNIT)
            error = torch.where(steps.counts[t] > n, moved, error)
            h = following
        states[t], errors[t] = h, error
    return Trajectory(timeline.ordered(states, part.part), timeline.ordered(1.01 * errors, part.part))


def length_of(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """An upper bound of the Euclidean norm over some axes."""
    return rounded_length_of(values, axes) * (1 + 8 * UNIT)


class Stepper:
    """One step in float64 of a part, and a bound on what its rounding adds to every entry."""

    def __init__(self, proved: ProvedPart, device: torch.device) -> None:
        part = proved.part
        self.part, self.sigma, self.tableau = part, part.sigma, part.tableau

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        self.A, self.W, self.U, self.b = tensor(part.alpha * part.A), tensor(part.W), tensor(part.U), tensor(part.b)
        self.lipschitz = part.sigma.lipschitz
        self.size = self.A.abs() + self.lipschitz * self.W.abs()
        self.each = (part.size + part.U.shape[1] + 16) * 1.01 * UNIT
        P = proved.metric
        weights = np.sqrt(np.diag(P.P.mid)) if P.diagonal else np.full(part.size, P.largest)
        self.weights = tensor(weights * (1 + 8 * UNIT))
        self.root = None if P.diagonal else tensor(np.abs(P.root) * P.root_slack * (1 + 1e-9))

    def drive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """U x + b, and the same with absolute values."""
        return x @ self.U.T + self.b, x.abs() @ self.U.abs().T + self.b.abs()

    def __call__(self, h: Tensor, drive: Tensor, size: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """The next state and how far each entry is from that of the exact step from the same h."""
        slopes: list[Tensor] = []
        errors: list[Tensor] = []
        for row in self.tableau.stages:
            z, off = self._combined(h, step, row, slopes, errors)
            value = self.sigma.function(z @ self.W.T + drive)
            slopes.append(z @ self.A.T + value)
            magnitude = z.abs() @ self.size.T + self.lipschitz * size + value.abs()
            errors.append(off @ self.size.T + self.each * magnitude + _SIGMA * UNIT * value.abs() + _TINY)
        return self._combined(h, step, self.tableau.weights, slopes, errors)

    def _combined(
        self, h: Tensor, step: Tensor, row: tuple[float, ...], slopes: list[Tensor], errors: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """h + ε Σ aᵢkᵢ and its error."""
        state, size, off = h, h.abs(), torch.zeros_like(h)
        if not any(row):
            return state, off
        for a, slope, error in zip(row, slopes, errors, strict=True):
            state = state + (step * a) * slope
            size = size + step * abs(a) * slope.abs()
            off = off + step * abs(a) * error
        # A step of length zero changes nothing, not even by rounding.
        return state, (off + (4 * len(row) + 4) * UNIT * size) * (step > 0)

    def length(self, off: Tensor) -> Tensor:
        """‖off‖_P of a vector known by the size of its entries."""
        found = length_of(off * self.weights, (-1,))
        return found if self.root is None else torch.minimum(found, length_of(off @ self.root, (-1,)))
