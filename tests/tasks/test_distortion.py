"""Distortions of MNIST's training images: known maps, what is drawn, and only in training, each seed on its own."""

import math
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lipschitz_rnn import tasks
from lipschitz_rnn.commands.parsing import parse_options
from lipschitz_rnn.tasks import mnist as mnist_module
from lipschitz_rnn.tasks.base import Task
from lipschitz_rnn.tasks.distortion import distorted, draw_maps, farthest
from lipschitz_rnn.training import Settings
from lipschitz_rnn.training.streams import Shard, Stream

NAMES = ("ordered-mnist", "permuted-mnist", "rows-mnist")
QUARTER = math.pi / 2


def load(root: Path, name: str = "ordered-mnist", **options: object) -> Task:
    return tasks.load(name, root, offline=True, **options)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=seeded(0))


def exact(values: list[float] | list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def same_maps(count: int, *, angle: float = 0.0, wider: float = 0.0, taller: float = 0.0, shear: float = 0.0) -> Tensor:
    return exact([[angle, wider, taller, shear]]).repeat(count, 1)


def test_no_map_is_the_identity_to_the_last_bit() -> None:
    images = noise(20)
    assert torch.equal(distorted(images, torch.zeros(20, 4)), images.float())
    assert torch.equal(distorted(images, torch.zeros(20, 4), torch.zeros(20, 2, dtype=torch.int64)), images.float())


@pytest.mark.parametrize("quarters", [-1, 1, 2, 3])
def test_quarter_turns_are_those_of_rot90(quarters: int) -> None:
    images = noise(5)
    turned = distorted(images, same_maps(5, angle=quarters * QUARTER))
    expected = torch.rot90(images, -quarters, (1, 2)).double()  # clockwise; rot90 goes the other way
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-9)
    single = distorted(images, same_maps(5, angle=quarters * QUARTER).float())
    torch.testing.assert_close(single / 255, expected.float() / 255, rtol=0, atol=1e-5)


def test_whole_moves_are_those_of_shift(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = torch.randint(-3, 4, (40, 2), generator=seeded(1))
    monkeypatch.setattr(mnist_module, "_draw_moves", lambda generator, count, shift: moves)
    indices = torch.arange(40)
    plain, shifted = load(mnist), load(mnist, shift=3)
    images = (plain.batch("train", indices).inputs[..., 0].T * 255).round().to(torch.uint8).view(-1, 28, 28)
    expected = shifted.batch("train", indices, seeded(0)).inputs[..., 0].T.reshape(-1, 28, 28)
    assert torch.equal(distorted(images, torch.zeros(40, 4), moves) * (1 / 255), expected)


def test_stretch_and_shear_go_where_the_formula_says() -> None:
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, 4:24, 6:22] = 200  # rows 10 to either side of the centre, columns 8
    wide = distorted(image, same_maps(1, wider=0.25))[0]
    assert (wide > 100).any(0).nonzero().flatten().tolist() == list(range(4, 24))  # 8 · 1.25 = 10
    assert (wide > 100).any(1).nonzero().flatten().tolist() == list(range(4, 24))
    tall = distorted(image, same_maps(1, taller=0.2))[0]
    assert (tall > 100).any(1).nonzero().flatten().tolist() == list(range(2, 26))  # 10 · 1.2 = 12
    assert (tall > 100).any(0).nonzero().flatten().tolist() == list(range(6, 22))
    bar = torch.zeros(1, 28, 28, dtype=torch.uint8)
    bar[0, :, 13:15] = 200
    sheared = distorted(bar, same_maps(1, shear=0.5))[0]
    middles = (sheared * torch.arange(28)).sum(1) / sheared.sum(1) - 13.5
    torch.testing.assert_close(middles, 0.5 * (torch.arange(28).double() - 13.5), rtol=0, atol=1e-9)


