"""Text: tokens, parallel streams, consecutive windows and the metrics in bits and perplexity."""

import math
from pathlib import Path

import pytest
import torch
from small_data import dataset, write_gz
from torch import nn

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks import DataError
from lipschitz_rnn.tasks.text import TextTask, read_characters, read_words
from lipschitz_rnn.training import Settings, fit

TRAIN = "".join(f" the cat sat on the <unk> mat {'n' * (k % 7)} \n" for k in range(200))
TEXTS = {"ptb.train.txt": TRAIN, "ptb.valid.txt": TRAIN[: len(TRAIN) // 4], "ptb.test.txt": " the cat \n" * 60}


def _write(folder: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> Path:
    contents = {name: text.encode() for name, text in texts.items()}
    write_gz(folder / "ptb", contents)
    monkeypatch.setattr(TextTask, "dataset", dataset(contents, "ptb"))
    return folder


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return _write(tmp_path, monkeypatch, TEXTS)


def test_tokens() -> None:
    assert read_words(" a b \n c\n") == ["a", "b", "<eos>", "c", "<eos>"]
    assert read_characters(" ab c \n d\n") == ["a", "b", "_", "c", "<eos>", "d", "<eos>"]


@pytest.mark.parametrize(("name", "reader"), [("ptb-char", read_characters), ("ptb-word", read_words)])
def test_windows_follow_each_other(text: Path, name: str, reader) -> None:  # type: ignore[no-untyped-def]
    options = {"train_batch": 3, "eval_batch": 2} | ({"length": 150} if name == "ptb-char" else {"length": 40})
    task = tasks.load(name, text, offline=True, **options)
    assert task.stateful
    assert task.vocabulary == task.output_size == len(set(reader(TRAIN)))
    windows = [task.batch("train", torch.tensor(k)) for k in range(task.size("train"))]
    assert windows[0].inputs.shape == (options["length"], 3)
    assert 1 <= len(windows[-1].inputs) <= options["length"]
    inputs = torch.cat([window.inputs for window in windows])
    targets = torch.cat([window.targets for window in windows])
    assert torch.equal(inputs[1:], targets[:-1])
    tokens = reader(TRAIN)
    steps = len(tokens) // 3
    assert len(inputs) == steps - 1  # every token of a stream but the last is an input, but the first a target
    for stream in range(3):
        words = [task.tokens[number] for number in (*inputs[:, stream], targets[-1, stream])]  # type: ignore[attr-defined]
        assert words == tokens[stream * steps : (stream + 1) * steps]
    assert task.batch("test", torch.tensor([0])).inputs.shape[1] == 2
    with pytest.raises(IndexError, match=f"window {len(windows)} of {name}/train"):
        task.batch("train", torch.tensor(len(windows)))
    with pytest.raises(ValueError, match=r"shape \(2,\); .* give one number"):
        task.batch("train", torch.arange(2))


def test_a_uniform_guess_has_the_known_metric(text: Path) -> None:
    for name, expected in (("ptb-char", math.log2), ("ptb-word", float)):
        task = tasks.load(name, text, offline=True, train_batch=3, eval_batch=2)
        total = weight = 0.0
        for k in range(task.size("validation")):
            batch = task.batch("validation", torch.tensor(k))
            value, count = task.measure(torch.zeros(*batch.targets.shape, task.output_size), batch)
            total, weight = total + value.item(), weight + count.item()
            assert count == batch.targets.numel()
        assert task.metric.finish(total / weight) == pytest.approx(expected(task.output_size), rel=1e-5)


def test_wrong_options_and_texts(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="length is '150'"):
        tasks.load("ptb-char", text, length="150")
    with pytest.raises(ValueError, match="train_batch is 0; it must be at least 1"):
        tasks.load("ptb-word", text, train_batch=0)
    with pytest.raises(ValueError, match="a batch of 5000 is too large"):
        tasks.load("ptb-word", text, train_batch=5_000)
    strange = _write(tmp_path / "strange", monkeypatch, TEXTS | {"ptb.test.txt": " zebra \n" * 60})
    with pytest.raises(DataError, match=r"ptb\.test\.txt.*zebra"):
        tasks.load("ptb-word", strange, train_batch=3)


@pytest.mark.parametrize("carry", [True, False])
def test_carry_says_whether_windows_start_from_the_last_state(text: Path, carry: bool) -> None:
    """A network that counts its steps sees the whole stream, or no more than one window."""
    counted: list[float] = []

    class Counter(nn.Module):
        def __init__(self, vocabulary: int) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.zeros(vocabulary))

        def forward(self, inputs, lengths=None, state=None, keep=None):  # type: ignore[no-untyped-def]
            steps = torch.zeros(1, inputs.shape[1], 1) if state is None else state
            counted.append(float(steps.max()))
            return self.scores.expand(*inputs.shape, -1), steps + len(inputs)

    options = {"train_batch": 3, "eval_batch": 2, "length": 40, "carry": carry}
    task = tasks.load("ptb-word", text, offline=True, **options)
    assert task.carries_state is carry
    assert ("carry" in task.describe()["options"]) is not carry  # earlier records have no such option
    settings = Settings(task="ptb-word", task_options=options, epochs=1, ensemble="sequential", device="cpu")
    fit(settings, task, build=lambda settings, task, seed: Counter(task.output_size))
    windows = max(task.size(split) for split in ("train", "validation", "test"))  # type: ignore[type-var]
    assert max(counted) == (40 * (windows - 1) if carry else 0)


def test_carry_is_true_or_false(text: Path) -> None:
    with pytest.raises(ValueError, match="carry"):
        tasks.load("ptb-char", text, offline=True, carry="never")
