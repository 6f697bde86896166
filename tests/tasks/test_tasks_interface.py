"""The interface: registry, metrics, objectives and what every task promises."""

import math
import sys

import pytest
import torch

from lipschitz_rnn import tasks
from lipschitz_rnn.tasks.base import ACCURACY, BITS, MSE, PERPLEXITY, Batch, member_generators
from lipschitz_rnn.tasks.objectives import Regression


def test_metric_finish() -> None:
    assert ACCURACY.finish(0.5) == MSE.finish(0.5) == 0.5
    assert BITS.finish(math.log(2.0)) == pytest.approx(1.0)
    assert PERPLEXITY.finish(math.log(115.0)) == pytest.approx(115.0)
    assert PERPLEXITY.finish(1e6) == math.inf
    assert math.isnan(PERPLEXITY.finish(math.nan))


def test_unknown_names_and_options_say_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"no task 'mnist'.*digits"):
        tasks.load("mnist")
    with pytest.raises(ValueError, match="no option 'speed'"):
        tasks.load("digits", speed=3)
    with pytest.raises(ValueError, match=r"'valid'.*'train', 'validation', 'test'"):
        tasks.load("digits").size("valid")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("permuted-mnist", {"scaling": "bytes"}),
        ("ordered-mnist", {"shift": -1}),
        ("rows-mnist", {"shift": 28}),
        ("ordered-cifar10", {"layout": "bgr"}),
        ("noise-padded-cifar10", {"noise": "none"}),
        ("timit", {"protocol": "kaldi"}),
        ("spoken-digits", {"normalisation": "none"}),
        ("ptb-char", {"length": 0}),
        ("ptb-word", {"eval_batch": 0}),
    ],
)
def test_wrong_options_are_found_before_any_file_is_wanted(name: str, options: dict[str, object]) -> None:
    (option,) = options
    with pytest.raises(ValueError, match=f"{option} is .*; it must be"):
        tasks.load(name, offline=True, **options)


@pytest.mark.parametrize("name", tasks.available())
def test_info_needs_no_data(name: str) -> None:
    info = tasks.info(name)
    assert info.name == name
    assert info.readout in ("last", "all")
    assert set(info.sizes) == {"train", "validation", "test"}
    assert all(getattr(info, key) for key in ("summary", "source", "licence", "sequence_length", "metric"))


def test_info_was_a_dictionary_and_can_still_be_read_as_one() -> None:
    info = tasks.info("digits")
    with pytest.warns(DeprecationWarning, match="sizes"):
        assert info["sizes"] == info.sizes
    with pytest.warns(DeprecationWarning, match="metric"):
        assert info["metric"]["name"] == info.metric.name
    assert "options" in list(info)
    with pytest.warns(DeprecationWarning, match="colour"), pytest.raises(KeyError):
        info["colour"]


def test_digits_counts_shapes_and_range() -> None:
    task = tasks.load("digits")
    assert [task.size(split) for split in ("train", "validation", "test")] == [1257, 180, 360]
    every = [task.batch(split, torch.arange(task.size(split))) for split in ("train", "validation", "test")]
    pixels = torch.cat([batch.inputs for batch in every], dim=1)
    labels = torch.cat([batch.targets for batch in every])
    assert pixels.shape == (64, 1797, 1)
    assert pixels.min() == 0.0
    assert pixels.max() == 1.0
    # The known counts and mean (4.8842 of 16) of the 1,797 images: every image is in exactly one split.
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert pixels.mean().item() == pytest.approx(4.884165 / 16, abs=1e-5)
    assert task.describe()["sizes"] == tasks.info("digits").sizes


def test_digits_pixels_come_in_scanline_order() -> None:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    task = tasks.load("digits")
    sequence = task.batch("train", torch.tensor([5])).inputs[:, 0, 0] * 16
    matches = (torch.from_numpy(bundle.images.reshape(-1, 64)) == sequence).all(1)
    assert matches.sum() == 1
    assert int(bundle.target[matches.nonzero().item()]) == task.batch("train", torch.tensor([5])).targets.item()


