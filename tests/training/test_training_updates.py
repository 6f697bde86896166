"""Steps on stacked parameters equal a plain PyTorch loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_training_ensembles import build_plain, weights
from tiny_tasks import SignTask, tiny_settings
from torch.nn.utils import clip_grad_norm_

from lipschitz_rnn.training import fit
from lipschitz_rnn.training.schedules import learning_rate
from lipschitz_rnn.training.streams import Shard, Stream

OPTIMISERS: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.8, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.7, weight_decay=0.01),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("clip", [None, 0.1])
def test_training_equals_a_plain_loop(optimiser: str, clip: float | None) -> None:
    settings = tiny_settings(
        optimiser=optimiser, clip=clip, momentum=0.8, smoothing=0.7, weight_decay=0.01, seeds=(4,), epochs=2,
        schedule="cosine", averaging=1.0,
    )  # fmt: skip
    task = SignTask()
    trained = fit(settings, task, build=build_plain)

    model = build_plain(settings, task, 4)
    optimiser_ = OPTIMISERS[optimiser](model.parameters())
    stream = Stream(settings, task, torch.device("cpu"), Shard())
    selected, best = {}, -1.0
    for epoch in range(2):
        stream.begin_epoch()
        for step in range(stream.steps):
            for group in optimiser_.param_groups:
                group["lr"] = learning_rate(settings, epoch * stream.steps + step, stream.steps)
            batch = task.batch("train", stream.indices(step)[0])
            optimiser_.zero_grad()
            torch.nn.functional.cross_entropy(model(batch.inputs)[0], batch.targets).backward()
            if clip is not None:
                clip_grad_norm_(model.parameters(), clip)
            optimiser_.step()
        everything = task.batch("validation", torch.arange(task.size("validation")))
        accuracy = (model(everything.inputs)[0].argmax(-1) == everything.targets).float().mean().item()
        if accuracy >= best:
            best, selected = accuracy, {k: v.detach().clone() for k, v in model.named_parameters()}
    for name, value in weights(trained, 0).items():
        torch.testing.assert_close(value, selected[name], rtol=1e-4, atol=1e-6)
    assert trained.seeds[0].validation == pytest.approx(best)


def test_a_parameter_may_be_a_single_number() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner, self.scale = inner, torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, *arguments: Any) -> tuple[torch.Tensor, Any]:
            outputs, state = self.inner(*arguments)
            return self.scale * outputs, state

    settings = tiny_settings(seeds=(0, 1), clip=0.5)
    result = fit(settings, SignTask(), build=lambda *given: Scaled(build_plain(*given)))
    scales = [float(weights(result, member)["scale"]) for member in range(2)]
    assert all(scale != 1.0 for scale in scales)
    assert scales[0] != scales[1]


def test_every_member_has_its_own_order_and_sees_every_sample_once() -> None:
    task = SignTask()
    stream = Stream(tiny_settings(seeds=(0, 1)), task, torch.device("cpu"), Shard())
    stream.begin_epoch()
    orders = torch.cat([stream.indices(step) for step in range(stream.steps)], 1)
    assert sorted(orders[0].tolist()) == sorted(orders[1].tolist()) == list(range(task.size("train")))
    assert orders[0].tolist() != orders[1].tolist()
    first = orders.clone()
    stream.begin_epoch()
    assert not torch.equal(stream.indices(0), first[:, :12])


def test_an_epoch_can_be_drawn_again_from_saved_states() -> None:
    task = SignTask(noise=0.5)
    stream = Stream(tiny_settings(seeds=(0, 1), dropout=0.5), task, torch.device("cpu"), Shard())
    stream.begin_epoch()
    stream.draw(0)
    saved = {name: value.clone() for name, value in stream.states().items()}
    batch, keep = stream.draw(1)
    other = Stream(tiny_settings(seeds=(0, 1), dropout=0.5), task, torch.device("cpu"), Shard())
    other.restore(saved)
    again, keep_again = other.draw(1)
    assert torch.equal(batch.inputs, again.inputs)
    assert torch.equal(batch.targets, again.targets)
    assert keep is not None
    assert keep_again is not None
    assert torch.equal(keep, keep_again)


def test_a_split_smaller_than_a_batch_is_one_batch() -> None:
    stream = Stream(tiny_settings(batch_size=1000), SignTask(), torch.device("cpu"), Shard())
    assert (stream.steps, stream.batch_size) == (1, 48)
