"""Generated tasks: right by their definitions, the same for the same index, different otherwise."""

import math

import pytest
import torch

from lipschitz_rnn import tasks

NAMES = ("adding", "copying", "pendulum")


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_depends_on_seed_split_and_index_alone(name: str) -> None:
    task = tasks.load(name)
    whole = task.batch("train", torch.arange(50))
    part = task.batch("train", torch.tensor([[7, 3], [49, 7]]))
    assert part.inputs.shape == (2, task.sequence_length, 2, task.input_size)
    assert torch.equal(part.inputs[0], whole.inputs[:, [7, 3]])
    assert torch.equal(part.inputs[1], whole.inputs[:, [49, 7]])
    assert torch.equal(tasks.load(name, seed=0).batch("train", torch.arange(50)).inputs, whole.inputs)
    for other in (task.batch("test", torch.arange(50)), tasks.load(name, seed=1).batch("train", torch.arange(50))):
        assert not torch.equal(other.inputs, whole.inputs)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_lengths_and_wrong_options(name: str) -> None:
    task = tasks.load(name, train_size=17, eval_size=5)
    assert [task.size(split) for split in ("train", "validation", "test")] == [17, 5, 5]
    assert task.describe()["options"]["train_size"] == 17
    with pytest.raises(ValueError, match="train_size is 0"):
        tasks.load(name, train_size=0)
    with pytest.raises(TypeError, match="seed is True"):
        tasks.load(name, seed=True)


@pytest.mark.parametrize("length", [2, 7, 200])
def test_adding(length: int) -> None:
    task = tasks.load("adding", length=length)
    batch = task.batch("train", torch.arange(500))
    numbers, markers = batch.inputs.unbind(-1)
    assert (markers[: length // 2].sum(0) == 1).all()
    assert (markers[length // 2 :].sum(0) == 1).all()
    torch.testing.assert_close((numbers * markers).sum(0, keepdim=True).T, batch.targets)
    assert markers.sum(1).gt(0).sum() > 0.95 * length  # the marks reach all over the sequence
    always_one = torch.ones_like(batch.targets)
    total, weight = task.measure(always_one, batch)
    assert total / weight == pytest.approx(1 / 6, abs=0.03)


def test_copying() -> None:
    task = tasks.load("copying", delay=30)
    batch = task.batch("train", torch.arange(400))
    assert batch.inputs.shape == (50, 400, 10)
    tokens = batch.inputs.argmax(-1)
    assert torch.equal(batch.inputs.sum(-1), torch.ones(50, 400))
    assert torch.equal(tokens[:10], batch.targets[-10:])
    assert (batch.targets[:-10] == 8).all()
    assert (tokens[39] == 9).all()
    assert (tokens[10:39] == 8).all()
    assert (tokens[40:] == 8).all()
    assert tokens[:10].unique().tolist() == list(range(8))
    blanks = torch.zeros(50, 400, 9)
    blanks[..., 8] = 10.0
    assert task.measure(blanks, batch)[0] == 0  # recalling nothing scores nothing, although 4 of 5 steps are right
    perfect = 20.0 * torch.nn.functional.one_hot(batch.targets, 9).float()
    total, weight = task.measure(perfect, batch)
    assert total == weight == 4_000
    assert task.loss(perfect, batch) < 1e-6


def test_pendulum_keeps_its_energy_and_damping_takes_it() -> None:
    task = tasks.load("pendulum", length=200)
    batch = task.batch("train", torch.arange(100))
    assert batch.inputs.shape == batch.targets.shape == (200, 100, 2)
    assert torch.equal(batch.inputs[1:], batch.targets[:-1])

    def energy(state: torch.Tensor) -> torch.Tensor:
        return state[..., 1].double() ** 2 / 2 - state[..., 0].double().cos()

    drift = energy(batch.targets) - energy(batch.inputs[0])
    assert drift.abs().max() < 1e-6  # what float32 storage leaves
    damped = tasks.load("pendulum", length=200, damping=0.3).batch("train", torch.arange(100)).targets
    assert (energy(damped[-1]) < energy(damped[0])).all()


def test_a_small_swing_has_the_period_of_the_linear_pendulum() -> None:
    task = tasks.load("pendulum", length=200, step=math.tau / 100)
    states = task.batch("train", torch.arange(1_000)).inputs
    small = states[0].norm(dim=-1).argmin()
    start, after_a_period = states[0, small], states[100, small]
    assert start.norm() < 0.1
    torch.testing.assert_close(after_a_period, start, rtol=0, atol=2e-3)
    with pytest.raises(ValueError, match="step is 0; it must be a finite number > 0"):
        tasks.load("pendulum", step=0)
