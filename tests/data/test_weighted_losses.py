"""With weights of classes, the loss of a split is one number, however it is divided into batches."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from lipschitz_rnn import data
from lipschitz_rnn.training import Settings, build_model
from lipschitz_rnn.training.evaluation import score_networks


def made(class_weights: object, labels: int = 3) -> data.SeriesTask:
    generator = np.random.default_rng(0)
    names = ["abc"[min(index % 6, labels - 1)] for index in range(60)]  # the last class is more frequent
    series = data.from_arrays(generator.normal(size=(60, 2, 5)), names)
    return data.SeriesTask(series, "classify", class_weights=class_weights, step_size=0.1, fractions=(0.4, 0.3, 0.3))  # type: ignore[arg-type]


@pytest.mark.parametrize("class_weights", ["none", "balanced", [0.0, 1.0, 5.0]])
def test_the_loss_does_not_depend_on_the_batch_size(class_weights: object) -> None:
    task = made(class_weights)
    settings = Settings(task="series", hidden_size=6, unit_options={"step_size": 0.1}, seeds=(0, 1))
    models = [build_model(settings, task, seed) for seed in settings.seeds]
    batch = task.batch("validation", torch.arange(task.size("validation")))
    expected = [float(task.loss(model(batch.inputs, batch.lengths)[0], batch).detach()) for model in models]
    for size in (1, 2, 5, 1000):
        found = score_networks(models, task, "validation", dataclasses.replace(settings, eval_batch_size=size))
        assert found.loss == pytest.approx(expected, rel=1e-5), size


def test_a_split_without_a_class_that_counts_has_no_loss() -> None:
    task = made([0.0, 1.0], labels=2)
    task._data["goals"].zero_()  # the class whose weight is 0
    settings = Settings(task="series", hidden_size=6, unit_options={"step_size": 0.1}, seeds=(0,))
    found = score_networks([build_model(settings, task, 0)], task, "validation", settings)
    assert math.isnan(found.loss[0])
