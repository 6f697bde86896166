"""Every objective with every readout, with and without lengths and member axis, against plain loops in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lipschitz_rnn.data.objectives import correct
from lipschitz_rnn.tasks.base import ACCURACY, MSE, Batch, Generators, Split, Task, TaskInfo
from lipschitz_rnn.tasks.objectives import Classification, Regression, TokenPrediction
from lipschitz_rnn.training.results import Selection

STEPS, SAMPLES, WIDTH = 5, 4, 3
LENGTHS = torch.tensor([5, 1, 3, 2])
KINDS = (Classification, TokenPrediction, Regression)


def make(kind: type[Task], readout: str) -> Task:
    class Own(kind):  # type: ignore[valid-type, misc]
        info = TaskInfo(
            name="own", summary="", input_size=1, output_size=WIDTH, sequence_length=STEPS, readout=readout,
            metric=MSE if kind is Regression else ACCURACY, sizes={}, source="", licence="",
        )  # fmt: skip

        def size(self, split: Split) -> int:
            return SAMPLES

        def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
            raise NotImplementedError

    return Own({})


def draw(kind: type[Task], shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    outputs = torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)
    if kind is Regression:
        return outputs, torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)
    return outputs, torch.randint(WIDTH, shape, generator=generator)


def judged(kind: type[Task], outputs: list[float], target: Any) -> tuple[float, float]:
    """(loss, measure) of a single place."""
    if kind is Regression:
        error = sum((o - t) ** 2 for o, t in zip(outputs, target, strict=True)) / WIDTH
        return error, error
    loss = math.log(sum(math.exp(o) for o in outputs)) - outputs[int(target)]
    return loss, loss if kind is TokenPrediction else float(outputs.index(max(outputs)) == int(target))


def by_hand(kind: type[Task], readout: str, outputs: Tensor, targets: Tensor, lengths: Tensor | None) -> list[float]:
    """Loss, sum and weight of one network."""
    places = [(b,) for b in range(SAMPLES)]
    if readout == "all":
        places = [(t, b) for t in range(STEPS) for b in range(SAMPLES) if lengths is None or t < lengths[b]]
    found = [judged(kind, outputs[place].tolist(), targets[place].tolist()) for place in places]
    return [sum(loss for loss, _ in found) / len(found), sum(value for _, value in found), float(len(found))]


@pytest.mark.parametrize("members", [None, 1, 2])
@pytest.mark.parametrize("with_lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("readout", ["last", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_measure_are_those_of_a_loop(
    kind: type[Task], readout: str, with_lengths: bool, members: int | None, generator: torch.Generator
) -> None:
    task = make(kind, readout)
    own = (SAMPLES,) if readout == "last" else (STEPS, SAMPLES)
    axis = () if members is None else (members,)
    outputs, targets = draw(kind, (*axis, *own), generator)
    lengths = None
    if with_lengths:  # of the second network in another order
        lengths = LENGTHS if members is None else torch.stack([LENGTHS, LENGTHS.flip(0)][:members])
        if readout == "all":  # nothing of the padding may be seen, whatever stands there
            padding = torch.arange(STEPS)[:, None] >= lengths[..., None, :]
            outputs = outputs.masked_fill(padding.unsqueeze(-1), math.nan)
            targets = targets.masked_fill(padding, -1) if kind is not Regression else targets
    outputs.requires_grad_()
    batch = Batch(torch.zeros(1), targets, lengths)
    loss, (total, weight) = task.loss(outputs, batch), task.measure(outputs, batch)
    assert loss.shape == total.shape == weight.shape == torch.Size(axis)
    for member in range(members or 1):
        place: tuple[int, ...] = () if members is None else (member,)
        alone = None if lengths is None else lengths[place]
        expected = by_hand(kind, readout, outputs[place].detach(), targets[place], alone)
        found = [loss[place].item(), total[place].item(), weight[place].item()]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)  # accuracy is counted in float32
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    assert gradient.isfinite().all()


def test_networks_with_errors_of_0_and_100_report_0_and_100() -> None:
    """The last state is read, so lengths must not change what is judged."""
    task = make(Regression, "last")
    targets = torch.zeros(2, SAMPLES, WIDTH)
    outputs = torch.stack([torch.zeros(SAMPLES, WIDTH), torch.full((SAMPLES, WIDTH), 10.0)])
    total, weight = task.measure(outputs, Batch(torch.zeros(1), targets, LENGTHS.expand(2, -1)))
    assert (total / weight).tolist() == [0.0, 100.0]


@pytest.mark.parametrize("readout", ["last", "all"])
def test_scores_of_nan_are_right_about_nothing(readout: str) -> None:
    """`argmax` takes NaN for the largest score, which made a broken network right about every target of class 0."""
    shape = (SAMPLES,) if readout == "last" else (STEPS, SAMPLES)
    targets = torch.zeros(2, *shape, dtype=torch.int64)
    outputs = torch.tensor([1.0, 0.0, 0.0]).repeat(2, *shape, 1)
    outputs[1, ..., 0, 2] = math.nan
    batch = Batch(torch.zeros(1), targets, LENGTHS.expand(2, -1))
    selected = Selection(ACCURACY, {"weight": torch.zeros(2)})
    for total, weight in (make(Classification, readout).measure(outputs, batch), correct(outputs, targets, readout)):
        accuracy = (total / weight).tolist()
        assert accuracy[0] == 1.0
        assert math.isnan(accuracy[1])
        selected.consider(accuracy, 1, {"weight": torch.ones(2)}, [True, True])
    assert selected.epochs == [1, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_padding_alone_has_no_loss(kind: type[Task], generator: torch.Generator) -> None:
    task = make(kind, "all")
    outputs, targets = draw(kind, (STEPS, SAMPLES), generator)
    batch = Batch(torch.zeros(1), targets, torch.zeros(SAMPLES, dtype=torch.int64))
    assert task.loss(outputs, batch).item() == 0.0
    assert [value.item() for value in task.measure(outputs, batch)] == [0.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_targets_of_another_shape_are_refused_and_not_broadcast(kind: type[Task], generator: torch.Generator) -> None:
    task = make(kind, "last")
    outputs, targets = draw(kind, (SAMPLES,), generator)
    wrong = targets[:, :1] if kind is Regression else targets[:, None]
    for judge in (task.loss, task.measure):
        with pytest.raises(ValueError, match=r"\(4, 3\).*\(4, 1\)"):
            judge(outputs, Batch(torch.zeros(1), wrong))
