"""The short way through a layer gives what the long way gives, and is taken by plain calls only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import lipschitz_rnn as lr
from lipschitz_rnn.ops.lipschitz.cores import machine
from lipschitz_rnn.units.lipschitz import layer as layer_module

pytestmark = pytest.mark.usefixtures("nan_memory")
T, B = 3, 2


class Kernels:
    """Those that the layers of a test ask for, and where they run."""

    backend = "triton"
    device = torch.device("cpu")


@pytest.fixture(autouse=True, params=["cpu", "triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    backend: str = request.param
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    elif (reason := machine.obstacle()) is not None:
        pytest.skip(reason)
    on_gpu = backend == "triton" and torch.cuda.is_available()
    monkeypatch.setattr(Kernels, "backend", backend)
    monkeypatch.setattr(Kernels, "device", torch.device("cuda" if on_gpu else "cpu"))
    return backend


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which way each call took, and how to send all calls the long way."""

    class Ways:
        taken: list[bool] = []  # noqa: RUF012
        long = False

        def __call__(self, *given: Any) -> Any:
            found = None if self.long else quick_call(*given)
            self.taken.append(found is not None)
            return found

    quick_call, ways = layer_module.quick_call, Ways()
    ways.taken = []
    monkeypatch.setattr(layer_module, "quick_call", ways)
    return ways


def build(features: int = 1, units: int = 5, dtype: torch.dtype = torch.float32, **options: Any) -> lr.LipschitzRNN:
    """A layer in which every term shows."""
    usual: dict[str, Any] = {"beta": (0.7, 0.8), "gamma": (0.01, 0.02), "step_size": 0.1, "init_scale": 2.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        rnn = lr.LipschitzRNN(features, units, backend=Kernels.backend, dtype=dtype, **usual | options)
    return rnn.to(Kernels.device)


def inputs(rnn: lr.LipschitzRNN, dtype: torch.dtype = torch.float32, start: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (B, T, rnn.input_size) if rnn.batch_first else (T, B, rnn.input_size)
    shapes = [shape, *([(1, B, rnn.hidden_size)] if start else [])]
    return [torch.randn(s, generator=generator).to(Kernels.device, dtype).requires_grad_() for s in shapes]


def objective(output: Tensor | None, h_n: Tensor) -> Tensor:
    """Every entry has a weight of its own."""
    flat = torch.cat([part.float().reshape(-1) for part in (output, h_n) if part is not None])
    return flat @ torch.linspace(-1, 1, len(flat), device=flat.device)


def relative(found: Tensor, exact: Tensor) -> float:
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm() / exact.norm().clamp_min(1e-30))


ROUNDING = {torch.float64: 4e-15, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
SERVED = {"cpu": (torch.float32, torch.float64), "triton": (torch.float32, torch.bfloat16, torch.float16)}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"units": 17, "integrator": "rk4", "alpha": 0.9}, {"start": True}),
    ({"units": 32, "dtype": torch.float64, "integrator": "heun", "alpha": -0.5, "bias": False}, {"start": True}),
    ({"features": 3, "integrator": "midpoint", "batch_first": True}, {"start": True}),
    ({"dtype": torch.bfloat16, "bias": False, "nonlinearity": "relu"}, {"need_output": False}),
    ({"dtype": torch.float16, "features": 2, "batch_first": True, "gamma": 0.0, "nonlinearity": "sigmoid"}, {}),
]


@pytest.mark.parametrize(("options", "call"), CASES)
def test_values_and_gradients(options: dict[str, Any], call: dict[str, Any], ways: Any, kernels: str) -> None:
    dtype = options.get("dtype", torch.float32)
    if kernels == "triton" and dtype == torch.float64:
        pytest.skip("the Triton kernels have no float64")
    rnn, served = build(**options), dtype in SERVED[kernels]
    given = inputs(rnn, dtype, call.get("start", False))
    need_output = call.get("need_output", True)
    found: list[list[Tensor | None]] = []
    for ways.long in (False, True):
        output, h_n = rnn(*given, need_output=need_output)
        gradients = torch.autograd.grad(objective(output, h_n), [*given, *rnn.parameters()])
        found.append([output, h_n, *gradients])
    ways.long = False
    with torch.no_grad():
        found.append([*rnn(*given, need_output=need_output), *gradients])
    assert ways.taken == [served, False, served]
    for short, long, plain in zip(*found, strict=True):
        assert (short is None) == (long is None)
        if short is not None and long is not None and plain is not None:
            assert (short.shape, short.dtype, short.stride()) == (long.shape, long.dtype, long.stride())
            assert relative(short, long) < ROUNDING[dtype]
            assert relative(plain, long) < ROUNDING[dtype]


@pytest.mark.parametrize("features", [1, 3])
def test_autocast(features: int, ways: Any, kernels: str) -> None:
    rnn = build(features, 8)
    given = inputs(rnn, start=True)
    found = []
    for ways.long in (False, True):
        with torch.autocast(Kernels.device.type, torch.bfloat16):
            output, h_n = rnn(*given)
        assert output.dtype == h_n.dtype == torch.bfloat16
        found.append([output, h_n, *torch.autograd.grad(objective(output, h_n), [*given, *rnn.parameters()])])
    assert ways.taken == [kernels == "triton", False]  # a CPU computes such products in float32
    for short, long in zip(*found, strict=True):
        assert short.dtype == long.dtype
        assert relative(short, long) < 2e-2


