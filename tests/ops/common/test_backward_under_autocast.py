"""``backward()`` inside an autocast block gives the gradients that it gives outside, to the bit: the same code runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from lipschitz_rnn import LipschitzRNN, lipschitz_scan
from lipschitz_rnn.ops.fastgrnn import fastgrnn_scan
from lipschitz_rnn.ops.lstm import lstm_scan
from lipschitz_rnn.ops.modrelu import modrelu_scan

T, B, N = 4, 3, 8
INTEGRATORS = ("euler", "midpoint", "heun", "rk4")

Loss = Callable[[list[Tensor]], Tensor]


def device_of(backend: str) -> str:
    if backend != "triton":
        return "cpu"
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    return "cuda" if torch.cuda.is_available() else "cpu"


def autocast(device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, torch.bfloat16)


def leaves(device: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=draw) / 2).to(device).requires_grad_() for shape in shapes]


def same_inside(given: list[Tensor], loss: Loss) -> None:
    """The forward pass outside of autocast both times, the backward pass once inside."""
    device = given[0].device.type
    outside, inside = (_gradients(given, loss, block) for block in (nullcontext(), autocast(device)))
    assert all(torch.equal(one, other) for one, other in zip(outside, inside, strict=True))
    assert any(gradient.abs().max() > 0 for gradient in outside)


def _gradients(given: list[Tensor], loss: Loss, block: AbstractContextManager[object]) -> tuple[Tensor, ...]:
    value = loss(given)
    with block:
        return torch.autograd.grad(value, given)


def scan_loss(backend: str = "auto", integrator: str = "euler") -> Loss:
    def loss(given: list[Tensor]) -> Tensor:
        x, A, W, h0, U, b = given
        states, last = lipschitz_scan(x, A, W, h0, 0.1, integrator=integrator, backend=backend, input_weight=U, bias=b)
        assert states is not None
        return states.sin().sum() + last.square().sum()

    return loss


SCAN = ((T, B, 2), (N, N), (N, N), (B, N), (N, 2), (N,))


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_the_scan(backend: str, integrator: str) -> None:
    same_inside(leaves(device_of(backend), *SCAN), scan_loss(backend, integrator))


def test_second_derivatives() -> None:
    def penalty(given: list[Tensor]) -> Tensor:
        (gradient,) = torch.autograd.grad(scan_loss()(given), given[2], create_graph=True)
        return gradient.square().sum()

    same_inside(leaves("cpu", *SCAN), penalty)


def test_networks_stacked_by_vmap() -> None:
    shapes = tuple((2, *shape) for shape in SCAN)
    same_inside(leaves("cpu", *shapes), lambda given: torch.func.vmap(lambda *one: scan_loss()([*one]))(*given).sum())


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled(fresh_compiler: None) -> None:
    same_inside(leaves("cpu", *SCAN), torch.compile(scan_loss(), backend="aot_eager"))


@pytest.mark.parametrize("recompute_every", [None, 2])
def test_the_layer(recompute_every: int | None) -> None:
    rnn = LipschitzRNN(2, N, num_layers=2, bidirectional=True, recompute_every=recompute_every)
    (x,) = leaves("cpu", (T, B, 2))
    same_inside([x, *rnn.parameters()], lambda given: rnn(given[0])[0].square().sum())


@pytest.mark.parametrize("features", [1, 3])
def test_the_lstm(features: int) -> None:
    shapes = ((T, B, features), (4 * N, features), (4 * N, N), (4 * N,), (B, N), (B, N))
    same_inside(leaves("cpu", *shapes), lambda given: sum(part.square().sum() for part in lstm_scan(*given)))


@pytest.mark.parametrize("units", [N, N // 2], ids=["real", "in pairs"])
def test_modrelu(units: int) -> None:
    shapes = ((T, B, N), (N, units), (units,), (B, N))
    same_inside(leaves("cpu", *shapes), lambda given: modrelu_scan(*given).square().sum())


def test_fastgrnn() -> None:
    shapes = ((T, B, N), (N, N), (N,), (N,), (), (), (B, N))
    same_inside(leaves("cpu", *shapes), lambda given: fastgrnn_scan(*given).square().sum())


def test_after_a_forward_pass_in_autocast_too() -> None:
    rnn = LipschitzRNN(2, N)
    (x,) = leaves("cpu", (T, B, 2))
    found = []
    for block in (nullcontext(), autocast("cpu")):
        with autocast("cpu"):
            loss = rnn(x)[0].float().square().sum()
        with block:
            found.append(torch.autograd.grad(loss, list(rnn.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
