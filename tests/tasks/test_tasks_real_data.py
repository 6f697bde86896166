"""The real data sets have the known counts, means and labels. Skipped where LIPSCHITZ_RNN_DATA is not set."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks.text import END

Load = Callable[..., tasks.Task]
SPLITS = ("train", "validation", "test")


def _sizes(task: tasks.Task) -> list[int]:
    return [task.size(split) for split in SPLITS]  # type: ignore[arg-type]


def _labels(task: tasks.Task, *splits: str) -> list[int]:
    return torch.cat([task._data[f"{split}.labels"] for split in splits]).bincount().tolist()


def test_mnist(load_real: Load) -> None:
    task = load_real("ordered-mnist")
    assert _sizes(task) == [58_000, 2_000, 10_000]
    assert _labels(task, "train", "validation") == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert _labels(task, "test") == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = torch.cat([task._data[f"{split}.pixels"] for split in SPLITS[:2]]).float() / 255
    assert pixels.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std().item() == pytest.approx(0.3081, abs=5e-5)
    batch = task.batch("test", torch.arange(1_000))
    assert batch.inputs.shape == (784, 1_000, 1)
    assert (batch.inputs.min(), batch.inputs.max()) == (0.0, 1.0)
    assert batch.targets[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]  # the original order of the test images


@pytest.mark.slow
def test_cifar10(load_real: Load) -> None:
    task = load_real("ordered-cifar10")
    assert _sizes(task) == [48_000, 2_000, 10_000]
    assert _labels(task, "train", "validation") == [5_000] * 10
    assert _labels(task, "test") == [1_000] * 10
    images = torch.cat([task._data[f"{split}.images"] for split in SPLITS[:2]])
    values = np.arange(256)
    shares = [np.bincount(images[:, channel].numpy().ravel(), minlength=256) / (50_000 * 1024) for channel in range(3)]
    means = [share @ values for share in shares]
    assert means == pytest.approx([125.307, 122.950, 113.865], abs=1e-3)
    deviations = [np.sqrt(share @ values**2 - mean**2) for share, mean in zip(shares, means, strict=True)]
    assert deviations == pytest.approx([62.993, 62.089, 66.705], abs=1e-3)
    batch = task.batch("test", torch.arange(200))
    assert batch.inputs.shape == (1024, 200, 3)
    assert batch.targets[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


@pytest.mark.slow
def test_penn_treebank(load_real: Load) -> None:
    words = load_real("ptb-word", train_batch=1, eval_batch=1)
    assert words.vocabulary == 10_000
    ends = words.tokens.index(END)  # type: ignore[attr-defined]
    counts = [int((words._data[split] != ends).sum()) for split in SPLITS]
    assert counts == [887_521, 70_390, 78_669]
    assert [words._data[split].numel() for split in SPLITS] == [929_589, 73_760, 82_430]
    characters = load_real("ptb-char", train_batch=1, eval_batch=1)
    assert [characters._data[split].numel() for split in SPLITS] == [5_017_482, 393_042, 442_423]
    assert characters.vocabulary == 50
    for name, length in (("ptb-char", 150), ("ptb-word", 300)):
        task = load_real(name)
        assert task.describe()["sizes"] == tasks.info(name).sizes
        assert task.vocabulary == tasks.info(name).vocabulary
        assert task.batch("train", torch.tensor(0)).inputs.shape == (length, 128)
        assert task.batch("test", torch.tensor(0)).inputs.shape == (length, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "repeating"), [("timit-sample", 0.4008), ("spoken-digits", 0.3085)])
def test_speech(load_real: Load, name: str, repeating: float) -> None:
    task = load_real(name)
    info = tasks.info(name)
    assert task.describe()["sizes"] == info.sizes
    assert task.sequence_length == info.sequence_length
    names = {split: set(task.names[split]) for split in SPLITS}  # type: ignore[attr-defined]
    assert len(set.union(*names.values())) == sum(info.sizes.values())  # no utterance twice
    if name == "spoken-digits":
        for split, per_digit in (("train", 240), ("validation", 30), ("test", 30)):
            assert set(Counter(utterance[0] for utterance in names[split]).values()) == {per_digit}
    else:
        speakers = {split: {utterance.split("/")[0] for utterance in names[split]} for split in SPLITS}
        assert [len(speakers[split]) for split in SPLITS] == [12, 2, 2]
    batch = task.batch("test", torch.arange(16))
    assert batch.lengths is not None
    assert batch.inputs.shape == (int(batch.lengths.max()), 16, 129)
    assert batch.inputs.isfinite().all()
    # To repeat the current frame is the simplest prediction; its error stands in the guide.
    whole = task.batch("test", torch.arange(task.size("test")))
    total, weight = task.measure(whole.inputs, whole)
    assert (total / weight).item() == pytest.approx(repeating, abs=1e-4)
