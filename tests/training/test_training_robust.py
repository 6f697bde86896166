"""Training for a certified radius: what the terms of the loss are, and that they enlarge the radius."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_tasks import NextValue, SignTask

from lipschitz_rnn.stability import certified_radius
from lipschitz_rnn.training import Moment, Settings, fit
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.model import SequenceModel, build_model
from lipschitz_rnn.training.robust import Robust, kernel_norm
from lipschitz_rnn.training.schedules import robust_share, why_not_longer

OPTIONS: dict[str, Any] = {"stability": "contracting", "step_size": 0.2, "rate": 0.05}


def settings(**changes: Any) -> Settings:
    usual: dict[str, Any] = {"task": "sign", "unit_options": OPTIONS, "hidden_size": 6, "epochs": 12, "batch_size": 16}
    return Settings(**{**usual, "learning_rate": 0.02, **changes})


def model_of(seed: int = 0, **changes: Any) -> SequenceModel:
    return build_model(settings(**changes), SignTask(), seed)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_gain_in_training_bounds_the_certified_one(layers: int) -> None:
    """It takes the guaranteed factor and Frobenius norms, so it is above; not by much."""
    model = model_of(num_layers=layers).double()
    x = torch.randn(30, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    proved = certified_radius(model, x, method="global").gain
    used = float(model.score_gains(30).detach()[0, 1])
    assert float(proved.max()) <= used <= 3 * float(proved.max())


def test_the_kernel_of_a_stack_is_the_convolution_of_its_layers() -> None:
    one = 0.9 ** np.arange(40)
    two = np.convolve(one, one)[:40]
    assert np.isclose(kernel_norm(0.9, 40, 1), np.linalg.norm(one))
    assert np.isclose(kernel_norm(0.9, 40, 2), np.linalg.norm(two))
    assert np.isclose(kernel_norm(0.9, 40, 3), np.linalg.norm(np.convolve(two, one)[:40]))


def test_all_members_have_their_own_gains_in_both_modes() -> None:
    models = [model_of(seed) for seed in range(3)]
    together, apart = (Ensemble(models, "cpu", mode, SignTask()) for mode in ("vmap", "sequential"))
    expected = torch.stack([model.score_gains(6) for model in models])
    for ensemble in (together, apart):
        found = ensemble.score_gains(ensemble.values, 6)
        assert torch.allclose(found, expected, rtol=1e-6)
        found.sum().backward()
    gradients = [p.grad for p in apart.parameters.values() if p.grad is not None]
    assert len(gradients) == 3  # of U, of the metric and of the head
    assert all(bool(g.isfinite().all()) and bool(g.abs().sum() > 0) for g in gradients)


def test_wrong_scores_are_raised_by_the_margin_and_by_radius_times_gain() -> None:
    outputs = torch.tensor([[[1.0, 2.0, 3.0]]])
    targets = torch.tensor([[1]])
    gains = torch.tensor([[[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]])
    raised, extra = Robust(margin=0.5, radius=0.1, gain_penalty=2.0).terms(outputs, targets, lambda steps: gains, 5)
    assert torch.allclose(raised, torch.tensor([[[1.0 + 0.5 + 0.1, 2.0, 3.0 + 0.5 + 0.4]]]))
    assert torch.allclose(extra, torch.tensor([2.0 * (1 + 4 + 16) * 2 / 6]))
    raised, extra = Robust(head_penalty=3.0).terms(outputs, targets, lambda steps: gains + steps, 5)
    assert torch.equal(raised, outputs)
    assert torch.allclose(extra, torch.tensor([3.0 * 42 / 6]))  # of the head alone: zero steps


def median_radius(folder: Path, **changes: Any) -> float:
    task = SignTask()
    result = fit(settings(**changes), task, folder)
    batch = task.batch("test", torch.arange(16))
    found = certified_radius(result.models[0], batch.inputs)
    return float(found.radius.where(found.prediction == batch.targets, 0.0).median())


@pytest.mark.parametrize(
    "changes", [{"train_radius": 0.5}, {"margin": 3.0, "gain_penalty": 0.5}], ids=["radius", "margin and penalty"]
)
def test_it_enlarges_the_certified_radius(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain = median_radius(tmp_path / "plain")
    assert median_radius(tmp_path / "robust", **changes) > 1.15 * plain


def test_seeds_trained_together_equal_those_trained_alone(tmp_path: Path) -> None:
    given = settings(seeds=(0, 1), epochs=2, train_radius=0.1, margin=0.5, gain_penalty=0.01, head_penalty=0.01)
    both = fit(given, SignTask(), tmp_path / "both").models
    alone = fit(dataclasses.replace(given, seeds=(1,)), SignTask(), tmp_path / "alone").models[0]
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(both[1].state_dict()[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit_options": {}, "train_radius": 0.1}, r"train_radius is 0\.1, but only a contracting unit has a gain"),
        ({"unit": "lstm", "unit_options": {}, "gain_penalty": 1.0}, "gain_penalty is 1, but only a contracting unit"),
        ({"unit_options": {}, "head_penalty": 1.0}, "-u stability=contracting"),
    ],
)
def test_other_units_have_no_gain(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(settings(**changes), SignTask(), tmp_path / "run")


def test_a_margin_is_for_classes_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"margin is 1, but .* does not have one class per sequence"):
        fit(settings(task="next-value", margin=1.0), NextValue(), tmp_path / "run")
    fit(settings(unit_options={}, margin=1.0, epochs=1), SignTask(), tmp_path / "free")  # any unit may have a margin
    with pytest.raises(ValueError, match=r"margin is -1\.0; it must be at least 0"):
        settings(margin=-1.0)


def test_a_ramp_raises_all_terms_from_nothing_to_their_full_size() -> None:
    torch.manual_seed(0)
    robust = Robust(margin=0.7, radius=0.3, gain_penalty=0.2)
    outputs, targets = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    own = torch.rand(2, 3, 3, dtype=torch.float64)
    whole, penalty = robust.terms(outputs, targets, lambda steps: own, 4)
    for share in (0.0, 0.25, 1.0):
        raised, extra = robust.terms(outputs, targets, lambda steps: own, 4, torch.tensor(share))
        torch.testing.assert_close(raised, outputs + share * (whole - outputs))
        torch.testing.assert_close(extra, share * penalty)
    shares = [robust_share(settings(robust_ramp=0.5, epochs=4), step, steps_per_epoch=5) for step in range(20)]
    assert shares == [step / 10 for step in range(10)] + [1.0] * 10
    assert robust_share(settings(), 0, 5) == 1.0
    assert why_not_longer(settings(robust_ramp=0.5)) is not None


def test_a_ramp_changes_the_run_and_a_resumed_one_equals_it(tmp_path: Path) -> None:
    asked = settings(train_radius=0.1, robust_ramp=1.0, epochs=3)
    whole = fit(asked, SignTask(), tmp_path / "whole")
    sudden = fit(dataclasses.replace(asked, robust_ramp=0.0), SignTask())
    assert not torch.equal(*(result.models[0].head.weight for result in (whole, sudden)))

    def stop(networks: object, moment: Moment) -> dict[str, list[float]]:
        if moment.epoch == 1:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        fit(asked, SignTask(), tmp_path / "resumed", probe=stop)
    assert fit(asked, SignTask(), tmp_path / "resumed", resume=True).seeds == whole.seeds


def test_a_ramp_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"robust_ramp is 0\.5, but none of margin, train_radius"):
        fit(settings(robust_ramp=0.5), SignTask())
    for wrong in (float("nan"), float("inf"), "0.5", True):
        with pytest.raises((ValueError, TypeError), match="robust_ramp is"):
            settings(train_radius=0.1, robust_ramp=wrong)
