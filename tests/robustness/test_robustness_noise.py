"""Noise: exact shares, exact zero, the same draws for all, and curves over a task."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.robustness import draw_samples, noise_curve, salt_and_pepper, valid_range, white_noise
from lipschitz_rnn.robustness.plots import draw_noise
from lipschitz_rnn.tasks import Task
from lipschitz_rnn.tasks.cifar import OrderedCifar10
from lipschitz_rnn.training import SequenceModel, evaluate


@pytest.fixture(scope="module")
def digits() -> Task:
    return lr.tasks.load("digits")


@pytest.fixture(scope="module")
def model(digits: Task) -> nn.Module:
    """A network that is right more often than chance after a few steps on a part of the training data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unit = lr.units.build("lipschitz", 1, 16, beta=0.65, step_size=0.1)
        built = SequenceModel(unit, nn.Linear(16, 10), "last")
    batch = draw_samples(digits, "train", 200)
    optimiser = torch.optim.Adam(built.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        digits.loss(built(batch.inputs)[0], batch).backward()
        optimiser.step()
    return built.eval()


@pytest.mark.parametrize("amount", [0.0, 0.05, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("batch_first", [False, True])
def test_salt_and_pepper_replaces_the_stated_share(
    amount: float, batch_first: bool, generator: torch.Generator
) -> None:
    inputs = 0.2 + 0.6 * torch.rand(25, 8, 4, generator=generator)
    noisy = salt_and_pepper(inputs, amount, generator, batch_first=batch_first)
    assert noisy.shape == inputs.shape
    samples = 0 if batch_first else 1
    count = inputs.numel() // inputs.shape[samples]
    others = tuple(axis for axis in range(3) if axis != samples)
    changed = (noisy != inputs).sum(others)
    assert (changed == round(amount * count)).all()
    assert ((noisy == 0.0).sum(others) == round(amount * count) // 2).all()
    assert ((noisy == 1.0).sum(others) == round(amount * count) - round(amount * count) // 2).all()
    if 0.0 < amount < 1.0:
        assert len({tuple(row.tolist()) for row in (noisy != inputs).movedim(samples, 0).flatten(1)}) > 1


def test_salt_and_pepper_in_the_range_of_each_channel(generator: torch.Generator) -> None:
    low, high = torch.tensor([-2.0, 0.0, 5.0]), torch.tensor([-1.0, 9.0, 6.0])
    noisy = salt_and_pepper(torch.full((10, 4, 3), 0.1), 1.0, generator, bounds=(low, high))
    assert ((noisy == low) | (noisy == high)).all()
    rows = low + torch.arange(10.0)[:, None]  # limits that differ from step to step
    noisy = salt_and_pepper(torch.full((10, 4, 3), 0.1), 1.0, generator, bounds=(rows, rows + 1.0))
    assert ((noisy == rows[:, None]) | (noisy == rows[:, None] + 1.0)).all()


def test_white_noise_has_the_stated_size(generator: torch.Generator) -> None:
    inputs = torch.full((100, 50, 4), 100.0)
    noise = white_noise(inputs, 0.1, generator, bounds=(0.0, 255.0)) - inputs
    assert noise.std().item() == pytest.approx(25.5, rel=0.02)
    assert abs(noise.mean().item()) < 4.0 * 25.5 / 20000**0.5
    clipped = white_noise(inputs, 1.0, generator, bounds=(0.0, 255.0), clip=True)
    assert (clipped.min(), clipped.max()) == (0.0, 255.0)
    rows = torch.arange(1.0, 101.0)[:, None].expand(100, 4)
    wider = white_noise(inputs, 1.0, generator, bounds=(torch.zeros(100, 4), rows)) - inputs
    assert (wider.std((1, 2)) / rows[:, 0]).mean().item() == pytest.approx(1.0, rel=0.05)


def test_amount_zero_changes_nothing(generator: torch.Generator) -> None:
    inputs = torch.rand(10, 3, 2, generator=generator)
    for noisy in (white_noise(inputs, 0.0, generator), salt_and_pepper(inputs, 0.0, generator)):
        assert torch.equal(noisy, inputs)
        assert noisy.data_ptr() != inputs.data_ptr()


@pytest.mark.parametrize("kind", ["white", "salt-and-pepper"])
def test_a_curve_starts_at_the_clean_accuracy_and_falls(model: nn.Module, digits: Task, kind: str) -> None:
    curve = noise_curve(model, digits, (0.0, 0.05, 1.0), range(2), kind=kind, batch_size=150)
    clean = evaluate(model, digits, "test")
    assert clean > 0.3
    assert curve.accuracy[0] == pytest.approx((clean, clean), abs=1.01 / 360)  # in other batches: one at the border
    assert curve.mean[0] > curve.mean[1] > curve.mean[2]
    assert curve.accuracy[1][0] != curve.accuracy[1][1]
    assert curve.spread[0] == 0.0 < curve.spread[1]
    again = noise_curve(model, digits, (0.05,), (1,), kind=kind, batch_size=150)
    assert again.accuracy == ((curve.accuracy[1][1],),)
    assert curve.to_dict()["samples"] == 360


def test_curves_are_drawn_together(model: nn.Module, digits: Task) -> None:
    curves = [noise_curve(model, digits, (0.0, 0.1), range(1), kind=kind, samples=40) for kind in ("white", "white")]
    pepper = noise_curve(model, digits, (0.0, 0.1), range(1), kind="salt-and-pepper", samples=40)
    figure = draw_noise({"a": [*curves, pepper], "b": [pepper]})
    assert [len(axis.lines) for axis in figure.axes] == [1, 2]
    other = noise_curve(model, digits, (0.2,), range(1), samples=40)
    with pytest.raises(ValueError, match="different amounts"):
        draw_noise({"a": [curves[0], other]})
    with pytest.raises(ValueError, match="empty"):
        draw_noise({})


def test_samples_are_drawn_once_each_in_their_order(digits: Task) -> None:
    whole, some = draw_samples(digits), draw_samples(digits, samples=50, seed=3)
    assert whole.inputs.shape == (64, 360, 1)
    assert torch.equal(some.inputs, draw_samples(digits, samples=50, seed=3).inputs)
    assert not torch.equal(some.inputs, draw_samples(digits, samples=50, seed=4).inputs)
    places = [(whole.inputs == sample[:, None]).all((0, 2)).nonzero()[0].item() for sample in some.inputs.unbind(1)]
    assert places == sorted(set(places))
    with pytest.raises(ValueError, match="360"):
        draw_samples(digits, samples=361)


def test_the_range_of_a_task(digits: Task) -> None:
    assert valid_range(digits) == (0.0, 1.0)
    batch = draw_samples(digits)
    assert (batch.inputs.min(), batch.inputs.max()) == (0.0, 1.0)
    adding = lr.tasks.load("adding")
    assert valid_range(adding) is None


@pytest.mark.parametrize("layout", ["rgb", "planes"])
def test_the_range_of_colour_images(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Black and white images of the task itself lie on the limits, in either layout."""
    black_and_white = bytes(1 + 3072) + b"\x01" + b"\xff" * 3072
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    content = dict.fromkeys(names, black_and_white * 401)
    monkeypatch.setattr("lipschitz_rnn.tasks.cifar.read_dataset", lambda *arguments: content)
    task = OrderedCifar10(layout=layout)  # type: ignore[arg-type]
    limits = valid_range(task)
    assert limits is not None
    images = task.batch("test", torch.tensor([0, 1])).inputs
    for end, limit in zip(images.unbind(1), limits, strict=True):
        assert isinstance(limit, Tensor)
        torch.testing.assert_close(end, limit.expand_as(end), rtol=0.0, atol=1e-5)


def test_wrong_arguments(model: nn.Module, digits: Task, generator: torch.Generator) -> None:
    inputs = torch.rand(4, 2, 1, generator=generator)
    with pytest.raises(ValueError, match="amount is"):
        white_noise(inputs, -0.1, generator)
    with pytest.raises(ValueError, match="between 0 and 1"):
        salt_and_pepper(inputs, 1.5, generator)
    with pytest.raises(ValueError, match="bounds"):
        white_noise(inputs, 0.1, generator, clip=True)
    with pytest.raises(ValueError, match=r"\(T, B, p\)"):
        salt_and_pepper(inputs[0], 0.5, generator)
    with pytest.raises(ValueError, match="pink"):
        noise_curve(model, digits, kind="pink")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        noise_curve(model, digits, [])
    with pytest.raises(ValueError, match="no range"):
        noise_curve(model, lr.tasks.load("adding"), kind="salt-and-pepper")
    with pytest.raises(ValueError, match="classes"):
        noise_curve(model, lr.tasks.load("adding"), samples=5)
    stateful = type("Stateful", (), {"stateful": True, "name": "words"})
    with pytest.raises(ValueError, match="independent samples"):
        draw_samples(stateful)  # type: ignore[arg-type]
