"""Every unit learns: a small problem always, and in the full tests the table of docs/units.md, trained anew."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor, nn
from units_learn import settings_of, train

from lipschitz_rnn import tasks, units
from lipschitz_rnn.training import Settings, build_model, fit

SAMPLE = ("lipschitz", "residual")  # trained as in the table by `make test` too
RATES = {"irnn": 0.02, "nais": 0.02, "residual": 0.01}  # for 5 epochs; their own ones are for many, or another task


class FixedHead(nn.Module):
    """A readout that stays as drawn. With one that learns, random features of a unit alone read up to nine of ten."""

    def __init__(self, drawn: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", 3.0 * drawn.weight.detach())
        self.register_buffer("bias", drawn.bias.detach().clone())

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight, self.bias)


def build(settings: Settings, task: tasks.Task, seed: int) -> nn.Module:
    model = build_model(settings, task, seed)
    model.head = FixedHead(model.head)
    return model


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] if place % 2 else []) for place, name in enumerate(units.available())],
)
def test_the_unit_alone_learns_images_row_by_row(name: str) -> None:
    """Eight steps of eight pixels through a readout that does not learn: 65 to 95 % after less than a second."""
    settings = settings_of(name)
    small = {"task": "digits", "task_options": {"steps": 8}, "epochs": 5, "batch_size": 32, "hidden_size": 32}
    settings = replace(settings, learning_rate=RATES.get(name, settings.learning_rate), **small)
    (seed,) = fit(settings, tasks.load("digits", steps=8), build=build).seeds
    assert seed.test is not None, f"diverged at step {seed.diverged_step}"
    assert seed.test >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.full) for name in units.available()]
)
def test_learns(name: str, record_property: Callable[[str, object], None]) -> None:
    """At least 80 % on digits, or half of the error of guessing the mean on adding: on the test split, read once."""
    reached = train(name)
    row = "  ".join(f"{cell:{width}}" for cell, width in zip(reached.cells(), (21, 6, 6, 6, 0), strict=True))
    record_property("unit reached", f"{row}  ({reached.seconds:.0f} s)")
    assert reached.learned, row