def test_digits_can_be_read_row_by_row() -> None:
    pixels, rows = tasks.load("digits"), tasks.load("digits", steps=8)
    indices = torch.tensor([3, 0])
    assert (rows.input_size, rows.sequence_length) == (8, 8)
    expected = pixels.batch("test", indices).inputs.view(8, 8, 2).transpose(1, 2)
    assert torch.equal(rows.batch("test", indices).inputs, expected)
    with pytest.raises(ValueError, match="steps is 7; it must be one of 8, 64"):
        tasks.load("digits", steps=7)


def test_members_are_gathered_in_one_call() -> None:
    task = tasks.load("digits")
    indices = torch.tensor([[0, 5, 9], [7, 7, 1]])
    together = task.batch("train", indices)
    assert together.inputs.shape == (2, 64, 3, 1)
    assert together.targets.shape == (2, 3)
    for member in range(2):
        alone = task.batch("train", indices[member])
        torch.testing.assert_close(together.inputs[member], alone.inputs, rtol=0, atol=0)
        assert torch.equal(together.targets[member], alone.targets)
    outputs = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0))
    losses = task.loss(outputs, together)
    sums, weights = task.measure(outputs, together)
    for member in range(2):
        alone = task.batch("train", indices[member])
        torch.testing.assert_close(losses[member], task.loss(outputs[member], alone))
        torch.testing.assert_close(sums[member], task.measure(outputs[member], alone)[0])
        assert weights[member] == 3
    mapped = torch.vmap(lambda o, x, y: task.loss(o, Batch(x, y)))(outputs, together.inputs, together.targets)
    torch.testing.assert_close(mapped, losses)


def test_digits_name_the_extra_when_scikit_learn_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "lipschitz-rnn\[experiments\]"'):
        tasks.load("digits")


def test_a_task_moves_in_place() -> None:
    task = tasks.load("pendulum", train_size=4)
    assert task.to("meta") is task
    batch = task.batch("train", torch.arange(3))
    assert batch.inputs.device.type == batch.targets.device.type == "meta"
    moved = tasks.load("adding").batch("train", torch.arange(3)).to("meta")
    assert (moved.inputs.device.type, moved.inputs.shape, moved.lengths) == ("meta", (200, 3, 2), None)


def test_draws_need_a_generator_for_each_member() -> None:
    two = torch.zeros(2, 5, dtype=torch.int64)
    one = torch.Generator()
    assert member_generators(one, two) == [one, one]
    assert member_generators(one, two[0]) == [one]
    with pytest.raises(ValueError, match="generator is None"):
        member_generators(None, two)
    with pytest.raises(ValueError, match="1 generators for 2 members"):
        member_generators([one], two)


def test_wrong_indices_are_named() -> None:
    task = tasks.load("digits")
    with pytest.raises(ValueError, match=r"shape \(1, 1, 1\)"):
        task.batch("train", torch.zeros(1, 1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"torch.float32; they must be int64"):
        task.batch("train", torch.zeros(3))


class _Frames(Regression):
    info = tasks.find("digits").info

    def size(self, split: str) -> int:
        return 1

    def batch(self, split, indices, generator=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def test_masked_mse_ignores_padding_and_its_gradient() -> None:
    task = _Frames({})
    task.readout = "all"
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 2, 3, generator=generator, requires_grad=True)
    targets = torch.randn(5, 2, 3, generator=generator)
    targets[4, 0] = math.nan
    batch = Batch(targets, targets, torch.tensor([4, 5]))
    loss = task.loss(outputs, batch)
    valid = torch.cat([(outputs - targets)[:4, 0], (outputs - targets)[:, 1]])
    torch.testing.assert_close(loss, valid.square().mean())
    total, weight = task.measure(outputs, batch)
    assert weight == 9
    torch.testing.assert_close(total / weight, loss)
    loss.backward()
    assert outputs.grad is not None
    assert outputs.grad[4, 0].tolist() == [0.0, 0.0, 0.0]
