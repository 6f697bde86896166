"""An ensemble of seeds equals its members trained alone, and one that fails leaves the others alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_tasks import CLOSE, FLOAT64, Letters, NextValue, SignTask, one_sample, tiny_settings
from torch import nn

from lipschitz_rnn.tasks import Task
from lipschitz_rnn.training import Diverged, Result, Settings, Watcher, build_model, evaluate, fit
from lipschitz_rnn.training.ensemble import Ensemble


class Records(Watcher):
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def record(self, record: Any) -> None:
        self.records.append(dict(record))

    def note(self, message: str) -> None:
        self.notes.append(message)


class PlainCell(nn.Module):
    """h⁺ = tanh(W h + U x) with ordinary operations, which vmap can transform."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.inward, self.onward = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.new_zeros(x.shape[1], self.onward.out_features) if state is None else state[0]
        outputs = []
        for drive in self.inward(x).unbind(0):
            h = torch.tanh(drive + self.onward(h))
            outputs.append(h)
        return torch.stack(outputs), h.unsqueeze(0)


def build_plain(settings: Settings, task: Task, seed: int) -> nn.Module:
    model = build_model(settings, task, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.unit = PlainCell(task.input_size, settings.hidden_size)
    return model


def weights(result: Result, index: int) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in result.models[index].named_parameters()}


