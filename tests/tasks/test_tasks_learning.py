"""A small LSTM learns something of every task in a few steps: shapes, losses and gradients fit together."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lipschitz_rnn import tasks

FREE = ("digits", "adding", "copying", "pendulum", "irregular-digits", "irregular-pendulum")
LONG = ("ordered-cifar10", "noise-padded-cifar10")
PUBLIC = tuple(name for name in tasks.available() if name not in (*FREE, "timit"))


class SmallLSTM(nn.Module):
    def __init__(self, task: tasks.Task) -> None:
        super().__init__()
        self.embedding = None if task.vocabulary is None else nn.Embedding(task.vocabulary, task.input_size)
        self.lstm = nn.LSTM(task.input_size, 16)
        self.head = nn.Linear(16, task.output_size)
        self.last = task.readout == "last"

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(inputs if self.embedding is None else self.embedding(inputs))
        return self.head(states[-1] if self.last else states)


def learns(task: tasks.Task) -> None:
    indices = torch.tensor([0]) if task.stateful else torch.arange(8)
    batch = task.batch("train", indices)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallLSTM(task)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = task.loss(model(batch.inputs), batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    with torch.no_grad():
        total, weight = task.measure(model(batch.inputs), batch)
    assert weight > 0
    assert torch.isfinite(total)


@pytest.mark.parametrize("name", FREE)
def test_free_tasks(name: str) -> None:
    learns(tasks.load(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in PUBLIC]
)
def test_public_tasks(name: str, load_real: Callable[..., tasks.Task]) -> None:
    learns(load_real(name, **({"train_batch": 2} if name.startswith("ptb") else {})))
