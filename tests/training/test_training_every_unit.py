"""Every unit of the registry trains with dropout on what the head reads and between its layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_tasks import Letters, SignTask, tiny_settings
from torch import nn

from lipschitz_rnn import units
from lipschitz_rnn.training import SequenceModel, Settings, fit
from lipschitz_rnn.training.model import Shapes

SIZE = 4  # of the state: some units ask for an even one


def two_directions(settings: Settings, task: Shapes, seed: int) -> SequenceModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        options = {"bidirectional": True, "num_layers": settings.num_layers, "dropout": 0.25}
        unit = units.build(settings.unit, task.input_size, settings.hidden_size, **options)
        return SequenceModel(unit, nn.Linear(unit.output_size, task.output_size), task.readout)


@pytest.mark.parametrize("unit", units.available())
def test_dropout_has_the_width_that_the_head_reads(unit: str) -> None:
    """2N for a complex state, and again twice that for two directions."""
    settings = tiny_settings(
        unit=unit, hidden_size=SIZE, num_layers=2, dropout=0.5, epochs=1, batch_size=48, seeds=(0, 1),
        unit_options={"dropout": 0.25},
    )  # fmt: skip
    result = fit(settings, SignTask())
    assert all(seed.diverged_step is None for seed in result.seeds)
    result = fit(replace(settings, unit_options={}), SignTask())  # without random draws of its own: all seeds at once
    assert result.ensemble == ("vmap" if units.info(unit).ensembles else "sequential")
    assert all(seed.diverged_step is None for seed in result.seeds)
    result = fit(settings, SignTask(), build=two_directions)
    assert all(seed.diverged_step is None for seed in result.seeds)


@pytest.mark.parametrize("unit", ["urnn", "kronecker", "lipschitz", "lstm"])
def test_dropout_at_every_step_of_a_stateful_task(unit: str) -> None:
    settings = tiny_settings(task="letters", unit=unit, hidden_size=SIZE, num_layers=2, dropout=0.5, epochs=1)
    assert fit(settings, Letters()).seeds[0].diverged_step is None