def test_second_derivatives(ways: Any) -> None:
    rnn = build(2)
    given = inputs(rnn, start=True)
    found = []
    for ways.long in (False, True):
        leaves = [*given, *rnn.parameters()]
        gradients = torch.autograd.grad(objective(*rnn(*given)), leaves, create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        found.append(torch.autograd.grad(total, leaves))
    assert ways.taken == [True, False]
    for short, long in zip(*found, strict=True):
        assert relative(short, long) < 1e-5


def hook_on_matrices(rnn: lr.LipschitzRNN) -> None:
    rnn.cell().hidden.register_forward_hook(lambda module, args, result: (result[0], 2 * result[1]))


class Doubling(nn.Module):
    def forward(self, M: Tensor) -> Tensor:
        return 2 * M


def parametrized_matrix(rnn: lr.LipschitzRNN) -> None:
    parametrize.register_parametrization(rnn.cell().hidden, "M_W", Doubling())


def own_matrices(rnn: lr.LipschitzRNN) -> None:
    A, W = (matrix.detach() for matrix in rnn.hidden_matrices())
    rnn.cell().hidden_matrices = lambda: (A, 2 * W)  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [hook_on_matrices, parametrized_matrix, own_matrices])
def test_what_changes_the_matrices_is_not_passed_by(change: Callable[[lr.LipschitzRNN], None], ways: Any) -> None:
    rnn = build()
    (x,) = inputs(rnn)
    before, _ = rnn(x)
    change(rnn)
    after, _ = rnn(x)
    assert ways.taken == [True, False]
    assert relative(after.detach(), before.detach()) > 1e-4


class Doubled(lr.LipschitzRNN):
    def hidden_matrices(self, layer: int = 0, direction: int = 0) -> tuple[Tensor, Tensor]:
        A, W = super().hidden_matrices(layer, direction)
        return A, 2 * W


@pytest.mark.parametrize(
    "options", [{"num_layers": 2}, {"bidirectional": True}, {"noise": 0.1}, {"max_step": 0.05}, {"recompute_every": 2}]
)
def test_other_layers_take_the_long_way(options: dict[str, Any], ways: Any) -> None:
    rnn = build(**options)
    rnn(inputs(rnn)[0])
    assert not any(ways.taken)


def test_other_calls_take_the_long_way(ways: Any) -> None:
    rnn = build()
    (x,) = inputs(rnn)
    rnn(x[:, 0])
    rnn(x, lengths=torch.tensor([1, 3]))
    rnn(x, timespans=torch.full((T, B), 0.1, device=Kernels.device))
    subclass = Doubled(1, 5, backend=Kernels.backend).to(Kernels.device)
    subclass(x)
    torch.func.functional_call(rnn, {}, (x,))
    assert ways.taken == [False, True]
    torch.func.vmap(rnn)(torch.stack([x, x]).detach())
    assert ways.taken == [False, True, False]
    for name in ("run", "run_layer"):  # replaced on the object
        setattr(rnn, name, getattr(rnn, name))
        rnn(x)
        delattr(rnn, name)
    assert ways.taken == [False, True, False, False, False]


def test_parameters_are_read_at_every_call(ways: Any) -> None:
    """Nothing is kept of them: in place, by assignment, by functional_call, by another thread of updates."""
    rnn, other = build(), build()
    (x,) = inputs(rnn)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    wanted, _ = other(x)
    values = {name: value.detach().clone() for name, value in other.named_parameters()}
    swapped, _ = torch.func.functional_call(rnn, values, (x,))
    first, _ = rnn(x)
    for name, value in values.items():
        rnn.get_parameter(name).data = value.clone()  # leaves no trace in the version counter
    second, _ = rnn(x)
    assert all(ways.taken)
    assert torch.equal(swapped, wanted)
    assert torch.equal(second, wanted)
    assert relative(first.detach(), wanted.detach()) > 1e-3


def test_a_parameter_changed_before_the_backward_pass_is_noticed(ways: Any) -> None:
    rnn = build()
    _, h_n = rnn(*inputs(rnn))
    with torch.no_grad():
        rnn.cell().hidden.M_A.add_(1.0)  # type: ignore[union-attr, operator]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h_n.sum().backward()


def test_results_may_be_changed_in_place(ways: Any) -> None:
    rnn = build()
    given = inputs(rnn)
    wanted = torch.autograd.grad(objective(*rnn(*given)), given)
    output, h_n = rnn(*given)
    loss = objective(output, h_n)
    output.detach().zero_()
    h_n.detach().zero_()
    found = torch.autograd.grad(loss, given)
    assert ways.taken == [True, True]
    assert torch.equal(found[0], wanted[0])


def test_wrong_shapes_reach_the_checks(ways: Any) -> None:
    rnn = build()
    (x,) = inputs(rnn)
    for wrong, hx in (
        (x.double(), None),
        (torch.zeros(T, B, 2, device=Kernels.device), None),
        (x, torch.zeros(1, B, 4)),
    ):
        with pytest.raises((ValueError, TypeError)):
            rnn(wrong, hx)
    assert not any(ways.taken)


def test_gradients_of_some_parameters_only(ways: Any) -> None:
    rnn: nn.Module = build(2)
    given = inputs(build(2))
    gradients = torch.autograd.grad(objective(*rnn(*given)), list(rnn.parameters()))
    full = dict(zip(dict(rnn.named_parameters()), gradients, strict=True))
    for name, parameter in rnn.named_parameters():
        rnn.requires_grad_(False)
        parameter.requires_grad_()
        (found,) = torch.autograd.grad(objective(*rnn(given[0].detach())), [parameter])
        assert relative(found, full[name]) < 2e-6
    rnn.requires_grad_(False)
    output, _ = rnn(given[0].detach())
    assert not output.requires_grad
    assert all(ways.taken)
