"""Muon on stacked matrices: against its definition, PyTorch's own, single runs and resumed runs."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_training_ensembles import OneBadSeed, Records, build_plain, weights
from test_training_nothing_lost import SignalAt, assert_same_run
from test_training_variants import assert_equal_to_separate_runs
from tiny_tasks import Letters, SignTask, one_sample, tiny_settings
from torch import Tensor, nn

from lipschitz_rnn import tasks
from lipschitz_rnn.stability import certify
from lipschitz_rnn.training import Interrupted, Settings, build_model, fit
from lipschitz_rnn.training.muon import Joined, Muon, orthogonalise
from lipschitz_rnn.training.optimisers import build_optimiser
from lipschitz_rnn.training.preparation import check_start
from lipschitz_rnn.training.special_parameters import hidden_matrices

SHAPES = {"square": (12, 12), "tall": (24, 6), "wide": (6, 24), "one": (1, 1)}
RATE, FACTOR, DECAY = 0.02, 1.5, 0.1


def gradients(shape: tuple[int, int], steps: int, members: int = 3) -> Tensor:
    return torch.randn(steps, members, *shape, generator=torch.Generator().manual_seed(3))


def in_numpy(start: np.ndarray, given: np.ndarray) -> np.ndarray:
    """One matrix after all its gradients, in float64, with the iteration as a polynomial of the singular values."""
    matrix, mean = start.astype(np.float64), np.zeros(start.shape)
    for gradient in given.astype(np.float64):
        mean = 0.95 * mean + 0.05 * gradient
        ahead = 0.05 * gradient + 0.95 * mean
        left, values, right = np.linalg.svd(ahead / np.linalg.norm(ahead), full_matrices=False)
        for _ in range(5):
            values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
        matrix = matrix * (1 - RATE * FACTOR * DECAY)
        matrix = matrix - RATE * FACTOR * 0.2 * np.sqrt(max(start.shape)) * (left * values) @ right
    return matrix


def after_steps(optimiser: Any, parameter: Tensor, given: Tensor) -> Tensor:
    for gradient in given:
        parameter.grad = gradient.clone()
        optimiser.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_equal_the_definition_in_float64(shape: str) -> None:
    """Two parameters of one shape, which share their products, and a rate on the device."""
    given = gradients(SHAPES[shape], steps=4)
    start = torch.randn(2, 3, *SHAPES[shape], generator=torch.Generator().manual_seed(4))
    pair = [nn.Parameter(part.clone()) for part in start]
    optimiser = Muon(pair, torch.tensor(RATE * FACTOR), weight_decay=DECAY)
    for gradient in given:
        pair[0].grad, pair[1].grad = gradient.clone(), -2.0 * gradient
        optimiser.step()
    for parameter, before, sign in zip(pair, start, (1.0, -2.0), strict=True):
        for member in range(3):
            expected = in_numpy(before[member].numpy(), sign * given[:, member].numpy())
            np.testing.assert_allclose(parameter.detach()[member].numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", ["square", "tall", "wide"])
def test_the_direction_is_that_of_pytorch(shape: str) -> None:
    """PyTorch's orthogonalisation rounds to bfloat16; its weight decay is exact."""
    given = gradients(SHAPES[shape], steps=3, members=1)
    start = torch.randn(1, *SHAPES[shape], generator=torch.Generator().manual_seed(5))
    for decay in (0.0, DECAY):
        ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start[0].clone())
        common = {"lr": RATE, "weight_decay": decay}
        moved = after_steps(Muon([ours], **common), ours, given)[0] - start[0]
        reference = torch.optim.Muon([theirs], **common, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        expected = after_steps(reference, theirs, given[:, 0]) - start[0]
        assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.99
        assert float(moved.norm() / expected.norm()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("shape", ["square", "tall", "wide"])
@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e10])
def test_singular_values_of_an_update_are_near_one(shape: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(6)
    left, _, right = torch.linalg.svd(torch.randn(4, *SHAPES[shape], generator=generator), full_matrices=False)
    spread = torch.linspace(1.0, 0.2, left.shape[-1])
    values = torch.linalg.svdvals(orthogonalise(scale * (left * spread) @ right))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_several_matrices_in_one_parameter_move_as_in_parameters_of_their_own() -> None:
    given = gradients((6, 6), steps=3, members=4)
    start = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(8))
    apart, joint = nn.Parameter(start.clone()), nn.Parameter(start.view(2, 2, 6, 6).clone())
    expected = after_steps(Muon([apart], RATE), apart, given)
    assert torch.equal(after_steps(Muon([joint], RATE), joint, given.view(3, 2, 2, 6, 6)).view(4, 6, 6), expected)


