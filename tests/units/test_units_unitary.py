"""Units with a complex state: the scan of real pairs gives what the loop over complex numbers gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipschitz_rnn import units
from lipschitz_rnn.ops.modrelu.scan import ModReluScan
from lipschitz_rnn.training import build_model, fit
from lipschitz_rnn.training.ensemble import Ensemble
from lipschitz_rnn.training.model import SequenceModel
from lipschitz_rnn.units.cells import Cell
from lipschitz_rnn.units.constrained import UnitaryCell

UNITARY = ["urnn", "full-urnn", "eurnn", "kronecker"]


def complex_loop(cell: UnitaryCell, inputs: Tensor, *rest: object) -> object:
    """What these units ran before they had a scan of their own."""
    return Cell.scan(cell, torch.complex(*inputs.chunk(2, -1)), *rest)  # type: ignore[arg-type]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The inputs of every scan that runs."""
    seen: list[torch.Size] = []
    apply = ModReluScan.apply
    monkeypatch.setattr(ModReluScan, "apply", lambda inputs, *rest: seen.append(inputs.shape) or apply(inputs, *rest))
    return seen


@pytest.mark.parametrize("name", UNITARY)
def test_values_and_gradients_are_those_of_the_loop(
    name: str,
    build_unit: Callable,
    inputs: Callable[..., Tensor],
    scans: list[torch.Size],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two layers in both directions, from a given state; lengths take the loop by themselves."""
    unit = build_unit(name, 2, 6, num_layers=2, bidirectional=True)
    x = inputs(7, 3, 2).requires_grad_()
    h_0 = torch.complex(inputs(4, 3, 6), inputs(4, 3, 6)).requires_grad_()
    learned = [parameter for parameter_name, parameter in unit.named_parameters() if "start" not in parameter_name]

    def outcome(lengths: Tensor | None = None) -> list[Tensor]:
        output, last = unit(x, h_0, lengths=lengths)
        loss = output.sin().sum() + last.real.sum() + last.imag.square().sum()
        return [output, torch.view_as_real(last), *torch.autograd.grad(loss, [x, h_0, *learned])]

    fast = outcome()
    assert len(scans) == 4
    full = outcome(torch.full((3,), 7))
    assert len(scans) == 4
    monkeypatch.setattr(UnitaryCell, "scan", complex_loop)
    for found, padded, expected in zip(fast, full, outcome(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(padded, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", UNITARY)
def test_parameters_are_contiguous(name: str) -> None:
    """As `torch.nn.utils.parameters_to_vector` and some optimisers need them."""
    unit = units.build(name, 3, 8)
    assert all(parameter.is_contiguous() for parameter in unit.parameters())


@pytest.mark.parametrize("name", UNITARY)
def test_the_learned_start_gets_its_gradient(
    name: str, build_unit: Callable, inputs: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, x = build_unit(name, 2, 5, learn_initial_state=True), inputs(4, 3, 2)
    start = unit.cell().start
    (found,) = torch.autograd.grad(unit(x)[0].sin().sum(), start)
    monkeypatch.setattr(UnitaryCell, "scan", complex_loop)
    (expected,) = torch.autograd.grad(unit(x)[0].sin().sum(), start)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_traced_it_is_the_loop(build_unit: Callable, inputs: Callable[..., Tensor], scans: list[torch.Size]) -> None:
    unit, x = build_unit("urnn", 2, 4), inputs(3, 2, 2)
    expected = unit(x)[0]
    assert len(scans) == 1
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of complex numbers, which a compiler leaves to PyTorch
        compiled = torch.compile(unit, backend="aot_eager")(x)[0]
    torch.testing.assert_close(compiled, expected, rtol=1e-12, atol=1e-12)
    tangent = torch.func.jvp(lambda own: unit(own)[0].sin().sum(), (x,), (torch.ones_like(x),))[1]
    assert len(scans) == 1
    by_gradient = torch.func.grad(lambda own: unit(own)[0].sin().sum())(x).sum()
    torch.testing.assert_close(tangent, by_gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", UNITARY)
def test_an_ensemble_is_one_scan_and_equals_its_members(name: str, scans: list[torch.Size]) -> None:
    models: list[nn.Module] = []
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            models.append(SequenceModel(units.build(name, 2, 6), nn.Linear(12, 3), "all").double())
    ensemble = Ensemble(models, "cpu")
    assert ensemble.mode == "vmap", ensemble.reason
    x = torch.randn(3, 5, 4, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    scans.clear()
    outputs = ensemble(ensemble.values, x)[0]
    assert scans
    parameters = list(ensemble.parameters.values())
    together = torch.autograd.grad(outputs.sin().sum(), parameters)
    for member, model in enumerate(models):
        alone = model(x[member])[0]
        torch.testing.assert_close(outputs[member], alone, rtol=1e-11, atol=1e-11)
        own = torch.autograd.grad(alone.sin().sum(), [dict(model.named_parameters())[n] for n in ensemble.parameters])
        for found, expected in zip(together, own, strict=True):
            torch.testing.assert_close(found[member], expected, rtol=1e-10, atol=1e-11)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are not interpreted; the test below runs them")
@pytest.mark.parametrize("name", UNITARY)
def test_an_ensemble_on_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, here in Triton's interpreter: float32, stacked networks, one kernel there and one back."""
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    from lipschitz_rnn.ops.modrelu import scan
    from lipschitz_rnn.ops.modrelu.triton import launch

    models: list[nn.Module] = []
    for seed in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            models.append(SequenceModel(units.build(name, 1, 6), nn.Linear(12, 3), "last"))
    ensemble = Ensemble(models, "cpu", "vmap")
    x = torch.randn(2, 5, 3, 1, generator=torch.Generator().manual_seed(9))
    parameters = list(ensemble.parameters.values())

    def outcome() -> list[Tensor]:
        outputs = ensemble(ensemble.values, x)[0]
        return [outputs, *torch.autograd.grad(outputs.sin().sum(), parameters)]

    plain, launched = outcome(), []
    run = launch.launch
    monkeypatch.setattr(scan, "_has_kernels", lambda _: True)
    monkeypatch.setattr(
        launch, "launch", lambda kernel, *rest, **options: launched.append(1) or run(kernel, *rest, **options)
    )
    for found, expected in zip(outcome(), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(launched) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("precision", ["float64", "high"])
@pytest.mark.parametrize("name", UNITARY)
def test_they_train_in_a_cuda_graph_as_without(name: str, precision: str) -> None:
    """W and its derivative, with Fourier transforms, exponentials and permutations, are part of the graph.

    In float64 both give the same. In float32, on the kernels, Adam makes the learning rate of any rounding.
    """
    from lipschitz_rnn.experiments.presets import preset_settings
    from lipschitz_rnn.tasks import load

    common = {"unit": name, "hidden_size": 24, "seeds": (0, 1, 2), "epochs": 2, "device": "cuda"}
    networks = []
    for graph in ("on", "off"):
        changes = {**common, "cuda_graph": graph, "learning_rate": 1e-3, "precision": precision}
        result = fit(preset_settings("digits", changes=changes), load("digits"), build=build_model)
        networks.append([value for model in result.models for value in model.state_dict().values()])
    for graphed, eager in zip(*networks, strict=True):
        torch.testing.assert_close(graphed, eager, rtol=0, atol=1e-7 if precision == "float64" else 2e-2)
