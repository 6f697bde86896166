"""Two epochs on a small slice of every task lower the loss, for the Lipschitz unit and for an LSTM."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from test_training_ensembles import Records
from torch import Tensor

from lipschitz_rnn import tasks
from lipschitz_rnn.experiments.presets import preset_settings
from lipschitz_rnn.tasks import Batch, Split, Task
from lipschitz_rnn.training import build_model, fit
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.evaluation import evaluate_members

GENERATED = {
    "digits": {},
    "adding": {"length": 40, "train_size": 64, "eval_size": 8},
    "copying": {"delay": 10, "train_size": 64, "eval_size": 8},
    "pendulum": {"train_size": 64, "eval_size": 8},
    "irregular-digits": {"times": "input"},  # which an LSTM can take too
    "irregular-pendulum": {"train_size": 64, "eval_size": 8, "times": "input"},
}
FROM_FILES: dict[str, dict[str, Any]] = {
    "ordered-mnist": {},
    "permuted-mnist": {},
    "rows-mnist": {},
    "ordered-cifar10": {},
    "noise-padded-cifar10": {"augment": False},
    "timit-sample": {},
    "spoken-digits": {},
    "ptb-char": {"length": 150, "train_batch": 8, "eval_batch": 2},
    "ptb-word": {"length": 20, "train_batch": 4, "eval_batch": 2},
}


class Slice(Task):
    """The first training samples of a task, in all three splits."""

    def __init__(self, whole: Task, count: int) -> None:
        self.info = whole.info  # type: ignore[misc]
        self.__dict__.update(whole.__dict__)
        self.whole, self.count = whole, count

    def size(self, split: Split) -> int:
        return self.count

    def batch(self, split: Split, indices: Tensor, generator: Any = None) -> Batch:
        return self.whole.batch("train", indices, generator)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.whole.loss(outputs, batch)

    def measure(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.whole.measure(outputs, batch)


def check_learning(name: str, **options: Any) -> None:
    whole = tasks.load(name, offline=True, **options)
    task = Slice(whole, 4 if whole.stateful else 32)
    for unit in ("lipschitz", "lstm"):
        changes = {"unit": unit, "hidden_size": 12, "epochs": 2, "batch_size": 8, "optimiser": "adam", "seeds": (1,)}
        changes |= {"learning_rate": 0.005, "schedule": "constant", "device": "cpu", "task_options": options}
        settings = preset_settings(name, changes=changes)
        model = build_model(settings, task, 1)
        ensemble = Ensemble([model], "cpu")
        before = evaluate_members(ensemble, ensemble.values, task, "train", settings).loss[0]
        seen = Records()
        fit(settings, task, watcher=seen)
        after = [record["loss"][0] for record in seen.records if record["kind"] == "validation"]
        assert len(after) == 2
        assert after[-1] < before, f"{name}, {unit}: {before} -> {after}"


@pytest.mark.parametrize("name", GENERATED)
def test_generated_tasks_are_learned(name: str) -> None:
    check_learning(name, **GENERATED[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FROM_FILES)
def test_tasks_from_files_are_learned(name: str, read_once: None) -> None:
    if "LIPSCHITZ_RNN_DATA" not in os.environ:
        pytest.skip("LIPSCHITZ_RNN_DATA is not set: training on the real data sets is not checked")
    check_learning(name, **FROM_FILES[name])


def test_every_task_is_checked() -> None:
    assert {*GENERATED, *FROM_FILES, "timit"} == set(tasks.available())  # timit: licensed, same code as its sample
    assert torch.get_num_threads() == 1
