"""Training for a larger certified radius: a margin, and the gain from inputs to scores, as terms of the loss.

A network whose score differences exceed gain · r keeps its class under every change of l2 norm r. The gain used here is
that of the guaranteed factor of a contracting unit, which costs nothing per sample. It is a guide for training only:
`stability.certified_radius` proves a radius afterwards, rounding included, and usually a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training.settings import Settings
from lipschitz_rnn.units.lipschitz.layer import LipschitzRNN


@dataclass(frozen=True)
class Robust:
    """What the settings ask for."""

    margin: float = 0.0
    radius: float = 0.0
    gain_penalty: float = 0.0
    head_penalty: float = 0.0

    @classmethod
    def of(cls, settings: Settings, task: Task, model: nn.Module) -> Robust:
        """Raises ValueError where the task or the unit has no such terms."""
        found = cls(settings.margin, settings.train_radius, settings.gain_penalty, settings.head_penalty)
        asked = {"margin": found.margin, "train_radius": found.radius}
        asked |= {"gain_penalty": found.gain_penalty, "head_penalty": found.head_penalty}
        names = [name for name, value in asked.items() if value > 0]
        if settings.robust_ramp and not names:
            raise ValueError(
                f"robust_ramp is {settings.robust_ramp:g}, but none of {', '.join(asked)} is set, so nothing rises; "
                "set one of them, or leave it out"
            )
        if names and not (task.readout == "last" and task.metric.name == "accuracy"):
            raise ValueError(
                f"{names[0]} is {asked[names[0]]:g}, but {task.name} does not have one class per sequence; leave it out"
            )
        if found.needs_gains and not is_contracting(model):
            name = next(name for name in names if name != "margin")
            raise ValueError(
                f"{name} is {asked[name]:g}, but only a contracting unit has a gain; train with unit_options="
                '{"stability": "contracting"} (-u stability=contracting), or leave it out'
            )
        return found

    @property
    def needs_gains(self) -> bool:
        return max(self.radius, self.gain_penalty, self.head_penalty) > 0

    @property
    def asked(self) -> bool:
        return self.margin > 0 or self.needs_gains

    def terms(
        self,
        outputs: Tensor,
        targets: Tensor,
        gains: Callable[[int], Tensor],
        steps: int,
        share: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scores (S, B, q) with those of wrong classes raised, for the task's loss, and what is added to it, (S,).

        Args:
            gains: number of steps -> (S, q, q), see `score_gains`.
            share: of all terms, while they rise; None: all of them.
        """
        wrong = 1.0 - nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
        wrong = wrong if share is None else wrong * share.to(outputs.dtype)
        raised, extra = outputs + self.margin * wrong, torch.zeros((), device=outputs.device)
        if self.radius or self.gain_penalty:
            whole = gains(steps)
            of_targets = whole.gather(1, targets.unsqueeze(-1).expand(*targets.shape, whole.shape[-1]))
            raised = raised + self.radius * wrong * of_targets.to(outputs.dtype)
            extra = extra + self.gain_penalty * _mean_square(whole)
        if self.head_penalty:
            extra = extra + self.head_penalty * _mean_square(gains(0))
        extra = extra if share is None else extra * share
        return raised, extra.to(outputs.dtype if outputs.dtype == torch.float64 else torch.float32)


def _mean_square(gains: Tensor) -> Tensor:
    """Over all pairs of different classes: (S,)."""
    classes = gains.shape[-1]
    return gains.square().sum((-2, -1)) / max(classes * (classes - 1), 1)


def is_contracting(model: nn.Module) -> bool:
    unit = getattr(model, "unit", None)
    return isinstance(unit, LipschitzRNN) and unit.stability == "contracting" and hasattr(model, "score_gains")


def score_gains(unit: Any, head: nn.Linear, steps: int) -> Tensor:
    """(q, q), float64: ‖k‖₂ · ‖P^{−½}(d_i − d_j)‖ with the kernel k of all layers; of the head alone for 0 steps.

    One layer obeys ‖δh⁺‖_P ≤ ρ‖δh‖_P + g‖δx‖, g = ε L ‖P^½U‖, and a stack convolves these kernels. Frobenius norms
    bound the others and are smooth. Stages of midpoint and Heun steps add terms of higher order in ε, left out here.
    A single layer with ``bounded_gain`` has its γ in place of ‖k‖₂, for any number of steps.
    """
    cells = [unit.cell(layer) for layer in range(unit.num_layers)]
    below: Tensor | None = None
    size: Tensor | float = 1.0
    for cell in cells:
        stretch = cell.hidden.stretch()
        if steps:
            entering = stretch.unsqueeze(-1) * cell.weight_ih.double()
            entering = entering if below is None else entering / below
            size = size * _length(entering, (-2, -1)) * (cell.step_size * get_nonlinearity(cell.nonlinearity).lipschitz)
        below = stretch
    assert below is not None
    rows = head.weight.double() / below
    differences = _length(rows.unsqueeze(1) - rows.unsqueeze(0), (-1,))
    if steps == 0:
        return differences
    if len(cells) == 1 and cells[0].bounded_gain:
        gain: Tensor = cells[0].gain()
        return gain * differences
    factor = math.exp(-cells[0].rate * cells[0].step_size)
    return kernel_norm(factor, steps, len(cells)) * size * differences


def _length(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The Euclidean norm, with a gradient of zero instead of NaN where it is zero, as for a class against itself."""
    return (values.square().sum(axes) + 1e-30).sqrt()


@cache
def kernel_norm(factor: float, steps: int, layers: int) -> float:
    """‖k‖₂ of as many equal layers: k_n = (n + L − 1 choose L − 1) ρⁿ, the L-fold convolution of ρⁿ with itself."""
    ways = torch.ones(steps, dtype=torch.float64)
    for _ in range(layers - 1):
        ways = ways.cumsum(0)
    powers = factor ** torch.arange(steps, dtype=torch.float64)
    return float((ways * powers).norm())
