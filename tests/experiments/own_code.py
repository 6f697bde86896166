"""A task, a unit and two models as a user would write them in a module of her own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import lipschitz_rnn as lr
from lipschitz_rnn.tasks import Batch, Split, TaskInfo
from lipschitz_rnn.tasks.base import ACCURACY, Generators
from lipschitz_rnn.tasks.objectives import Classification
from lipschitz_rnn.training import Settings

SIZES = {"train": 64, "validation": 32, "test": 32}


@lr.tasks.register
class Steps(Classification):
    """Does the sequence step up or down? `gap` is the height of the step."""

    info = TaskInfo(
        name="own-steps",
        summary="a step up or down in noise",
        input_size=2,
        output_size=2,
        sequence_length=9,
        readout="last",
        metric=ACCURACY,
        sizes=SIZES,
        source="made up",
        licence="none",
    )
    defaults: ClassVar[dict[str, Any]] = {"hidden_size": 5, "epochs": 2, "batch_size": 16, "learning_rate": 0.02}

    def __init__(self, *, gap: float = 1.0) -> None:
        super().__init__({"gap": gap})
        generator = torch.Generator().manual_seed(3)
        for split, count in SIZES.items():
            labels = torch.arange(count) % 2
            noise = 0.1 * torch.randn(count, 9, 2, generator=generator)
            noise[:, 4:] += gap * (2.0 * labels - 1.0)[:, None, None]
            self._data[f"{split}.x"], self._data[f"{split}.y"] = noise, labels

    def size(self, split: Split) -> int:
        return SIZES[split]

    def batch(self, split: Split, indices: Tensor, generator: Generators = None) -> Batch:
        indices = indices.to(self.device)
        return Batch(self._data[f"{split}.x"][indices].transpose(-3, -2), self._data[f"{split}.y"][indices])

    def preprocessing(self) -> dict[str, float]:
        return {"scale": 1.0, "shift": 0.0}


@lr.units.register("own-leaky", equation="h⁺ = (1 − a) h + a tanh(W h + U x + b)", year=2026)
class Leaky(nn.Module):
    def __init__(self, input_size: int, hidden_size: int, leak: float = 0.5) -> None:
        super().__init__()
        self.leak, self.hidden_size = leak, hidden_size
        self.cell = nn.RNNCell(input_size, hidden_size)

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(x.shape[1], self.hidden_size) if h is None else h[0]
        states = []
        for step in x:
            state = (1.0 - self.leak) * state + self.leak * self.cell(step, state)
            states.append(state)
        return torch.stack(states), state[None]


class Pooled(nn.Module):
    """Any recurrent layer, and the mean of its states read out through a normalisation."""

    def __init__(self, rnn: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.rnn, self.norm, self.out = rnn, nn.LayerNorm(width), nn.Linear(width, classes)
        self.register_buffer("offset", torch.zeros(classes))
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.same = self.out  # one module under two names

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, state: Tensor | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output, last = self.rnn(inputs, state)
        return self.same(self.norm(output.mean(0))) * self.scale + self.offset, last


def lipschitz_model(settings: Settings, task: Steps, seed: int, *, step_size: float = 0.1) -> nn.Module:
    torch.manual_seed(seed)
    size = settings.hidden_size
    rnn = lr.LipschitzRNN(task.input_size, size, stability="contracting", step_size=step_size)
    return Pooled(rnn, size, task.output_size)


def gru_model(settings: Settings, task: Steps, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Pooled(nn.GRU(task.input_size, settings.hidden_size), settings.hidden_size, task.output_size)