def test_the_order_is_stretch_shear_turn_move() -> None:
    """Against affine_grid with the inverse of the product of matrices, in coordinates where 14 pixels are 1."""
    images = noise(50)
    maps = (draw_maps(seeded(2), 50) * farthest(2.0)).double()
    moves = torch.randint(-4, 5, (50, 2), generator=seeded(3))
    whole = torch.eye(3, dtype=torch.float64).repeat(50, 1, 1)
    for matrix, (angle, wider, taller, shear), (down, right) in zip(whole, maps.tolist(), moves.tolist(), strict=True):
        turn = exact([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        matrix[:2, :2] = turn @ exact([[1, shear], [0, 1]]) @ exact([[1 + wider, 0], [0, 1 + taller]])
        matrix[:2, 2] = exact([right, down]) / 14
    grid = F.affine_grid(whole.inverse()[:, :2], [50, 1, 28, 28], align_corners=False)
    expected = F.grid_sample(images[:, None].double(), grid, align_corners=False)[:, 0]
    torch.testing.assert_close(distorted(images, maps, moves), expected, rtol=0, atol=1e-9)
    single = distorted(images, maps.float(), moves)
    torch.testing.assert_close(single / 255, expected.float() / 255, rtol=0, atol=1e-5)


def test_what_is_moved_back_is_not_lost() -> None:
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, 12:16, 26:] = 250  # its stretched right edge lies beyond column 28
    away = distorted(image, same_maps(1, wider=0.3))
    back = distorted(image, same_maps(1, wider=0.3), torch.tensor([[0, -4]]))
    assert back.sum() > 1.5 * away.sum()


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_maps_are_drawn_evenly_within_their_ranges(strength: float) -> None:
    maps = draw_maps(seeded(0), 20_000) * farthest(strength)
    limits = strength * torch.tensor([math.radians(15), 0.15, 0.15, 0.15])
    assert (maps.abs() <= limits).all()
    for column in (maps / limits).T:
        quarters = torch.histc(column, 4, -1, 1)
        assert quarters.sum() == 20_000
        assert (quarters - 5_000).abs().max() < 250  # the standard deviation is 61
    assert (torch.corrcoef(maps.T) - torch.eye(4)).abs().max() < 0.03  # four numbers of their own


def test_values_stay_bytes() -> None:
    maps = draw_maps(seeded(0), 300) * farthest(2.0)
    white = distorted(torch.full((300, 28, 28), 255, dtype=torch.uint8), maps)
    assert white.min() >= 0
    assert white.max() == 255.0  # not 255.00002
    assert (white == 0).any()  # black outside


@pytest.mark.parametrize("name", NAMES)
def test_the_image_is_distorted_before_it_is_ordered(name: str, mnist: Path) -> None:
    plain, task = load(mnist), load(mnist, name, distort=1.5, shift=2)
    indices = torch.tensor([3, 99, 0, 41, 41, 7])
    images = (plain.batch("train", indices).inputs[..., 0].T * 255).round().to(torch.uint8).view(-1, 28, 28)
    generator = seeded(5)
    moves = mnist_module._draw_moves(generator, 6, 2)  # the numbers that `shift` draws alone come first
    flat = distorted(images, draw_maps(generator, 6) * farthest(1.5), moves).flatten(1)
    if name == "permuted-mnist":
        flat = flat[:, torch.randperm(784, generator=seeded(12008))]
    batch = task.batch("train", indices, seeded(5))
    assert torch.equal(batch.inputs, flat.view(6, task.sequence_length, -1).transpose(0, 1) * (1 / 255))
    assert batch.inputs.is_contiguous()
    assert batch.inputs.dtype == torch.float32
    assert torch.equal(batch.targets, plain.batch("train", indices).targets)
    assert not torch.equal(batch.inputs[:, 3], batch.inputs[:, 4])  # one image, two maps


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shift", [0, 1])
def test_only_training_with_a_generator_distorts(name: str, shift: int, mnist: Path) -> None:
    plain, task = load(mnist, name), load(mnist, name, distort=1.0, shift=shift)
    indices = torch.arange(30).view(2, 15)
    for split in ("validation", "test"):
        generator = seeded(0)
        assert torch.equal(task.batch(split, indices, generator).inputs, plain.batch(split, indices).inputs)
        assert torch.equal(generator.get_state(), seeded(0).get_state())
    still = plain.batch("train", indices).inputs
    assert torch.equal(task.batch("train", indices).inputs, still)
    assert torch.equal(task.batch("train", indices[0]).inputs, still[0])
    changed = task.batch("train", indices, seeded(0)).inputs
    assert changed.is_contiguous()
    assert not torch.equal(changed, still)
    kept = {key for key, value in task._data.items() if value.numel() >= 100 * 784 and key.startswith("train")}
    assert kept == {"train.images"}  # one copy of the 100 images …
    assert task._data["train.images"].dtype == torch.uint8  # … in bytes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shift", [0, 2])
def test_no_distortion_is_the_task_as_it_was(name: str, shift: int, mnist: Path) -> None:
    before, task = load(mnist, name, shift=shift), load(mnist, name, shift=shift, distort=0)
    assert task.describe() == before.describe()
    assert "distort" not in task.options  # as in the runs that are stored
    assert "distort" not in load(mnist, name, distort=0.0).options
    assert task._data.keys() == before._data.keys()
    indices, generator, other = torch.arange(20), seeded(0), seeded(0)
    assert torch.equal(task.batch("train", indices, generator).inputs, before.batch("train", indices, other).inputs)
    if shift:
        mnist_module._draw_moves(other := seeded(0), 20, shift)
    assert torch.equal(generator.get_state(), other.get_state())  # the moves are drawn and nothing else
    options = load(mnist, name, shift=shift, distort=0.5).describe()["options"]
    assert options == {**before.options, "distort": 0.5}


@pytest.mark.parametrize("name", NAMES)
def test_wrong_strengths_are_named_before_any_file_is_wanted(name: str) -> None:
    for value in (-0.1, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"distort is {value}"):
            tasks.load(name, offline=True, distort=value)
    for wrong in ("much", True, None):
        with pytest.raises(TypeError, match="distort is "):
            tasks.load(name, offline=True, distort=wrong)


def test_options_as_they_come_from_the_command_line(mnist: Path) -> None:
    options = parse_options(["distort=0.5", "shift=1"], "--task-option")
    assert load(mnist, **options).options == {"shift": 1, "distort": 0.5}
    assert load(mnist, **parse_options(["distort=2"], "--task-option")).options == {"distort": 2}
    for wrong in ("3", "much", "NaN", "true"):
        with pytest.raises((ValueError, TypeError), match="distort is "):
            load(mnist, **parse_options([f"distort={wrong}"], "--task-option"))


def stream(task: Task, *seeds: int, batch_size: int = 16) -> Stream:
    settings = Settings(task.name, seeds=seeds, batch_size=batch_size, hidden_size=3, dropout=0.5)
    made = Stream(settings, task, torch.device("cpu"), Shard())
    made.begin_epoch()
    return made


def close(found: Tensor, expected: Tensor) -> None:
    """Equal but for the last bit of a sine, which may depend on how many are taken at once: 14 pixels from the centre
    it moves a pixel by 10⁻⁶ of its width, and no value by more than that of the range.
    """
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("batch_size", [1, 7, 16, 50])
@pytest.mark.parametrize("shift", [0, 2])
def test_a_seed_sees_the_same_images_alone_and_in_company(shift: int, batch_size: int, mnist: Path) -> None:
    task = load(mnist, "permuted-mnist", distort=1.0, shift=shift)
    alone, together = stream(task, 3, batch_size=batch_size), stream(task, 0, 3, 7, batch_size=batch_size)
    for step in range(2):
        (one, keep), (all_of_them, keeps) = alone.draw(step), together.draw(step)
        close(one.inputs[0], all_of_them.inputs[1])
        assert torch.equal(one.targets[0], all_of_them.targets[1])
        assert torch.equal(keep[0], keeps[1])  # type: ignore[index]
        assert not torch.equal(all_of_them.inputs[0], all_of_them.inputs[1])
    indices = (torch.arange(3 * batch_size) % 100).view(3, batch_size)
    members = task.batch("train", indices, [seeded(seed) for seed in range(3)]).inputs
    for number in range(3):
        close(members[number], task.batch("train", indices[number], seeded(number)).inputs)


def test_saved_generators_draw_the_same_distortions_again(mnist: Path) -> None:
    task = load(mnist, distort=1.0, shift=1)
    first = stream(task, 0, 1)
    first.draw(0)
    saved = first.states()
    second = stream(task, 0, 1)
    second.restore(saved)
    for step in (1, 2):
        assert torch.equal(first.draw(step)[0].inputs, second.draw(step)[0].inputs)
    with pytest.raises(ValueError, match="3 generators for 2 members"):
        task.batch("train", torch.zeros(2, 4, dtype=torch.int64), [seeded(seed) for seed in range(3)])


@pytest.mark.gpu
def test_on_a_gpu_images_are_distorted_as_here(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    options = {"distort": 1.0, "shift": 2}
    here, there = load(mnist, "permuted-mnist", **options), load(mnist, "permuted-mnist", **options).to("cuda")
    indices = torch.arange(24).view(2, 12)
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(2)]
    on_the_device = indices.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")  # raises where the host would wait for the device
        try:
            result = there.batch("train", on_the_device, generators).inputs
        finally:
            torch.cuda.set_sync_debug_mode("default")
    alone = there.batch("train", indices[1], torch.Generator("cuda").manual_seed(1)).inputs
    assert torch.equal(alone, result[1])
    again = [torch.Generator("cuda").manual_seed(seed) for seed in range(2)]
    moves = iter([mnist_module._draw_moves(generator, 12, 2).cpu() for generator in again])
    maps = iter([draw_maps(generator, 12).cpu() for generator in again])
    monkeypatch.setattr(mnist_module, "_draw_moves", lambda generator, count, shift: next(moves))
    monkeypatch.setattr(mnist_module, "draw_maps", lambda generator, count: next(maps))
    expected = here.batch("train", indices, [seeded(0), seeded(1)]).inputs
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=2e-5)
