"""Shifts of MNIST's training images: the image is moved, then ordered; only in training, each seed on its own."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks import mnist as mnist_module
from lipschitz_rnn.tasks.base import Task
from lipschitz_rnn.training import Interrupted, Settings, Watcher, fit
from lipschitz_rnn.training.streams import Shard, Stream

NAMES = ("ordered-mnist", "permuted-mnist", "rows-mnist")
MOVES = [(0, 0), (2, -1), (-2, 2), (0, 1), (-1, 0), (1, 1)]  # down and to the right


def load(root: Path, name: str = "ordered-mnist", **options: object) -> Task:
    return tasks.load(name, root, offline=True, **options)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(task: Task, inputs: Tensor) -> Tensor:
    """(B, 28, 28) of (T, B, p), with the permutation undone where there is one."""
    flat = inputs.transpose(0, 1).flatten(1)
    if task.name == "permuted-mnist":
        flat = flat[:, torch.randperm(784, generator=seeded(12008)).argsort()]
    return flat.view(-1, 28, 28)


def moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved pixel by pixel."""
    result = torch.zeros_like(image)
    for row in range(28):
        for column in range(28):
            if 0 <= row + down < 28 and 0 <= column + right < 28:
                result[row + down, column + right] = image[row, column]
    return result


@pytest.mark.parametrize("name", NAMES)
def test_the_image_is_moved_before_it_is_ordered(name: str, mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_module, "_draw_moves", lambda generator, count, shift: torch.tensor(MOVES))
    plain, task = load(mnist, name), load(mnist, name, shift=2)
    indices = torch.tensor([3, 99, 0, 41, 41, 7])
    still = images(plain, plain.batch("train", indices).inputs)
    batch = task.batch("train", indices, seeded(0))
    assert batch.inputs.shape == (task.sequence_length, 6, task.input_size)
    assert batch.inputs.is_contiguous()
    assert torch.equal(batch.targets, plain.batch("train", indices).targets)
    for result, image, (down, right) in zip(images(task, batch.inputs), still, MOVES, strict=True):
        assert torch.equal(result, moved(image, down, right))


def test_moves_cover_every_whole_number_in_the_range() -> None:
    drawn = mnist_module._draw_moves(seeded(0), 5_000, 2)
    counts = torch.bincount((drawn[:, 0] + 2) * 5 + drawn[:, 1] + 2, minlength=25)
    assert len(counts) == 25
    assert counts.min() > 140  # 200 of each are expected, with a standard deviation of 14


@pytest.mark.parametrize("name", NAMES)
def test_only_training_with_a_generator_moves(name: str, mnist: Path) -> None:
    plain, task = load(mnist, name), load(mnist, name, shift=1)
    indices = torch.arange(30).view(2, 15)
    for split in ("validation", "test"):
        assert torch.equal(task.batch(split, indices, seeded(0)).inputs, plain.batch(split, indices).inputs)
    still = plain.batch("train", indices).inputs
    assert torch.equal(task.batch("train", indices).inputs, still)
    assert not torch.equal(task.batch("train", indices, seeded(0)).inputs, still)


@pytest.mark.parametrize("name", NAMES)
def test_no_shift_is_the_task_as_it_was(name: str, mnist: Path) -> None:
    plain, task = load(mnist, name), load(mnist, name, shift=0)
    assert task.describe() == plain.describe()
    assert "shift" not in task.options  # as in the runs that are stored
    assert task._data.keys() == {f"{split}.{kind}" for split in tasks.base.SPLITS for kind in ("pixels", "labels")}
    generator = seeded(0)
    before = generator.get_state()
    indices = torch.arange(20)
    assert torch.equal(task.batch("train", indices, generator).inputs, plain.batch("train", indices).inputs)
    assert torch.equal(generator.get_state(), before)  # nothing is drawn: dropout sees the same numbers
    assert load(mnist, name, shift=3).describe()["options"] == {**plain.options, "shift": 3}


def test_wrong_shifts_are_named(mnist: Path) -> None:
    with pytest.raises(ValueError, match="shift is 28; it must be between 0 and 27"):
        load(mnist, shift=28)
    with pytest.raises(TypeError, match=r"shift is 0\.5"):
        load(mnist, "permuted-mnist", shift=0.5)
    with pytest.raises(TypeError, match=r"shift is True \(bool\)"):
        load(mnist, "rows-mnist", shift=True)
    with pytest.raises(ValueError, match="3 generators for 2 members"):
        load(mnist, shift=1).batch("train", torch.zeros(2, 4, dtype=torch.int64), [seeded(seed) for seed in range(3)])


def stream(task: Task, *seeds: int) -> Stream:
    settings = Settings(task.name, seeds=seeds, batch_size=16, hidden_size=3, dropout=0.5)
    made = Stream(settings, task, torch.device("cpu"), Shard())
    made.begin_epoch()
    return made


def test_a_seed_sees_the_same_images_alone_and_in_company(mnist: Path) -> None:
    task = load(mnist, "permuted-mnist", shift=2)
    alone, together = stream(task, 3), stream(task, 0, 3, 7)
    for step in range(3):
        (one, keep), (all_of_them, keeps) = alone.draw(step), together.draw(step)
        assert torch.equal(one.inputs[0], all_of_them.inputs[1])
        assert torch.equal(one.targets[0], all_of_them.targets[1])
        assert torch.equal(keep[0], keeps[1])  # type: ignore[index]
        assert not torch.equal(all_of_them.inputs[0], all_of_them.inputs[1])


def test_saved_generators_draw_the_same_shifts_again(mnist: Path) -> None:
    task = load(mnist, shift=2)
    first = stream(task, 0, 1)
    first.draw(0)
    saved = first.states()
    second = stream(task, 0, 1)
    second.restore(saved)
    for step in (1, 2):
        assert torch.equal(first.draw(step)[0].inputs, second.draw(step)[0].inputs)


@pytest.mark.gpu
def test_on_a_gpu_images_are_moved_as_here(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    here, there = load(mnist, "permuted-mnist", shift=2), load(mnist, "permuted-mnist", shift=2).to("cuda")
    indices = torch.arange(24).view(2, 12)
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(2)]
    states = [generator.get_state() for generator in generators]
    result = there.batch("train", indices, generators).inputs
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    drawn = iter([mnist_module._draw_moves(generator, 12, 2).cpu() for generator in generators])
    monkeypatch.setattr(mnist_module, "_draw_moves", lambda generator, count, shift: next(drawn))
    expected = here.batch("train", indices, [seeded(0), seeded(1)]).inputs
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-6, atol=0)


class SignalAt(Watcher):
    """Asks the run to stop after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, done: int) -> None:
        if done == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, mnist: Path) -> None:
    settings = Settings("rows-mnist", {"shift": 1}, hidden_size=3, seeds=(0, 1), epochs=2, batch_size=20, device="cpu")
    task = load(mnist, "rows-mnist", shift=1)
    with pytest.raises(Interrupted):
        fit(settings, task, tmp_path / "stopped", watcher=SignalAt(3))
    resumed = fit(settings, task, tmp_path / "stopped", resume=True)
    whole = fit(settings, task, tmp_path / "whole")
    for one, other in zip(resumed.models, whole.models, strict=True):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("stopped", "whole")]
    losses = [[json.loads(line)["loss"] for line in own if '"validation"' in line] for own in lines]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    still = fit(replace(settings, task_options={}), load(mnist, "rows-mnist"))
    assert any(
        not torch.equal(value, still.models[0].state_dict()[name])
        for name, value in whole.models[0].state_dict().items()
    )
