"""Networks that differ in options of their unit train as one ensemble, and each as it would alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tasks import CLOSE, FLOAT64, Letters, SignTask, one_sample, tiny_settings

from lipschitz_rnn import LipschitzRNN
from lipschitz_rnn.training import Result, Settings, build_model, evaluate, fit
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.variation import stackable_options

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "beta": [{"beta": 0.5}, {"beta": 0.75}, {"beta": 1.0}],
    "alpha": [{"alpha": 0.0}, {"alpha": 1.6}],
    "gamma-with-zero": [{"gamma": 0.0}, {"gamma": 0.5}],
    "pairs": [{"beta": [0.6, 0.9], "gamma": 0.0}, {"gamma": [0.8, 0.001]}],
    "step": [{"step_size": 0.05}, {"step_size": 0.3}],
    "initial-scale": [{"init_scale": 0.1}, {"init_scale": 3.0}],
    "noise": [{"noise": 0.0}, {"noise": 0.4, "multiplicative_noise": 0.2, "step_size": 0.3}],
    "mixed": [{}, {"alpha": 0.5, "beta": 0.9, "step_size": 0.2}],
}


def variant_settings(**changes: Any) -> Settings:
    return tiny_settings(**{"unit": "lipschitz", "seeds": (3, 0), "epochs": 2} | changes)


def weights(result: Result, index: int) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in result.models[index].named_parameters()}


def assert_equal_to_separate_runs(settings: Settings, task: Any) -> Result:
    settings = replace(settings, **FLOAT64)
    together = fit(settings, task)
    index = 0
    for variant in settings.variants:
        alone = fit(replace(settings.of_variant(variant), ensemble="auto"), task)
        for member in range(len(settings.seeds)):
            for name, value in weights(alone, member).items():
                torch.testing.assert_close(weights(together, index)[name], value, **CLOSE)
            assert together.seeds[index].variant == variant
            assert together.seeds[index].seed == alone.seeds[member].seed
            assert together.seeds[index].test == pytest.approx(alone.seeds[member].test, rel=1e-4, abs=one_sample(task))
            index += 1
    return together


@pytest.mark.parametrize("mode", ["vmap", "sequential"])
@pytest.mark.parametrize("case", VARIANTS)
def test_variants_train_as_separate_runs_do(case: str, mode: str) -> None:
    settings = variant_settings(variants=VARIANTS[case], ensemble=mode, unit_options={"step_size": 0.1})
    assert_equal_to_separate_runs(settings, SignTask(noise=0.3))


@pytest.mark.parametrize("mode", ["vmap", "sequential"])
def test_variants_of_the_antisymmetric_unit(mode: str) -> None:
    variants = [{"step_size": 0.05}, {"step_size": 0.3, "gamma": 0.1}, {"init_scale": 4.0}]
    settings = variant_settings(unit="antisymmetric", variants=variants, ensemble=mode, unit_options={})
    assert_equal_to_separate_runs(settings, SignTask(noise=0.3))


def test_variants_of_stacked_layers_carry_their_states() -> None:
    options = {"integrator": "midpoint", "step_size": 0.1}
    variants = [{"alpha": 0.5, "beta": 0.6}, {"alpha": 1.5, "step_size": 0.2}]
    settings = variant_settings(variants=variants, num_layers=2, unit_options=options, averaging=0.1, dropout=0.2)
    assert_equal_to_separate_runs(replace(settings, task=Letters().name), Letters())


def test_equal_seeds_start_alike_and_train_differently() -> None:
    settings = variant_settings(variants=[{"beta": 0.5}, {"beta": 0.9}], epochs=0)
    fresh = fit(settings, SignTask())
    assert all(torch.equal(value, weights(fresh, 2)[name]) for name, value in weights(fresh, 0).items())
    trained = fit(replace(settings, epochs=2), SignTask())
    assert not torch.equal(
        weights(trained, 0)["unit.cells.l0.hidden.M_A"], weights(trained, 2)["unit.cells.l0.hidden.M_A"]
    )


def test_the_networks_that_come_out_are_ordinary_ones() -> None:
    settings = variant_settings(variants=[{"alpha": 0.5, "beta": 0.6, "gamma": 0.2}, {"step_size": 0.2}], seeds=(0,))
    task = SignTask()
    result = fit(settings, task)
    unit = result.models[0].unit
    assert isinstance(unit, LipschitzRNN)
    assert (unit.alpha, unit.cell().hidden.skew_W.beta, unit.cell().hidden.skew_W.gamma) == (0.5, 0.6, 0.2)
    assert result.models[1].unit.step_size == 0.2
    plain = build_model(settings.of_variant(settings.variants[0]), task, 0)
    assert plain.state_dict().keys() == result.models[0].state_dict().keys()
    for model, seed in zip(result.models, result.seeds, strict=True):
        assert evaluate(model, task) == pytest.approx(seed.test, abs=one_sample(task))


def test_building_an_ensemble_leaves_its_networks_as_they_are() -> None:
    task = SignTask()
    models = [build_model(variant_settings(unit_options={"beta": beta}), task, 0) for beta in (0.5, 0.8)]
    ensemble = Ensemble(models, "cpu")
    assert [model.unit.cell().hidden.skew_A.beta for model in models] == [0.5, 0.8]
    inputs = torch.randn(6, 4, 2)
    outputs, _, _ = ensemble(ensemble.values, inputs, shared=True)
    for model, output in zip(models, outputs, strict=True):
        torch.testing.assert_close(output, model(inputs)[0])


def test_a_run_cut_off_goes_on_with_its_variants(tmp_path: Path) -> None:
    settings = variant_settings(variants=[{"beta": 0.5}, {"alpha": 0.0, "step_size": 0.2}])
    whole = fit(settings, SignTask(noise=0.3), tmp_path / "whole")
    last = sorted((tmp_path / "whole" / "checkpoints").glob("step-*"))[-1]
    last.unlink()
    resumed = fit(settings, SignTask(noise=0.3), tmp_path / "whole", resume=True)
    assert resumed.seeds == whole.seeds
    assert all(torch.equal(value, weights(resumed, 3)[name]) for name, value in weights(whole, 3).items())
    records = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert all(len(record["accuracy"]) == 4 for record in records if record["kind"] == "validation")


def test_settings_with_variants_survive_a_file() -> None:
    settings = variant_settings(variants=({"beta": (0.5, 0.6)}, {"alpha": 0.0}))
    again = Settings.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings
    assert [member.name for member in again.members] == [
        "beta=[0.5, 0.6], seed 3", "beta=[0.5, 0.6], seed 0", "alpha=0.0, seed 3", "alpha=0.0, seed 0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": [{"integrator": "midpoint"}]}, "integrator.*can vary alpha, beta, gamma, init_scale, multiplic"),
        ({"variants": [{"nonlinearity": "relu"}, {}]}, "nonlinearity.*as its own run"),
        ({"unit": "lstm", "variants": [{"bias": False}]}, "'bias'.*no option that can"),
        ({"variants": [{"beta": 0.5}, {"beta": 0.5}]}, "each once"),
        ({"variants": [{"bta": 0.5}]}, "'bta'.*can vary alpha, beta"),
        ({"variants": [{"beta": 1.5}]}, "beta is 1.5"),
        ({"variants": {"beta": 0.5}}, "list of unit options"),
        (
            {"unit_options": {"stability": "contracting"}, "variants": [{"alpha": 0.5}, {"alpha": 1.0}]},
            "differ in alpha",
        ),
    ],
)
def test_what_cannot_vary_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fit(variant_settings(**changes), SignTask())


def test_networks_of_different_shapes_are_refused() -> None:
    models = [build_model(variant_settings(hidden_size=size), SignTask(), 0) for size in (3, 4)]
    with pytest.raises(ValueError, match="same names and shapes"):
        Ensemble(models, "cpu")


def test_what_a_unit_can_vary_is_found_in_its_modules() -> None:
    model = build_model(variant_settings(), SignTask(), 0)
    varying = ["alpha", "beta", "gamma", "init_scale", "multiplicative_noise", "noise", "step_size"]
    assert stackable_options(model) == varying


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("case", VARIANTS)
def test_variants_on_a_gpu_equal_separate_runs(case: str) -> None:
    settings = variant_settings(variants=VARIANTS[case], device="cuda", cuda_graph="on", hidden_size=16, seeds=(0,))
    together = fit(settings, SignTask(noise=0.3))
    assert together.ensemble == "vmap"
    for index, variant in enumerate(settings.variants):
        alone = fit(settings.of_variant(variant), SignTask(noise=0.3))
        for name, value in weights(alone, 0).items():
            torch.testing.assert_close(weights(together, index)[name], value, rtol=1e-3, atol=1e-4)
