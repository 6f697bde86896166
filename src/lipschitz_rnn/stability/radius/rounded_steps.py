"""What rounding does in each step of a sample and of inputs near it, entry by entry (one layer, Euler steps).

A computed step is ĥ⁺ = ĥ + ε(αA ĥ + σ(z + η)) + ω. Bounds on |η| and |ω| follow from the magnitudes of the state and of
the input. They are known at the sample; both grow with |ĥ − h| and with the change of the input, in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipschitz_rnn.stability.proof.running import RunningPart
from lipschitz_rnn.stability.proof.stepping import OWN, Feed


@dataclass(frozen=True)
class StepBounds:
    """Of one step, (K, B, N) each: |η|, what a change of the input adds to it, and |ω|/ε.

    ``fed`` is what a change of the input adds to L|η| + |ω|/ε.
    """

    inside: Tensor
    fed_inside: Tensor
    outside: Tensor
    fed: Tensor


@dataclass(frozen=True)
class RoundedSteps:
    """One direction of a batch, in reading order.

    Attributes:
        inside, outside: (T, B, N), |η| and |ω|/ε at the sample.
        inside_growth, outside_growth: (N, N), by how much they grow with |ĥ|; ``kept`` (T, B, 1): |ω|/ε, besides.
        entering: (T, B, N), by how much |U x| can grow for a change of size 1.
        fed_inside, fed: by how much |η|, and L|η| + |ω|/ε, grow with that.
        states_growth, inputs_growth: of the largest number of a step, with the largest entry of |ĥ − h|, and with the
            size of a change.
        limit: numbers that grow by less than this do not overflow.
    """

    inside: Tensor
    outside: Tensor
    inside_growth: Tensor
    outside_growth: Tensor
    kept: Tensor
    entering: Tensor
    fed_inside: float
    fed: float
    states_growth: float
    inputs_growth: float
    limit: float

    def at(self, t: int, grown: Tensor, size: Tensor) -> StepBounds:
        """Bounds for states within ``grown`` (K, B, N) of the sample's, and changes of size (K, B)."""
        entering = size[..., None] * self.entering[t]
        return StepBounds(
            self.inside[t] + grown @ self.inside_growth.T,
            self.fed_inside * entering,
            self.outside[t] + grown @ self.outside_growth.T + self.kept[t] * grown,
            self.fed * entering,
        )

    def fits(self, largest: Tensor, size: Tensor) -> Tensor:
        """(K, B): whether nothing overflows where no entry of |ĥ − h| exceeds ``largest`` (K, B)."""
        return self.states_growth * largest + self.inputs_growth * size < self.limit


def rounded_steps(
    running: RunningPart,
    between: float,
    steps: Tensor,
    state: Tensor,
    x: Tensor,
    off: Tensor,
    relative: float,
    entering: Tensor,
    largest: float,
) -> RoundedSteps:
    """From magnitudes in reading order.

    Args:
        between: as in ``StepModel.apart``.
        steps: (T, B, 1).
        state: (T, B, N), bounds on |h| before each step.
        x: (T, B, p), bounds on |x|; ``off``: on how far computed inputs are from exact ones; ``relative``: to a change.
        entering: (T, B, N), as in `RoundedSteps`; ``largest``: by how much any input can change for a change of size 1.
    """
    T, B, N = state.shape
    device, model = state.device, running.step_model
    assert running.U is not None
    U = np.abs(running.U)

    def rows(values: Tensor) -> np.ndarray:
        return values.reshape(T * B, -1).cpu().numpy()

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    wrong = rows(off)
    feed = running.feed(rows(x) + wrong)
    feed = Feed(feed.size, feed.error + wrong @ U.T * OWN)
    inside, outside = model.apart(rows(state), feed, rows(steps), between)
    inside_growth, outside_growth, kept = model.growth_apart(between)
    fed_inside, fed = model.growth_fed(running.feed_growth(np.ones(N), relative))
    moves, longest = steps > 0, float(steps.max())
    over = torch.where(moves, 1.0 / steps, 0.0) * OWN
    inputs_growth = model.growth_of_sizes(np.zeros(N), longest, running.feed_growth(np.ones(N), relative))
    return RoundedSteps(
        inside=torch.where(moves, tensor(inside).view(T, B, N), 0.0),
        outside=torch.where(moves, tensor(outside).view(T, B, N) * over, 0.0),
        inside_growth=tensor(inside_growth),
        outside_growth=tensor(outside_growth),
        kept=kept * over,
        entering=entering * moves,
        fed_inside=fed_inside,
        fed=fed,
        states_growth=model.growth_of_sizes(np.ones(N), longest),
        inputs_growth=max(inputs_growth * float(entering.max()), largest),
        limit=0.125 * min(running.model.largest, running.inputs.largest),
    )
