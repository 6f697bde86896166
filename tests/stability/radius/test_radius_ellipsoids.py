"""The ellipsoids around what remainders add to a state: nothing lies outside, and every term is needed."""

import pytest
import torch
from radius_cases import Case, layer, linear_head
from test_radius_constants import proved_of

from lipschitz_rnn.stability import StatedClassifier
from lipschitz_rnn.stability.radius.ellipsoid import Ellipsoids, ellipsoids
from lipschitz_rnn.stability.radius.trajectory import Stepper


def simulated(seed: int, likely: float) -> tuple[Ellipsoids, torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Ellipsoids for remainders of size ``likely``, and W q for others at the corners of their boxes: (T, B, N)."""
    generator = torch.Generator().manual_seed(seed)
    unit = layer(1, 4, generator, stability="contracting", step_size=0.3)
    x = torch.randn(12, 200, 1, generator=generator, dtype=torch.float64)
    proved, timeline = proved_of(Case(StatedClassifier(unit, linear_head(4, 2, generator)), x, None, None, {}))
    stepper = Stepper(proved.layers[0][0], x.device)
    T, B, N = 12, 200, 4
    slope = torch.rand(T, B, N, generator=generator, dtype=torch.float64)
    step = timeline.steps(proved.layers[0][0].part).lengths[..., None].clone()
    step[5] = 0.0
    sizes = torch.rand(T, 1, N, generator=generator, dtype=torch.float64)
    around = ellipsoids(stepper, step, slope, lambda t, reach: likely * sizes[t].expand(B, N))
    q = torch.zeros(B, N, dtype=torch.float64)
    fed, boxes = [], []
    for t in range(T):
        fed.append(q @ stepper.W.T)
        box = sizes[t] * torch.rand(B, 1, generator=generator, dtype=torch.float64).sqrt()
        R = box * torch.randn(B, N, generator=generator, dtype=torch.float64).sign()
        q = q + step[t] * (q @ stepper.A.T + slope[t] * (q @ stepper.W.T)) + step[t] * R
        boxes.append(box.expand(B, N))
    return around, torch.stack(fed), boxes, step


@pytest.mark.parametrize("likely", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_remainders_leave_the_ellipsoids(seed: int, likely: float) -> None:
    around, fed, boxes, step = simulated(seed, likely)
    squared = torch.zeros(1, fed.shape[1], dtype=torch.float64)
    closest = torch.zeros(())
    for t, box in enumerate(boxes):
        bound = around.bound(t, squared)[0]
        assert bool((fed[t].abs() <= bound).all())
        closest = torch.maximum(closest, (fed[t].abs() / bound.clamp(min=1e-300)).max())
        squared = around.grown(t, squared, box[None], (step[t] > 0).squeeze(-1))
    assert float(closest) > 0.2  # not far outside either


def test_the_newest_remainder_is_needed() -> None:
    around, fed, boxes, step = simulated(0, 1.0)
    squared = torch.zeros(1, fed.shape[1], dtype=torch.float64)
    left = False
    for t, box in enumerate(boxes):
        left |= bool((fed[t].abs() > around.bound(t, squared)[0]).any())
        squared = around.grown(t, squared, box[None] if t == 0 else 0 * box[None], (step[t] > 0).squeeze(-1))
    assert left
