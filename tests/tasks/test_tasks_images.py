"""Images as sequences: order, scale, layout, augmentation and noise, on small files of the real formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_data import cifar_contents, dataset, idx, mnist_contents

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks import DataError, cifar
from lipschitz_rnn.tasks.cifar import CifarTask, crop_and_flip, read_records
from lipschitz_rnn.tasks.mnist import read_idx

MNIST_SPLITS = {"train": 100, "validation": 2_000, "test": 30}


@pytest.fixture(scope="session")
def cifar_bytes() -> dict[str, bytes]:
    return cifar_contents()


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cifar_bytes: dict[str, bytes]) -> Path:
    for name, data in cifar_bytes.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr(CifarTask, "dataset", dataset(cifar_bytes, "cifar10"))
    return tmp_path


def generators(count: int = 2) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def test_ordered_mnist_against_the_bytes(mnist: Path) -> None:
    task = tasks.load("ordered-mnist", mnist, offline=True)
    assert {split: task.size(split) for split in tasks.base.SPLITS} == MNIST_SPLITS
    order = np.random.RandomState(1234).permutation(2_100)
    images = np.frombuffer(mnist_contents()["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(-1, 784)
    labels = np.frombuffer(mnist_contents()["train-labels-idx1-ubyte"], np.uint8, offset=8)
    for split, members in (("train", order[:-2_000]), ("validation", order[-2_000:])):
        batch = task.batch(split, torch.arange(50))  # type: ignore[arg-type]
        assert batch.inputs.shape == (784, 50, 1)
        expected = torch.from_numpy(images[members[:50]].astype(np.float32) / 255.0)
        torch.testing.assert_close(batch.inputs[..., 0].T, expected, rtol=0, atol=1e-7)
        assert batch.targets.tolist() == labels[members[:50]].tolist()
        assert batch.inputs.is_contiguous()


def test_permuted_mnist_uses_the_published_permutation(mnist: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(12008)
        published = torch.randperm(784)
    ordered = tasks.load("ordered-mnist", mnist, offline=True).batch("test", torch.arange(30)).inputs
    before = torch.random.get_rng_state()
    task = tasks.load("permuted-mnist", mnist, offline=True)
    assert torch.equal(torch.random.get_rng_state(), before)  # no global seed is touched
    assert torch.equal(task.batch("test", torch.arange(30)).inputs, ordered[published])
    other = tasks.load("permuted-mnist", mnist, offline=True, seed=5544)
    assert not torch.equal(other.batch("test", torch.arange(30)).inputs, ordered[published])
    assert other.describe()["options"] == {"seed": 5544, "scaling": "unit"}
    raw = tasks.load("permuted-mnist", mnist, offline=True, scaling="raw").batch("test", torch.arange(30)).inputs
    torch.testing.assert_close(raw, ordered[published] * 255.0)
    assert raw.max() == 255.0


def test_rows_of_eight_pixels(mnist: Path) -> None:
    ordered = tasks.load("ordered-mnist", mnist, offline=True).batch("test", torch.arange(5)).inputs
    rows = tasks.load("rows-mnist", mnist, offline=True).batch("test", torch.arange(5)).inputs
    assert rows.shape == (98, 5, 8)
    assert torch.equal(rows.transpose(0, 1).reshape(5, 784), ordered[..., 0].T)


def test_wrong_options_are_named(mnist: Path) -> None:
    with pytest.raises(ValueError, match=r"'255'.*'unit', 'raw'"):
        tasks.load("permuted-mnist", mnist, scaling="255")
    with pytest.raises(TypeError, match=r"seed is 1\.5 \(float\)"):
        tasks.load("permuted-mnist", mnist, seed=1.5)


def test_idx_files_of_another_kind() -> None:
    whole = idx(np.zeros((3, 2, 2), np.uint8))
    assert read_idx(whole, "x", 3).shape == (3, 2, 2)
    with pytest.raises(DataError, match=r"^x .*1 dimensions"):
        read_idx(whole, "x", 1)
    with pytest.raises(DataError, match=r"^x .*11.*\(3, 2, 2\)"):
        read_idx(whole[:-1], "x", 3)
    with pytest.raises(DataError, match=r"data has 100 bytes, not a multiple of 3073"):
        read_records(b"0" * 100, "data")


def test_ordered_cifar_layouts(small_cifar: Path, cifar_bytes: dict[str, bytes]) -> None:
    records = np.frombuffer(cifar_bytes["test_batch.bin"], np.uint8).reshape(-1, 3073)[:4]
    images = records[:, 1:].reshape(4, 3, 32, 32) / 255.0
    normal = (images - np.reshape(cifar.MEAN, (3, 1, 1))) / np.reshape(cifar.STD, (3, 1, 1))
    task = tasks.load("ordered-cifar10", small_cifar, offline=True)
    batch = task.batch("test", torch.arange(4))
    assert batch.inputs.shape == (1024, 4, 3)
    rgb = normal.transpose(2, 3, 0, 1).reshape(1024, 4, 3)
    torch.testing.assert_close(batch.inputs.double(), torch.from_numpy(rgb), rtol=1e-5, atol=1e-5)
    assert batch.targets.tolist() == records[:, 0].tolist()
    planes = tasks.load("ordered-cifar10", small_cifar, offline=True, layout="planes").batch("test", torch.arange(4))
    expected = torch.from_numpy(normal.reshape(4, 1024, 3).transpose(1, 0, 2))
    torch.testing.assert_close(planes.inputs.double(), expected, rtol=1e-5, atol=1e-5)


def test_crops_and_flips_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (20, 3, 32, 32), generator=generator, dtype=torch.uint8)
    draws = cifar._draw_crops(generator, 20)
    assert set(draws[:, 2].tolist()) == {0, 1}
    assert draws[:, :2].min() >= 0
    assert draws[:, :2].max() <= 8
    result = crop_and_flip(images, draws)
    for image, (row, column, flip), cropped in zip(images, draws.tolist(), result, strict=True):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        window = padded[:, row : row + 32, column : column + 32]
        assert torch.equal(cropped, window.flip(-1) if flip else window)


def test_augmentation_is_for_training_with_a_generator_only(small_cifar: Path) -> None:
    task = tasks.load("ordered-cifar10", small_cifar, offline=True)
    plain = tasks.load("ordered-cifar10", small_cifar, offline=True, augment=False)
    indices = torch.arange(20)
    for split in ("validation", "test"):
        assert torch.equal(task.batch(split, indices, generators()[0]).inputs, task.batch(split, indices).inputs)
    still = task.batch("train", indices).inputs
    assert torch.equal(plain.batch("train", indices, generators()[0]).inputs, still)
    moved = task.batch("train", indices, generators()[0]).inputs
    assert not torch.equal(moved, still)
    assert torch.equal(moved, task.batch("train", indices, generators()[0]).inputs)


def test_flips_alone_move_nothing_else(small_cifar: Path) -> None:
    task = tasks.load("ordered-cifar10", small_cifar, offline=True, augment="flip")
    indices = torch.arange(20)
    still = task.batch("train", indices).inputs.transpose(0, 1).view(20, 32, 32, 3)
    moved = task.batch("train", indices, generators()[0]).inputs.transpose(0, 1).view(20, 32, 32, 3)
    kept = [torch.equal(after, before) for after, before in zip(moved, still, strict=True)]
    mirrored = [torch.equal(after, before.flip(1)) for after, before in zip(moved, still, strict=True)]
    assert all(one != other for one, other in zip(kept, mirrored, strict=True))
    assert any(kept)
    assert any(mirrored)
    with pytest.raises(ValueError, match="augment is 'crop'; it must be one of True, False, 'flip'"):
        tasks.load("ordered-cifar10", small_cifar, offline=True, augment="crop")


@pytest.mark.parametrize("name", ["ordered-cifar10", "noise-padded-cifar10"])
def test_every_member_draws_what_it_would_draw_alone(small_cifar: Path, name: str) -> None:
    task = tasks.load(name, small_cifar, offline=True, augment=True)
    indices = torch.arange(6).view(2, 3)
    together = task.batch("train", indices, generators())
    assert together.inputs.shape == (2, task.sequence_length, 3, task.input_size)
    for member, generator in enumerate(generators()):
        alone = task.batch("train", indices[member], generator)
        torch.testing.assert_close(together.inputs[member], alone.inputs, rtol=1e-6, atol=1e-6)
        assert torch.equal(together.targets[member], alone.targets)
    shared = task.batch("train", indices, generators()[0])
    assert shared.inputs.shape == together.inputs.shape
    with pytest.raises(ValueError, match="3 generators for 2 members"):
        task.batch("train", indices, generators(3))


def test_noise_padding_is_independent_and_evaluation_repeats(small_cifar: Path) -> None:
    task = tasks.load("noise-padded-cifar10", small_cifar, offline=True)
    assert task.batch("test", torch.arange(3)).inputs.shape == (1000, 3, 96)
    rows = task.batch("test", torch.arange(8)).inputs
    again = task.batch("test", torch.tensor([5, 2])).inputs  # another batch, the same samples
    torch.testing.assert_close(again, rows[:, [5, 2]], rtol=1e-6, atol=1e-6)
    noise = rows[32:].permute(1, 0, 2).flatten(1)
    assert noise.mean().abs() < 0.01
    assert abs(noise.std() - 1) < 0.01
    between = torch.corrcoef(noise) - torch.eye(8)
    assert between.abs().max() < 0.02  # 93,000 numbers a sample: five standard errors
    assert not torch.equal(task.batch("validation", torch.arange(8)).inputs[32:], rows[32:])
    generator = generators()[0]
    first, second = (task.batch("train", torch.arange(2), generator).inputs[32:] for _ in range(2))
    assert torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].abs() < 0.02


def test_noise_padding_rows_and_fixed_noise(small_cifar: Path, cifar_bytes: dict[str, bytes]) -> None:
    task = tasks.load("noise-padded-cifar10", small_cifar, offline=True, noise="fixed")
    inputs = task.batch("test", torch.arange(3)).inputs
    assert torch.equal(inputs[32:, 0], inputs[32:, 2])
    assert torch.equal(inputs[32:, 0], task.batch("train", torch.arange(3), generators()[0]).inputs[32:, 1])
    assert torch.equal(
        inputs[:32], tasks.load("noise-padded-cifar10", small_cifar).batch("test", torch.arange(3)).inputs[:32]
    )
    record = np.frombuffer(cifar_bytes["test_batch.bin"], np.uint8).reshape(-1, 3073)[1, 1:].reshape(3, 32, 32) / 255.0
    normal = (record - np.reshape(cifar.MEAN, (3, 1, 1))) / np.reshape(cifar.STD, (3, 1, 1))
    expected = torch.from_numpy(normal.transpose(1, 0, 2).reshape(32, 96))  # a row: its red, green and blue values
    torch.testing.assert_close(inputs[:32, 1].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["digits", "ordered-mnist", "ordered-cifar10", "noise-padded-cifar10"])
def test_batches_can_be_captured_in_a_cuda_graph(name: str, mnist: Path, small_cifar: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    root = small_cifar if "cifar" in name else mnist
    here, there = tasks.load(name, root, offline=True), tasks.load(name, root, offline=True).to("cuda")
    indices = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
    there.batch("train", indices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = there.batch("train", indices)
    indices.copy_(torch.arange(16).view(2, 8))
    graph.replay()
    expected = here.batch("train", torch.arange(16).view(2, 8))
    torch.testing.assert_close(batch.inputs.cpu(), expected.inputs, rtol=1e-5, atol=1e-5)
    assert torch.equal(batch.targets.cpu(), expected.targets)
