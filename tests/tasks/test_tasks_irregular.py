"""Tasks with irregular times: which pixels are kept, the pendulum against SciPy, and what a network sees of time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks import Task

NAMES = {"irregular-digits": {}, "irregular-pendulum": {"train_size": 40, "eval_size": 20}}


@pytest.fixture(scope="module", params=NAMES)
def task(request: pytest.FixtureRequest) -> Task:
    return tasks.load(request.param, **NAMES[request.param])


def spans_of(task: Task, split: Any, indices: Tensor) -> Tensor:
    spans = task.batch(split, indices).timespans
    assert spans is not None
    return spans


def test_a_sample_is_the_same_in_any_batch_and_for_any_member(task: Task) -> None:
    whole = task.batch("test", torch.arange(8))
    several = task.batch("test", torch.tensor([[1, 5], [7, 0]]))
    for part, of_all in zip(several.tensors, whole.tensors, strict=True):
        axis = 1 if of_all.dim() > 1 and part.dim() > 2 and of_all.shape[0] == task.sequence_length else 0
        assert torch.equal(part[1], of_all.index_select(axis, torch.tensor([7, 0])))
    assert not torch.equal(spans_of(task, "test", torch.arange(8)), spans_of(task, "validation", torch.arange(8)))


def test_times_as_steps_as_an_input_or_ignored(task: Task) -> None:
    batches = {}
    for times in ("step", "input", "ignored"):
        options = {**NAMES[task.name], "times": times}
        other = tasks.load(task.name, **options)
        batches[times] = other.batch("train", torch.arange(6))
        shapes = tasks.check(task.name, **options)
        assert other.timed is shapes.timed is (times == "step")
        assert other.input_size == shapes.input_size == batches[times].inputs.shape[-1]
        assert other.options["times"] == times
        assert ("timed" in other.describe()) is (times == "step")
    assert torch.equal(batches["input"].inputs[..., 1], batches["step"].timespans)
    for times in ("input", "ignored"):
        assert batches[times].timespans is None
        assert torch.equal(batches[times].inputs[..., :1], batches["step"].inputs)
    with pytest.raises(ValueError, match="times is 'steps'"):
        tasks.load(task.name, times="steps")


def test_the_gaps_say_where_the_pixels_of_a_digit_are() -> None:
    task, digits = tasks.load("irregular-digits", kept=20), tasks.load("digits")
    indices = torch.arange(50, 80)
    batch, whole = task.batch("train", indices), digits.batch("train", indices)
    assert torch.equal(batch.targets, whole.targets)
    assert batch.timespans is not None
    assert batch.inputs.shape == (20, 30, 1)
    places = (8 * batch.timespans.cumsum(0)).round().long() - 1
    assert (places.diff(dim=0) > 0).all()
    assert (places >= 0).all()
    assert (places < 64).all()
    assert torch.equal(batch.inputs[..., 0], whole.inputs[..., 0].gather(0, places))
    kept = torch.bincount(places.flatten(), minlength=64)
    assert (kept > 0).all()  # any pixel may be kept


def test_pixels_are_drawn_anew_in_training_only_and_by_each_members_generator() -> None:
    task, indices = tasks.load("irregular-digits"), torch.arange(12)

    def draw(split: Any, *seeds: int) -> Tensor:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        spans = task.batch(split, indices.expand(len(seeds), 12), generators).timespans
        assert spans is not None
        return spans

    both = draw("train", 1, 2)
    assert torch.equal(both[1], draw("train", 2)[0])
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both[0], spans_of(task, "train", indices))
    assert torch.equal(draw("test", 1)[0], spans_of(task, "test", indices))
    other = tasks.load("irregular-digits", seed=1)
    assert not torch.equal(spans_of(other, "test", indices), spans_of(task, "test", indices))


def test_the_pendulum_is_that_of_another_integrator() -> None:
    """The damping and the start are unknown to the network; the test finds them from the first angles' equation."""
    task = tasks.load("irregular-pendulum", train_size=6, eval_size=4)
    from lipschitz_rnn.tasks.counting import sample_keys, uniform

    drawn = uniform(sample_keys(torch.arange(6), 0, "train"), 6).double().numpy()
    batch = task.batch("train", torch.arange(6))
    assert batch.timespans is not None
    assert batch.lengths is not None
    for b in range(6):
        frequency, damping = 2.0 ** float(batch.targets[b, 0]), 0.3 * drawn[b, 1]
        start = (0.5 + drawn[b, 2]) * (-1.0 if drawn[b, 3] < 0.5 else 1.0)
        length = int(batch.lengths[b])
        times = np.cumsum(batch.timespans[:length, b].double().numpy())
        right = solve_ivp(
            lambda _, y, w=frequency, c=damping: [y[1], -(w**2) * math.sin(y[0]) - c * y[1]],
            (0.0, times[-1]),
            [start, 0.0],
            t_eval=times,
            rtol=1e-9,
            atol=1e-10,
        )
        np.testing.assert_allclose(batch.inputs[:length, b, 0].numpy(), right.y[0], atol=2e-5)
        assert (batch.inputs[length:, b] == 0).all()
        assert (batch.timespans[length:, b] == 0).all()


def test_what_the_page_says_of_the_pendulums() -> None:
    batch = (task := tasks.load("irregular-pendulum", eval_size=10)).batch("train", torch.arange(2_000))
    assert batch.timespans is not None
    assert batch.lengths is not None
    assert (int(batch.lengths.min()), int(batch.lengths.max())) == (20, 40)
    valid = torch.arange(40)[:, None] < batch.lengths
    means = batch.timespans.sum(0) / valid.sum(0)
    assert float(batch.targets.square().mean()) == pytest.approx(1 / 3, abs=0.02)
    assert float(batch.timespans.max()) < 1.6
    # The mean of an exponential distribution cut at four means is 1 − 4/(e⁴ − 1) = 0.925 of what it was.
    assert float(means.min()) > 0.03
    assert float((means / 0.925).log().mean()) == pytest.approx(math.log(0.2), abs=0.05)
    assert abs(float(torch.corrcoef(torch.stack((means, batch.targets[:, 0])))[0, 1])) < 0.05
    assert task.size("test") == 10
