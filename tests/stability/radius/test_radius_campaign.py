"""Images against a network trained for a radius: PGD with restarts and DeepFool's steps, inside and outside of it."""

from __future__ import annotations

import os

import pytest
import torch
from radius_attack import worst_excess
from radius_cases import layer, linear_head
from torch import Tensor, nn

from lipschitz_rnn import tasks
from lipschitz_rnn.stability import StatedClassifier, certified_radius
from lipschitz_rnn.training.robust import score_gains

IMAGES = int(os.environ.get("LIPSCHITZ_RNN_ATTACKED", "24"))  # `make test-full`: 10,000
SIZE, AT_ONCE = 28, 250


def images(count: int, generator: torch.Generator, split: str = "test") -> tuple[Tensor, Tensor]:
    """Handwritten digits enlarged to 28 × 28, shifted by up to two pixels, with noise; (T, B, p) by rows in [0, 1]."""
    task = tasks.load("digits")
    drawn = torch.randint(task.size(split), (count,), generator=generator)  # type: ignore[arg-type]
    batch = task.batch(split, drawn)  # type: ignore[arg-type]
    small = batch.inputs.transpose(0, 1).reshape(count, 1, 8, 8)
    large = nn.functional.interpolate(small, size=(24, 24), mode="bilinear").squeeze(1)
    found = torch.zeros(count, SIZE, SIZE)
    for image, place, shift in zip(large, found, torch.randint(5, (count, 2), generator=generator), strict=True):
        down, right = shift.tolist()
        place[down : down + 24, right : right + 24] = image
    found = (found + 0.05 * torch.randn(found.shape, generator=generator)).clamp(0.0, 1.0)
    return found.transpose(0, 1).double(), batch.targets


@pytest.fixture(scope="module")
def trained() -> StatedClassifier:
    generator = torch.Generator().manual_seed(0)
    unit = layer(SIZE, 24, generator, spread=0.0, stability="contracting", step_size=0.3, rate=0.05)
    network = StatedClassifier(unit, linear_head(24, 10, generator, scale=0.1))
    x, targets = images(512, generator, "train")
    parameters = [*unit.parameters(), *network.head.parameters()]
    optimiser = torch.optim.Adam(parameters, 0.02)
    for step in range(48):
        part = slice(128 * (step % 4), 128 * (step % 4) + 128)
        scores = network.head(unit(x[:, part])[0][-1])
        raised = scores + 0.02 * score_gains(unit, network.head, SIZE)[targets[part]]
        loss = nn.functional.cross_entropy(raised, targets[part])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for parameter in parameters:
        parameter.requires_grad_(False)
    return network


@pytest.mark.slow
def test_no_image_is_fooled_within_its_radius_and_some_are_just_outside_of_the_attack(
    trained: StatedClassifier,
) -> None:
    """100 steps, two restarts of each kind, towards the two nearest classes, at the certified radius of every image."""
    generator = torch.Generator().manual_seed(1)
    steps = 100 if IMAGES >= 1000 else 20
    decided = fooled_outside = right = 0
    for first in range(0, IMAGES, AT_ONCE):
        count = min(AT_ONCE, IMAGES - first)
        x, targets = images(count, generator)
        found = certified_radius(trained, x)
        right += int((found.prediction == targets).sum())
        scores = trained.head(trained.unit(x)[0][-1])
        others = scores.scatter(1, found.prediction[:, None], -torch.inf)
        goals = others.topk(2).indices.T
        sure = found.margin > 0
        decided += int(sure.sum())
        inside = worst_excess(trained, x, found.radius, steps=steps, goals=goals, seed=first)
        assert bool((inside[sure] < 0).all()), f"{int((inside[sure] >= 0).sum())} images fooled within their radius"
        outside = worst_excess(trained, x, 4 * found.radius, steps=10, restarts=1, goals=goals, seed=first)
        fooled_outside += int((outside > 0).sum())
    assert right > 0.6 * IMAGES  # a network that knows the digits
    assert decided >= 0.99 * IMAGES
    assert fooled_outside > 0.1 * IMAGES  # so that the attack can succeed at all
