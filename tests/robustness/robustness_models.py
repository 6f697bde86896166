"""Small classifiers of sequences in [0, 1], and attacks written a second time, straight from their papers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.training import SequenceModel

STEPS, FEATURES, CLASSES = 6, 4, 3


def build(unit: str = "lipschitz", hidden: int = 8, seed: int = 0, **options: object) -> SequenceModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if unit == "lipschitz":
            options = {"step_size": 0.5, **options}
        layer = lr.units.build(unit, FEATURES, hidden, **options)
        return SequenceModel(layer, nn.Linear(layer.output_size, CLASSES), "last")


def problem(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Sequences (T, B, p) and their classes under a fixed linear rule, which a small network learns in a second."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(STEPS, count, FEATURES, generator=generator)
    rule = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7))
    return inputs, torch.einsum("tbp,cp->bc", inputs - 0.5, rule).argmax(1)


def trained(unit: str = "lipschitz", **options: object) -> SequenceModel:
    model = build(unit, **options)
    inputs, targets = problem(400)
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs)[0], targets).backward()
        optimiser.step()
    optimiser.zero_grad()
    return model.eval()


class LinearClassifier(nn.Module):
    """Scores w · x + b of whole sequences: the distance to every boundary is known."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.transpose(0, 1).flatten(1) @ self.weight.T + self.bias


def scores(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out[0] if isinstance(out, tuple) else out


def plain_pgd(model: nn.Module, x0: Tensor, classes: Tensor, steps: int, step: float, radius: float) -> Tensor:
    x = x0.clone()
    for _ in range(steps):
        x.requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(scores(model, x), classes), x)
        with torch.no_grad():
            x = torch.max(torch.min(x + step * slope.sign(), x0 + radius), x0 - radius).clamp(0.0, 1.0)
    return x.detach()


def plain_deepfool(model: nn.Module, x0: Tensor, norm: str, steps: int, overshoot: float) -> Tensor:
    """One sample after another, as in the pseudocode of the paper, with pixels kept in their range.

    Steps are 10⁻⁴ longer than needed, as in all public implementations; the overshoot comes last.
    """
    found = []
    for sample in x0.unbind(1):
        start, walked = sample[:, None], torch.zeros_like(sample[:, None])
        x, first = start, int(scores(model, start).argmax())
        for _ in range(steps):
            x = x.detach().requires_grad_(True)
            out = scores(model, x)[0]
            if int(out.argmax()) != first:
                break
            slopes = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in out]
            best, move = torch.inf, torch.zeros_like(start)
            for k in range(len(out)):
                w, f = slopes[k] - slopes[first], (out[k] - out[first]).abs().item()
                size = w.norm().item() if norm == "l2" else w.abs().sum().item()
                if k != first and f / size < best:
                    best = f / size
                    move = w / size if norm == "l2" else w.sign()
            walked = walked + (best + 1e-4) * move
            x = (start + walked).clamp(0.0, 1.0)
        if int(scores(model, x).argmax()) == first:
            x = (start + (1.0 + overshoot) * (x - start)).clamp(0.0, 1.0)
        found.append(x.detach())
    return torch.cat(found, 1)