CASES = {
    "vmap": ({"ensemble": "vmap"}, build_plain, lambda: SignTask(noise=0.3)),
    "sequential": ({"ensemble": "sequential"}, build_plain, lambda: SignTask(noise=0.3)),
    "clip-sgd": ({"ensemble": "vmap", "optimiser": "sgd", "clip": 0.05}, build_plain, SignTask),
    "rmsprop-average": ({"ensemble": "vmap", "optimiser": "rmsprop", "averaging": 0.05}, build_plain, SignTask),
    "dropout": ({"ensemble": "vmap", "dropout": 0.4}, build_plain, SignTask),
    "embedding-dropout": (
        {"unit": "lipschitz", "ensemble": "vmap", "dropout": 0.2, "embedding_dropout": 0.3},
        build_model,
        Letters,
    ),
    "lengths": ({"ensemble": "vmap"}, build_plain, NextValue),
    "carried-state": ({"ensemble": "vmap", "clip": 1.0}, build_plain, Letters),
    "lipschitz": ({"unit": "lipschitz", "ensemble": "vmap"}, build_model, NextValue),
    "lipschitz-carried": (
        {"unit": "lipschitz", "ensemble": "vmap", "num_layers": 2, "unit_options": {"integrator": "midpoint"}},
        build_model,
        Letters,
    ),
    "lstm": ({"unit": "lstm"}, build_model, Letters),
    "unit-dropout": (
        {"unit": "gru", "num_layers": 2, "unit_options": {"dropout": 0.5}},
        build_model,
        lambda: SignTask(noise=0.3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_ensemble_equals_its_members_trained_alone(case: str) -> None:
    changes, build, make_task = CASES[case]
    changes = {"task": make_task().name} | FLOAT64 | changes
    together = fit(tiny_settings(seeds=(3, 0, 7), **changes), make_task(), build=build)
    for index, seed in enumerate((3, 0, 7)):
        alone = fit(tiny_settings(seeds=(seed,), **(changes | {"ensemble": "auto"})), make_task(), build=build)
        for name, value in weights(alone, 0).items():
            torch.testing.assert_close(weights(together, index)[name], value, **CLOSE)
        assert together.seeds[index].test == pytest.approx(alone.seeds[0].test, rel=1e-4, abs=one_sample(make_task()))
    assert not torch.equal(weights(together, 0)["head.weight"], weights(together, 1)["head.weight"])


def test_members_in_one_call_and_one_after_another_agree() -> None:
    task = SignTask(noise=0.3)
    fast = fit(tiny_settings(seeds=(0, 1), ensemble="vmap", **FLOAT64), task, build=build_plain)
    slow = fit(tiny_settings(seeds=(0, 1), ensemble="sequential", **FLOAT64), task, build=build_plain)
    assert (fast.ensemble, slow.ensemble) == ("vmap", "sequential")
    for name, value in weights(fast, 1).items():
        torch.testing.assert_close(value, weights(slow, 1)[name], **CLOSE)


def test_auto_says_why_it_runs_one_after_another() -> None:
    models = [build_model(tiny_settings(unit="lstm"), SignTask(), seed) for seed in (0, 1)]
    ensemble = Ensemble(models, "cpu")
    assert ensemble.mode == "sequential"
    assert ensemble.reason
    with pytest.raises(ValueError, match="sequential"):
        Ensemble(models, "cpu", "vmap")


class OneBadSeed(SignTask):
    """Member 1 meets an infinite input at its third step; the others never do."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def batch(self, split: Any, indices: torch.Tensor, generator: Any = None) -> Any:
        batch = super().batch(split, indices, generator)
        if split == "train":
            self.calls += 1
            if self.calls == 3:
                batch.inputs[self.bad] = torch.nan
        return batch


@pytest.mark.parametrize("mode", ["vmap", "sequential"])
def test_a_diverged_member_stops_without_disturbing_the_others(mode: str) -> None:
    settings = tiny_settings(seeds=(0, 1, 2), ensemble=mode, clip=1.0, averaging=0.1)
    seen = Records()
    broken = fit(settings, OneBadSeed(bad=1), build=build_plain, watcher=seen)
    sound = fit(settings, SignTask(), build=build_plain)
    for index in (0, 2):
        assert all(torch.equal(v, weights(sound, index)[k]) for k, v in weights(broken, index).items())
        assert broken.seeds[index] == sound.seeds[index]
    assert broken.seeds[1].diverged_step == 2
    assert broken.seeds[1].selected_epoch is None
    assert all(value.isfinite().all() for value in weights(broken, 1).values())
    event = next(record for record in seen.records if record["kind"] == "diverged")
    assert (event["seed"], event["step"], event["gradient_norm"]) == (1, 2, None)
    assert "seed 1" in seen.notes[0]
    assert "step 2" in seen.notes[0]
    assert seen.records[-2]["kind"] == "validation"
    later = [record for record in seen.records if record["kind"] == "train"][-1]
    assert later["loss"][1] is None
    assert later["loss"][0] is not None


def test_a_lone_run_that_diverges_ends_with_step_and_norm() -> None:
    with pytest.raises(Diverged, match=r"step 2 \(gradient norm nan\).*checkpoint"):
        fit(tiny_settings(), OneBadSeed(bad=0), build=build_plain)


def test_training_leaves_the_global_generator_and_precision_alone() -> None:
    state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    settings = tiny_settings(unit="gru", num_layers=2, unit_options={"dropout": 0.5}, precision="high", dropout=0.1)
    fit(settings, SignTask(noise=0.1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize(("optimiser", "precision"), [("adam", "float64"), ("sgd", "bfloat16"), ("adamw", "medium")])
def test_other_precisions_train(optimiser: str, precision: str) -> None:
    seen = Records()
    settings = tiny_settings(unit="gru", optimiser=optimiser, precision=precision, epochs=8, weight_decay=1e-4)
    result = fit(settings, SignTask(), watcher=seen)
    losses = [record["loss"][0] for record in seen.records if record["kind"] == "train"]
    assert losses[-1] < losses[0]
    expected = torch.float64 if precision == "float64" else torch.float32
    assert weights(result, 0)["head.weight"].dtype == expected


def test_selection_takes_the_best_validation_epoch_and_tests_both() -> None:
    seen = Records()
    result = fit(tiny_settings(unit="lstm", epochs=6, learning_rate=0.05, seeds=(0, 1)), SignTask(), watcher=seen)
    curves = [record["accuracy"] for record in seen.records if record["kind"] == "validation"]
    task = SignTask()
    for index, seed in enumerate(result.seeds):
        mine = [values[index] for values in curves]
        assert seed.validation == max(mine)
        assert seed.selected_epoch == max(epoch for epoch, value in enumerate(mine) if value == max(mine))
        assert seed.test == pytest.approx(evaluate(result.models[index], task, "test"), abs=one_sample(task))
        again = evaluate(result.models[index], task, "validation", batch_size=3)
        assert again == pytest.approx(seed.validation, abs=one_sample(task))  # both splits have 16 samples
    assert [record["kind"] for record in seen.records].count("test") == 1
