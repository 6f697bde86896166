"""Attacks on certified radii: they know the module and its gradients, and nothing of how a radius was proved."""

from __future__ import annotations

import torch
from torch import Tensor

from lipschitz_rnn.stability import StatedClassifier


def scores_of(
    network: StatedClassifier, x: Tensor, lengths: Tensor | None = None, timespans: Tensor | None = None
) -> Tensor:
    """(B, q) by the modules themselves, in their own dtype; x is (T, B, p)."""
    options = {} if timespans is None else {"timespans": timespans}
    if network.unit_takes_lengths and lengths is not None:
        options["lengths"] = lengths
    output, last = network.unit(x, **options)
    if network.readout == "state":
        directions = network.unit.num_directions
        return network.head(torch.cat(list(last[-directions:]), -1))
    T, B = output.shape[:2]
    ends = torch.full((B,), T) if lengths is None else lengths
    if network.readout == "last":
        return network.head(output[ends - 1, torch.arange(B)])
    valid = (torch.arange(T)[:, None] < ends).to(output)
    return network.head((output * valid[..., None]).sum(0) / ends[:, None])


def largest(gradient: Tensor, radius: Tensor, norm: str) -> Tensor:
    """The change of size ``radius`` (B,) along which a linear function with this gradient (T, B, p) grows most."""
    if norm == "linf":
        return gradient.sign() * radius[:, None]
    axes = (-1,) if norm == "step" else (0, -1)
    gradient = gradient / gradient.abs().amax(axes, keepdim=True).clamp(min=1e-300)  # so that no square underflows
    size = gradient.square().sum(axes, keepdim=True).sqrt()
    return gradient / size.clamp(min=0.5) * radius[:, None]


def size_of(change: Tensor, norm: str) -> Tensor:
    """(B,), in the norm of the whole change."""
    if norm == "linf":
        return change.abs().amax((0, -1))
    return change.norm(dim=-1).amax(0) if norm == "step" else change.norm(dim=(0, -1))


def projected(change: Tensor, radius: Tensor, norm: str) -> Tensor:
    reach = radius[:, None]
    if norm == "linf":
        return torch.minimum(torch.maximum(change, -reach), reach)
    axes = (-1,) if norm == "step" else (0, -1)
    size = change.square().sum(axes, keepdim=True).sqrt()
    return change * (reach / size.clamp(min=1e-300)).clamp(max=1.0)


def worst_excess(
    network: StatedClassifier,
    x: Tensor,
    radius: Tensor,
    norm: str = "l2",
    lengths: Tensor | None = None,
    timespans: Tensor | None = None,
    *,
    steps: int = 30,
    restarts: int = 2,
    seed: int = 0,
    goals: Tensor | None = None,
) -> Tensor:
    """(B,): the largest score of another class minus that of the predicted one, over all changes tried.

    Half of the runs are projected gradient descent with falling steps, half move towards the best point of the
    linearized problem, as DeepFool does. Every other class is a goal of every restart, unless ``goals`` (n, B) names
    some; whatever class wins in the end counts. Changes are float64, and the changed inputs have the dtype of x; those
    that rounding takes out of the radius do not count.
    """
    T, B = x.shape[:2]
    with torch.no_grad():
        clean = scores_of(network, x, lengths, timespans)
    classes = clean.shape[1]
    first = clean.argmax(1)
    if goals is None:
        goals = torch.stack([(first + shift) % classes for shift in range(1, classes)])  # (q − 1, B)
    runs = 2 * restarts * len(goals)
    goal = goals.repeat(2 * restarts, 1).flatten()  # (runs · B,)
    many, reach = x.double().repeat(1, runs, 1), radius.repeat(runs).double()
    ends = None if lengths is None else lengths.repeat(runs)
    spans = None if timespans is None else timespans.repeat(1, runs)
    predicted = first.repeat(runs)
    free = torch.ones(T, runs * B, 1, dtype=torch.float64)
    if ends is not None:
        free = (torch.arange(T)[:, None] < ends).double()[..., None]
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(many.shape, generator=generator, dtype=torch.float64) * free
    start = projected(1e3 * start * reach[:, None], reach, norm)
    start[:, : 2 * B * len(goals)] = 0.0  # the first restart of both kinds begins at the sample
    change, follows = start, (torch.arange(runs * B) // (B * len(goals))) % 2 == 0
    best = torch.full((B,), -torch.inf, dtype=torch.float64)
    for step in range(steps + 1):
        change = change.detach().requires_grad_()
        moved = (many + change).to(x.dtype)
        seen = scores_of(network, moved, ends, spans)
        own = seen.gather(1, predicted[:, None]).squeeze(1)
        others = seen.scatter(1, predicted[:, None], -torch.inf).max(1).values
        inside = size_of(moved.detach().double() - many, norm) <= reach * (1 + 1e-9)
        excess = (others - own).detach().double().masked_fill(~inside, -torch.inf)
        best = torch.maximum(best, excess.view(runs, B).max(0).values)
        if step == steps:
            break
        aim = seen.gather(1, goal[:, None]).squeeze(1) - own
        (gradient,) = torch.autograd.grad(aim.sum(), change)
        corner = largest(gradient * free, reach, norm)
        with torch.no_grad():
            towards = change + 2.0 / (step + 2.0) * (corner - change)
            downhill = projected(change + (1.0 - step / steps) * 0.5 * corner, reach, norm)
            change = torch.where(follows[:, None], towards, downhill) * free
    return best
