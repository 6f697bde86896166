"""Training with noise on states: members equal lone runs, resumed runs equal uninterrupted ones."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_ensembles import weights
from test_training_nothing_lost import SignalAt, assert_same_run
from tiny_tasks import CLOSE, FLOAT64, Letters, NextValue, SignTask, one_sample, tiny_settings

from lipschitz_rnn.training import Interrupted, Settings, build_model, evaluate, fit
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.streams import Shard, Stream

NOISE = {"noise": 0.3, "multiplicative_noise": 0.2}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "vmap": ({"unit": "lipschitz", "ensemble": "vmap", "dropout": 0.3}, lambda: SignTask(noise=0.3)),
    "sequential": ({"unit": "lipschitz", "ensemble": "sequential", "num_layers": 2}, lambda: SignTask(noise=0.3)),
    "lengths": ({"unit": "lipschitz", "ensemble": "vmap", "num_layers": 2}, NextValue),
    "carried-state": ({"unit": "antisymmetric", "ensemble": "vmap"}, Letters),
    **{
        unit: ({"unit": unit, "ensemble": "vmap"}, SignTask)
        for unit in ("lem", "cornn", "nais", "neural-ode", "residual", "antisymmetric-gated", "lipschitz-gated")
    },
}


def noisy(**changes: Any) -> Settings:
    return tiny_settings(**({"unit_options": NOISE, "epochs": 2} | changes))


@pytest.mark.parametrize("case", CASES)
def test_an_ensemble_equals_its_members_trained_alone(case: str) -> None:
    changes, make_task = CASES[case]
    changes = {"task": make_task().name} | FLOAT64 | changes
    together = fit(noisy(seeds=(3, 0), **changes), make_task())
    assert together.ensemble == changes["ensemble"]
    for index, seed in enumerate((3, 0)):
        alone = fit(noisy(seeds=(seed,), **(changes | {"ensemble": "auto"})), make_task())
        for name, value in weights(alone, 0).items():
            torch.testing.assert_close(weights(together, index)[name], value, **CLOSE)
        assert together.seeds[index].test == pytest.approx(alone.seeds[0].test, rel=1e-4, abs=one_sample(make_task()))
    quiet = fit(tiny_settings(**(changes | {"seeds": (3,), "epochs": 2, "ensemble": "auto"})), make_task())
    assert any(not torch.allclose(value, weights(together, 0)[name]) for name, value in weights(quiet, 0).items())


@pytest.mark.parametrize("mode", ["vmap", "sequential"])
def test_strengths_vary_within_one_run(mode: str) -> None:
    """A member without noise is the run without the option, beside members with it; steps may differ too."""
    variants = [{"noise": 0.0}, {"noise": 0.4, "step_size": 0.3}, {"multiplicative_noise": 0.5}]
    common: dict[str, Any] = {"unit": "lipschitz", "seeds": (2,), "epochs": 2, "dropout": 0.3} | FLOAT64
    settings = tiny_settings(variants=variants, ensemble=mode, **common)
    together = fit(settings, SignTask(noise=0.3))
    for index, variant in enumerate(({}, *variants[1:])):
        alone = fit(replace(settings.of_variant(variant), ensemble="auto"), SignTask(noise=0.3))
        for name, value in weights(alone, 0).items():
            torch.testing.assert_close(weights(together, index)[name], value, **CLOSE)


def test_zero_noise_trains_bit_for_bit_as_without_the_option() -> None:
    common: dict[str, Any] = {"unit": "lipschitz", "seeds": (0, 1), "epochs": 2}
    plain = fit(tiny_settings(**common), SignTask(noise=0.3))
    zero = fit(tiny_settings(**common, unit_options={"noise": 0.0, "multiplicative_noise": 0.0}), SignTask(noise=0.3))
    for index in (0, 1):
        assert all(torch.equal(value, weights(zero, index)[name]) for name, value in weights(plain, index).items())


@pytest.mark.parametrize("task", [lambda: SignTask(noise=0.2), Letters], ids=["sign", "letters"])
def test_resumed_equals_uninterrupted(tmp_path: Path, task: Any) -> None:
    settings = noisy(task=task().name, unit="lipschitz", seeds=(0, 1), epochs=3, dropout=0.2)
    with pytest.raises(Interrupted):
        fit(settings, task(), tmp_path / "stopped", watcher=SignalAt(5, signal.SIGTERM))
    fit(settings, task(), tmp_path / "stopped", resume=True)
    fit(settings, task(), tmp_path / "whole")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_evaluation_adds_none_and_members_come_back_with_seeds_of_their_own() -> None:
    settings, task = noisy(unit="lipschitz"), SignTask()
    model = build_model(settings, task, 0)
    state = torch.get_rng_state()
    assert evaluate(model, task) == evaluate(model.eval(), task) == evaluate(build_model(settings, task, 0), task)
    assert torch.equal(torch.get_rng_state(), state)
    ensemble = Ensemble([build_model(settings, task, seed) for seed in (0, 1)], "cpu")
    assert ensemble.noisy_cells == 1
    assert not any("noise" in name for name in ensemble.values)
    for member in ensemble.members():
        member.train()
        x = torch.zeros(4, 3, 2)
        assert not torch.allclose(member(x)[0], member(x)[0])


def test_seeds_come_from_each_members_own_generator() -> None:
    def draws(seeds: tuple[int, ...], shard: Shard) -> list[torch.Tensor]:
        stream = Stream(tiny_settings(seeds=seeds, batch_size=15), SignTask(), torch.device("cpu"), shard, None, 2)
        stream.begin_epoch()
        found = []
        for step in range(2):
            stream.draw(step)
            found.append(stream.draw_noise_seeds())
        return found

    first, second = draws((3, 0), Shard())
    assert first.shape == (2, 2, 2)
    assert len({*first[..., 0].flatten().tolist(), *second[..., 0].flatten().tolist()}) == 8
    torch.testing.assert_close(draws((0,), Shard())[1][0], second[1], rtol=0, atol=0)
    starts = [draws((3, 0), Shard(rank, 4))[0] for rank in range(4)]
    assert [int(seeds[0, 0, 1]) for seeds in starts] == [0, 4, 8, 12]  # 15 samples in parts of 4, 4, 4 and 3
    assert all(torch.equal(seeds[..., 0], first[..., 0]) for seeds in starts)
