"""Orthogonal units: the exponential that a CUDA graph can hold, a rate of their own for W, constraints in full."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lipschitz_rnn import units
from lipschitz_rnn.training import build_model, fit
from lipschitz_rnn.units import matrices
from lipschitz_rnn.units.cells import CellStack, _full_precision

ORTHOGONAL = ("exprnn", "dtriv", "scornn")


def skew_of_norm(size: int, norm: float, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    M = torch.randn(3, size, size, dtype=dtype, generator=generator)
    K = M - M.mH
    return norm * K / torch.linalg.matrix_norm(K, 2)[:, None, None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("norm", "error"), [(0.0, 1e-15), (0.3, 1e-14), (5.0, 1e-13), (20.0, 1e-12), (40.0, 1e-8)])
def test_the_exponential_that_looks_at_no_value_is_the_exponential(
    norm: float, error: float, dtype: torch.dtype
) -> None:
    K = skew_of_norm(12, norm, dtype)
    found = matrices.exponential_by_series(K)
    torch.testing.assert_close(found, torch.matrix_exp(K), rtol=0, atol=error)
    torch.testing.assert_close(found @ found.mH, torch.eye(12, dtype=dtype).expand(3, -1, -1), rtol=0, atol=error)


def test_its_gradient_is_that_of_the_exponential() -> None:
    K = skew_of_norm(7, 3.0, torch.float64)
    cotangent = torch.randn(K.shape, dtype=K.dtype, generator=torch.Generator().manual_seed(1))
    gradients = []
    for function in (torch.matrix_exp, matrices.exponential_by_series):
        leaf = K.clone().requires_grad_()
        gradients.append(torch.autograd.grad(function(leaf), leaf, cotangent)[0])
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


def test_in_float32_it_stays_orthogonal() -> None:
    W = matrices.exponential_by_series(skew_of_norm(128, 8.0, torch.float32))
    assert float((W @ W.mT - torch.eye(128)).abs().max()) < 5e-6


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_a_relative_rate_changes_the_rate_of_the_matrix_and_not_where_it_starts(name: str) -> None:
    moved = []
    for options in ({}, {"relative_rate": 0.1}):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            unit = units.build(name, 2, 8, **options)
        cell: Any = unit.cell()
        start = cell.hidden_matrix().detach().clone()
        optimiser = torch.optim.Adam(unit.parameters(), lr=1e-4)
        unit(torch.rand(5, 3, 2, generator=torch.Generator().manual_seed(2)))[0].sum().backward()
        optimiser.step()
        moved.append((start, cell.hidden_matrix().detach() - start, cell.bias.detach()))
    (start, step, bias), (same_start, slow_step, same_bias) = moved
    torch.testing.assert_close(same_start, start, rtol=0, atol=1e-6)
    torch.testing.assert_close(slow_step, 0.1 * step, rtol=0.05, atol=1e-6)
    torch.testing.assert_close(same_bias, bias)  # the others go at the full rate


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_rate_is_named(rate: float) -> None:
    with pytest.raises(ValueError, match="relative_rate is"):
        units.build("exprnn", 1, 4, relative_rate=rate)


class NoFloat32Products(TorchDispatchMode):
    """Refuses what PyTorch might round."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if "mm" in name.split("_")[0] or name.startswith(("linalg_solve", "linalg_matrix_exp", "mv")):
            assert args[-1].dtype not in (torch.float32, torch.complex64), f"{name} in float32"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [name for name in units.available() if isinstance(units.build(name, 2, 4), CellStack)])
def test_matrices_are_made_in_full_precision_at_every_setting(name: str) -> None:
    cell = units.build(name, 2, 4).cell()
    exact = tree_leaves(copy.deepcopy(cell).double().weights())
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with NoFloat32Products():
            with _full_precision(torch.device("cpu")):
                found = tree_leaves(cell.weights())
            made = [tensor for tensor in found if isinstance(tensor, Tensor) and tensor.requires_grad]
            torch.autograd.backward([tensor.abs().square().sum() for tensor in made])
    finally:
        torch.set_float32_matmul_precision(before)
    for one, true in zip(found, exact, strict=True):
        if isinstance(one, Tensor):
            assert one.dtype in (torch.float32, torch.complex64)
            torch.testing.assert_close(one.to(true.dtype), true, rtol=1e-6, atol=1e-6)


def test_forward_passes_in_threads_leave_the_setting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a setting of the whole process was changed")

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        monkeypatch.setattr(torch, "set_float32_matmul_precision", refuse)
        with ThreadPoolExecutor(4) as pool:
            unit = units.build("exprnn", 1, 4)
            outputs = list(pool.map(lambda _: unit(torch.ones(3, 2, 1))[0], range(8)))
        assert all(torch.equal(output, outputs[0]) for output in outputs)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        monkeypatch.undo()
        torch.set_float32_matmul_precision(before)


def test_networks_stacked_by_vmap_at_a_lower_setting() -> None:
    networks = [units.build("exprnn", 1, 4) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(networks)
    x = torch.rand(3, 5, 2, 1, generator=torch.Generator().manual_seed(0))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found = torch.func.vmap(lambda *state: torch.func.functional_call(networks[0], state[:2], state[2])[0])(
            parameters, buffers, x
        )
        alone = torch.stack([network(one)[0] for network, one in zip(networks, x, strict=True)])
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_exprnn_trains_in_a_cuda_graph_as_without() -> None:
    from lipschitz_rnn.experiments.presets import preset_settings
    from lipschitz_rnn.tasks import load

    # In float32 cuBLAS takes other kernels within a graph, and two epochs of Adam make 0.002 of their roundings.
    common = {"unit": "exprnn", "hidden_size": 24, "seeds": (0, 1, 2), "epochs": 2, "device": "cuda"}
    networks = []
    for graph in ("on", "off"):
        changes = {**common, "cuda_graph": graph, "learning_rate": 1e-3, "precision": "float64"}
        settings = preset_settings("digits", changes=changes)
        result = fit(settings, load("digits"), build=build_model)
        networks.append([value for model in result.models for value in model.state_dict().values()])
    for graphed, eager in zip(*networks, strict=True):
        torch.testing.assert_close(graphed, eager, rtol=0, atol=1e-12)


def test_every_orthogonal_unit_takes_the_option() -> None:
    for name in ORTHOGONAL:
        unit: nn.Module = units.build(name, 1, 6, relative_rate=0.5)
        assert unit.cell().relative_rate == 0.5  # type: ignore[operator]