def test_a_zero_gradient_moves_nothing_and_no_member_disturbs_another() -> None:
    given = gradients((6, 6), steps=5)
    start = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(7))
    whole, holed = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    zeroed = given.clone()
    zeroed[:, 1] = 0.0
    everything = after_steps(Muon([whole], RATE), whole, given)
    without = after_steps(Muon([holed], RATE), holed, zeroed)
    assert torch.equal(without[1], start[1])
    assert torch.equal(without[[0, 2]], everything[[0, 2]])
    assert not torch.equal(everything[1], start[1])


@pytest.mark.parametrize("value", [torch.zeros(3, 3), torch.zeros(2, 3, 3, dtype=torch.complex64)])
def test_other_parameters_are_refused(value: Tensor) -> None:
    with pytest.raises(ValueError, match=r"shape.*\(networks, rows, columns\).*use Adam"):
        Muon([value], 0.1)


def stacked(settings: Settings, task: Any) -> dict[str, Tensor]:
    return {name: nn.Parameter(p.detach()[None]) for name, p in build_model(settings, task, 0).named_parameters()}


NAMES: Mapping[str, set[str]] = {
    "lipschitz": {"l0.hidden.M_A", "l0.hidden.M_W", "l1.hidden.M_A", "l1.hidden.M_W", "l1.weight_ih"},
    "lstm": {"weight_hh_l0", "weight_hh_l1", "weight_ih_l1"},
    "cornn": {"0.hidden", "1.hidden", "1.input.weight"},
}


@pytest.mark.parametrize("unit", NAMES)
def test_muon_trains_hidden_matrices_and_adam_the_rest(unit: str) -> None:
    settings = tiny_settings(unit=unit, num_layers=2, optimiser="muon", weight_decay=0.01, matrix_rate=3.0)
    parameters = stacked(settings, SignTask())
    found = hidden_matrices(parameters, unit, settings.hidden_size)
    assert {name.removeprefix("unit.").removeprefix("cells.").removeprefix("inner.") for name in found} == NAMES[unit]
    adam = stacked(settings, SignTask())
    optimisers = (
        build_optimiser(settings, parameters),
        build_optimiser(tiny_settings(unit=unit, weight_decay=0.01), adam),
    )
    assert isinstance(optimisers[0], Joined)
    for _ in range(3):
        for values in (parameters, adam):
            for name, value in values.items():
                value.grad = torch.full_like(value, 0.1 * len(name))
        for optimiser in optimisers:
            optimiser.step()
    assert {name for name in parameters if not torch.equal(parameters[name], adam[name])} == set(found)


def test_the_matrix_rate_scales_the_steps_of_hidden_matrices_alone() -> None:
    moved = []
    for factor in (1.0, 3.0):
        settings = tiny_settings(optimiser="muon", matrix_rate=factor)
        parameters = stacked(settings, SignTask())
        before = {name: value.detach().clone() for name, value in parameters.items()}
        for value in parameters.values():
            value.grad = value.detach().cos()
        build_optimiser(settings, parameters).step()
        moved.append({name: value.detach() - before[name] for name, value in parameters.items()})
    for name, step in moved[0].items():
        factor = 3.0 if name == "unit.inner.weight_hh_l0" else 1.0
        torch.testing.assert_close(moved[1][name], factor * step, rtol=1e-5, atol=1e-6)


