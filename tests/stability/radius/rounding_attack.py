"""An adversary that rounds: every step errs by as much as its precision allows, in the worst direction.

The network runs in float64 with η inside σ and ω outside, of the size that the model of the precision gives for the
numbers at hand. Their signs, and the change of the input, follow the gradient of a difference of scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from radius_attack import largest, projected
from torch import Tensor

from lipschitz_rnn.ops.lipschitz.nonlinearities import get_nonlinearity
from lipschitz_rnn.stability import StatedClassifier, certify
from lipschitz_rnn.stability.proof.running import RunningPart
from lipschitz_rnn.stability.proof.stepping import Feed
from lipschitz_rnn.stability.running.bound import head_rounding
from lipschitz_rnn.stability.running.layers import LayerRun


class RoundingAdversary:
    """For one layer in one direction with Euler steps, the last output read by a linear head."""

    def __init__(self, network: StatedClassifier, precision: str, timespans: Tensor | None = None) -> None:
        unit: Any = network.unit
        self.cell = unit.cell()
        half = precision in ("bfloat16", "float16")
        spans = None if timespans is None else (float(timespans[timespans > 0].min()), float(timespans.max()))
        certificate = certify(unit, precision=precision if half else "exact", step_size=spans)
        job = LayerRun(unit, None, precision, "any", None, 0.0, False)
        self.running: RunningPart = job.running(certificate, next(iter(unit.cells)))
        assert certificate.A is not None
        assert certificate.W is not None
        A, W = torch.from_numpy(certificate.A), torch.from_numpy(certificate.W)
        self.A, self.W = certificate.alpha * A, W
        self.U = torch.from_numpy(self.running.U)
        bias = self.running.bias
        self.b = torch.zeros(len(A), dtype=torch.float64) if bias is None else torch.from_numpy(bias)
        self.D = network.head.weight.detach().double()
        self.c = torch.zeros(len(self.D), dtype=torch.float64)
        if network.head.bias is not None:
            self.c = network.head.bias.detach().double()
        relative, lost = head_rounding(self.D.abs().numpy(), self.c.abs().numpy(), precision)
        self.relative, self.lost = torch.from_numpy(relative), torch.from_numpy(lost)
        self.sigma = get_nonlinearity(unit.nonlinearity)
        self.timespans = timespans

    def run(self, x: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        """The last states (B, N) for inputs (T, B, p) and errors (T, B, N) in units of what is allowed."""
        h = x.new_zeros(x.shape[1], len(self.A))
        for t in range(len(x)):
            step = float(self.cell.step_size) if self.timespans is None else self.timespans[t][:, None]
            lengths = np.full((x.shape[1], 1), step) if isinstance(step, float) else step.numpy()
            with torch.no_grad():
                feed: Feed = self.running.feed(x[t].abs().numpy())
                allowed = self.running.step_model.apart(h.abs().numpy(), feed, lengths)
                eta, omega = (torch.from_numpy(np.where(lengths > 0, each, 0.0)) for each in allowed)
            argument = h @ self.W.T + x[t] @ self.U.T + self.b + inside[t] * eta
            h = h + step * (h @ self.A.T + self.sigma.function(argument)) + outside[t] * omega
        return h

    def falls(self, x: Tensor, prediction: Tensor, other: Tensor, radius: Tensor, steps: int = 4) -> tuple[Tensor, ...]:
        """(B,) each: the smallest difference of the two scores that was reached within the radius, head included, and
        the largest part of it that errors took at one and the same input.
        """
        row = self.D[prediction] - self.D[other]
        bias = self.c[prediction] - self.c[other]
        head = self.relative[prediction] + self.relative[other] + self.running.model.returned * row.abs()
        fixed = self.lost[prediction] + self.lost[other]
        shape = (*x.shape[:2], len(self.A))
        change, inside, outside = torch.zeros_like(x), x.new_zeros(shape), x.new_zeros(shape)
        lowest, taken = torch.full_like(radius, torch.inf), torch.zeros_like(radius)
        for step in range(steps + 1):
            leaves = [each.detach().requires_grad_() for each in (change, inside, outside)]
            h = self.run(x + leaves[0], *leaves[1:])
            clean = (self.run(x + change, 0 * inside, 0 * outside).detach() * row).sum(-1) + bias
            fall = (h * row).sum(-1) + bias - (h.abs() * head).sum(-1) - fixed
            lowest = torch.minimum(lowest, fall.detach())
            taken = torch.maximum(taken, clean - fall.detach())
            if step == steps:
                break
            gradients = torch.autograd.grad(fall.sum(), leaves, allow_unused=True)
            down = [torch.zeros_like(v) if g is None else -g for v, g in zip(leaves, gradients, strict=True)]
            inside, outside = down[1].sign(), down[2].sign()
            towards = change + 2.0 / (step + 2.0) * (largest(down[0], radius, "l2") - change)
            change = projected(towards.detach(), radius, "l2")
        return lowest, taken
