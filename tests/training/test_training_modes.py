"""Evaluating changes no module's mode: a submodule that was frozen in evaluation mode stays so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_tasks import SignTask, tiny_settings
from torch import Tensor, nn

from lipschitz_rnn.robustness import noise_curve
from lipschitz_rnn.robustness.model_calls import evaluation_mode
from lipschitz_rnn.tasks import Batch
from lipschitz_rnn.training import Settings, build_model, evaluate, fit
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.evaluation import evaluate_members


class Recorder(nn.Module):
    """Notes in which mode it was called; copies share the list."""

    seen: list[tuple[str, bool]] = []  # noqa: RUF012 (shared on purpose)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        Recorder.seen.append((self.name, self.training))
        return x


class Mixed(nn.Module):
    """A model with one frozen submodule."""

    def __init__(self, settings: Settings, task: Any, seed: int) -> None:
        super().__init__()
        self.network = build_model(settings, task, seed)
        self.frozen, self.free = Recorder("frozen").eval(), Recorder("free")

    def forward(self, inputs: Tensor, *rest: Any) -> tuple[Tensor, Any]:
        return self.network(self.free(self.frozen(inputs)), *rest)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


class Failing(SignTask):
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_leaves_every_mode_as_it_was(training: bool) -> None:
    model = Mixed(tiny_settings(), SignTask(), 0)
    if not training:
        model.eval()
        model.free.train()
    before = modes(model)
    Recorder.seen.clear()
    evaluate(model, SignTask())
    assert {mode for _, mode in Recorder.seen} == {False}
    assert modes(model) == before
    with pytest.raises(RuntimeError, match="on purpose"):
        evaluate(model, Failing())
    assert modes(model) == before
    noise_curve(model, SignTask(), amounts=(0.0, 0.1), seeds=(0,))
    assert modes(model) == before
    with pytest.raises(RuntimeError, match="stop"), evaluation_mode(model):
        raise RuntimeError("stop")
    assert modes(model) == before


def test_training_goes_on_in_the_modes_of_its_modules() -> None:
    """Validation comes between epochs; a frozen submodule must not wake up after the first one."""
    Recorder.seen.clear()
    fit(tiny_settings(epochs=2, ensemble="sequential"), SignTask(), build=Mixed)
    assert {mode for name, mode in Recorder.seen if name == "frozen"} == {False}
    assert {mode for name, mode in Recorder.seen if name == "free"} == {True, False}


def test_an_ensemble_gives_every_mode_back() -> None:
    settings, task = tiny_settings(seeds=(0, 1)), SignTask()
    ensemble = Ensemble([Mixed(settings, task, seed) for seed in (0, 1)], torch.device("cpu"), "sequential")
    before = modes(ensemble._module.model)
    evaluate_members(ensemble, ensemble.values, task, "validation", settings)
    assert modes(ensemble._module.model) == before
    assert before["frozen"] is False
    assert before["free"] is True
