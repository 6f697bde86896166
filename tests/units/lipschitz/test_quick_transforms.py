"""The kernels under what PyTorch does around a backward pass: hooks on saved tensors, batched cotangents, no samples.

With one layer a call takes the short way, with two the long one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import lipschitz_rnn as lr

pytestmark = pytest.mark.usefixtures("nan_memory")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def kernels() -> None:
    pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")


def build(features: int = 1, **options: Any) -> lr.LipschitzRNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        rnn = lr.LipschitzRNN(features, 5, backend="triton", step_size=0.1, init_scale=2.0, **options)
    return rnn.to(DEVICE)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(DEVICE)


def dense(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def turned(tensor: Tensor) -> Tensor:
    """The same numbers, with the last two axes the other way round in memory."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("features", [1, 2])
@pytest.mark.parametrize("pack", [dense, turned])
def test_hooks_may_lay_out_saved_tensors_anew(pack: Any, features: int, layers: int) -> None:
    rnn = build(features, num_layers=layers)
    x, h0 = normal(12, 9, features)[::3, ::3], normal(layers, 3, 5)
    expected = torch.autograd.grad(rnn(x, h0)[0].sum(), list(rnn.parameters()))
    with saved_tensors_hooks(pack, lambda packed: packed):
        output, _ = rnn(x, h0)
    found = torch.autograd.grad(output.sum(), list(rnn.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("features", "layers"),
    [(1, 1), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((2, 1), (1, 2), (2, 2)))],
)
def test_jacobians_from_batches_of_cotangents(features: int, layers: int) -> None:
    rnn, x = build(features, num_layers=layers), normal(3, 2, features)

    def states(x: Tensor) -> Tensor:
        output: Tensor = rnn(x)[0]
        return output

    expected = torch.autograd.functional.jacobian(states, x)
    torch.testing.assert_close(torch.func.jacrev(states)(x), expected)
    torch.testing.assert_close(torch.autograd.functional.jacobian(states, x, vectorize=True), expected)


@pytest.mark.parametrize("layers", [1, 2])
def test_second_derivatives_from_batches_of_cotangents(layers: int) -> None:
    rnn, x = build(num_layers=layers), normal(2, 1, 1)

    def loss(x: Tensor) -> Tensor:
        total: Tensor = rnn(x)[0].pow(3).sum()
        return total

    expected = torch.autograd.functional.hessian(loss, x)
    torch.testing.assert_close(torch.autograd.functional.hessian(loss, x, vectorize=True), expected)


@pytest.mark.parametrize("features", [1, 2])
def test_a_batch_of_no_samples_has_gradients_of_zero(features: int) -> None:
    rnn = build(features)
    output, h_n = rnn(torch.zeros(4, 0, features, device=DEVICE))
    assert (output.shape, h_n.shape) == ((4, 0, 5), (1, 0, 5))
    for gradient in torch.autograd.grad(output.sum() + h_n.sum(), list(rnn.parameters())):
        assert not gradient.any()