def test_a_unit_without_a_hidden_matrix_is_refused_before_the_run(tmp_path: Path) -> None:
    settings = tiny_settings(unit="urnn", hidden_size=12, optimiser="muon")
    message = r"'urnn'.*at least 12 × 12.*optimiser='adam'"
    with pytest.raises(ValueError, match=message):
        check_start(settings, SignTask())
    with pytest.raises(ValueError, match=message):
        fit(settings, SignTask(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    only = nn.Parameter(torch.ones(1, 12, 12))
    assert isinstance(build_optimiser(settings, {"unit.matrix": only}), Muon)  # nothing is left for Adam
    others = {
        "unit.small": torch.ones(1, 11, 12),
        "unit.complex": torch.ones(1, 12, 12, dtype=torch.complex64),
        "unit.vector": torch.ones(1, 144),
        "head.weight": only,
    }
    with pytest.raises(ValueError, match="no parameter"):
        build_optimiser(settings, others)


CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "vmap": ({"ensemble": "vmap", "clip": 0.5, "averaging": 0.1}, build_plain, lambda: SignTask(noise=0.3)),
    "sequential": ({"ensemble": "sequential", "weight_decay": 0.1}, build_plain, SignTask),
    "lipschitz": ({"unit": "lipschitz", "num_layers": 2, "matrix_rate": 0.5}, build_model, SignTask),
    "lstm": ({"unit": "lstm", "schedule": "cosine"}, build_model, Letters),
}


@pytest.mark.parametrize("case", CASES)
def test_an_ensemble_equals_its_members_trained_alone(case: str) -> None:
    changes, build, make_task = CASES[case]
    changes = {"task": make_task().name, "optimiser": "muon"} | changes
    together = fit(tiny_settings(seeds=(3, 0, 7), **changes), make_task(), build=build)
    for index, seed in enumerate((3, 0, 7)):
        alone = fit(tiny_settings(seeds=(seed,), **(changes | {"ensemble": "auto"})), make_task(), build=build)
        for name, value in weights(alone, 0).items():
            torch.testing.assert_close(weights(together, index)[name], value, rtol=1e-4, atol=2e-5)
        assert together.seeds[index].test == pytest.approx(alone.seeds[0].test, rel=1e-4, abs=one_sample(make_task()))


def test_variants_train_as_separate_runs_do() -> None:
    variants = ({"beta": 0.5}, {"beta": 0.9, "step_size": 0.3})
    settings = tiny_settings(unit="lipschitz", optimiser="muon", seeds=(3, 0), epochs=2, variants=variants)
    assert_equal_to_separate_runs(settings, SignTask(noise=0.3))


@pytest.mark.parametrize("mode", ["vmap", "sequential"])
def test_a_diverged_member_stays_frozen_and_leaves_the_others_alone(mode: str) -> None:
    settings = tiny_settings(seeds=(0, 1, 2), ensemble=mode, optimiser="muon", weight_decay=0.1)
    broken = fit(settings, OneBadSeed(bad=1), build=build_plain)
    sound = fit(settings, SignTask(), build=build_plain)
    for index in (0, 2):
        assert all(torch.equal(v, weights(sound, index)[k]) for k, v in weights(broken, index).items())
    assert broken.seeds[1].diverged_step == 2
    longer = tiny_settings(seeds=(0, 1, 2), ensemble=mode, optimiser="muon", weight_decay=0.1, epochs=9)
    later = weights(fit(longer, OneBadSeed(bad=1), build=build_plain), 1)
    for name, value in weights(broken, 1).items():
        assert value.isfinite().all()
        assert torch.equal(later[name], value)


@pytest.mark.parametrize("task", [SignTask(noise=0.2), Letters()], ids=["sign", "letters"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, task: Any) -> None:
    settings = tiny_settings(
        task=task.name, unit="lipschitz", optimiser="muon", num_layers=2, seeds=(0, 1), averaging=0.1, matrix_rate=2.0,
        bias_rate=3.0,
    )  # fmt: skip
    with pytest.raises(Interrupted):
        fit(settings, task, tmp_path / "stopped", watcher=SignalAt(7, signal.SIGTERM))
    fit(settings, task, tmp_path / "stopped", resume=True)
    fit(settings, task, tmp_path / "whole")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_settings_of_an_earlier_version_have_the_default_rates() -> None:
    old = tiny_settings().to_dict()
    del old["matrix_rate"], old["bias_rate"]
    assert Settings.from_dict(old) == tiny_settings(matrix_rate=1.0, bias_rate=1.0)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_contracting_network_stays_one_at_any_rate(layers: int) -> None:
    options = {"stability": "contracting", "rate": 0.5, "step_size": 0.1, "bounded_gain": True}
    settings = tiny_settings(
        unit="lipschitz", unit_options=options, num_layers=layers, hidden_size=8, optimiser="muon", learning_rate=0.1,
        matrix_rate=50.0, bias_rate=10.0, epochs=10,
    )  # fmt: skip
    (network,) = fit(settings, SignTask()).models
    certificate = certify(network.unit)
    assert certificate.holds
    assert certificate.rate >= 0.5


def test_it_learns_digits_in_five_epochs() -> None:
    """Twelve seeds reach 0.89 to 0.96; Adam at the same rate 0.81 to 0.91."""
    settings = Settings(
        task="digits", hidden_size=32, epochs=5, batch_size=16, optimiser="muon", learning_rate=0.05, clip=1.0,
        schedule="cosine", unit_options={"step_size": 0.1}, seeds=(0, 1, 2), device="cpu",
    )  # fmt: skip
    result = fit(settings, tasks.load("digits"))
    assert min(seed.validation for seed in result.seeds) > 0.84


def test_a_step_reads_no_value_on_the_host_and_keeps_its_memory() -> None:
    """As a captured step requires. Tensors on the meta device have no values, so reading one is an error."""
    place: dict[str, Any] = {"device": "meta"}
    pair = [nn.Parameter(torch.empty(3, *shape, **place)) for shape in ((8, 8), (16, 8))]
    optimiser = Muon(pair, torch.empty((), **place), weight_decay=DECAY)
    held = []
    for _ in range(2):
        for parameter in pair:
            parameter.grad = torch.empty_like(parameter)
        optimiser.step()
        held.append([id(entry["momentum_buffer"]) for entry in optimiser.state.values()])
    assert len(held[0]) == 2
    assert held[0] == held[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("unit", ["plain", "lipschitz", "lstm"])
def test_a_cuda_graph_trains_what_eager_steps_train(unit: str) -> None:
    build = build_plain if unit == "plain" else build_model
    common: dict[str, Any] = {"optimiser": "muon", "seeds": (0, 1), "device": "cuda", "epochs": 4, "hidden_size": 16}
    common |= {"unit": "rnn" if unit == "plain" else unit, "num_layers": 1 if unit == "plain" else 2}
    common |= {"clip": 0.5, "averaging": 0.1, "schedule": "cosine", "weight_decay": 0.1}
    common |= {"matrix_rate": 2.0, "bias_rate": 3.0}
    seen = Records()
    graphed = fit(tiny_settings(**common, cuda_graph="on"), SignTask(noise=0.2), build=build, watcher=seen)
    eager = fit(tiny_settings(**common, cuda_graph="off"), SignTask(noise=0.2), build=build)
    assert seen.notes == []
    for index in (0, 1):
        for name, value in weights(eager, index).items():
            torch.testing.assert_close(weights(graphed, index)[name], value, rtol=1e-3, atol=1e-4)
