"""Output and h_n are the caller's own: contiguous, no larger than they look, and open to in-place operations.

As those of ``nn.RNN`` on a CPU, in training and without gradients, whatever runs underneath.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipschitz_rnn import LipschitzRNN, lipschitz_scan, units

T, B, P, N = 5, 3, 2, 6
INTEGRATORS = ("euler", "midpoint", "heun", "rk4")
BACKENDS = ("cpu", "reference", "triton")
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True},
    "recompute": {"recompute_every": 2},
}


def layer(backend: str, **options: Any) -> LipschitzRNN:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
        if torch.cuda.is_available():
            return LipschitzRNN(P, N, backend=backend, device="cuda", **options)
        return LipschitzRNN(P, N, backend=backend, **options)
    return LipschitzRNN(P, N, backend=backend, dtype=torch.float64, **options)


def inputs(rnn: nn.Module, *shape: int) -> Tensor:
    weight = next(rnn.parameters())
    return torch.randn(*shape, P, generator=torch.Generator().manual_seed(0)).to(weight)


def own_memory(tensor: Tensor) -> bool:
    return tensor.detach().untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()


def require_own(output: Tensor, h_n: Tensor) -> None:
    for tensor in (output, h_n):
        assert tensor.is_contiguous()
        assert own_memory(tensor)
        assert tensor.view(-1, tensor.shape[-1]).shape[-1] == tensor.shape[-1]
    assert output.untyped_storage().data_ptr() != h_n.untyped_storage().data_ptr()


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_contiguous_and_no_larger_than_it_looks(
    backend: str, integrator: str, batch_first: bool, training: bool
) -> None:
    rnn = layer(backend, integrator=integrator, batch_first=batch_first)
    with torch.set_grad_enabled(training):
        require_own(*rnn(inputs(rnn, B, T)))


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_form_of_a_layer(backend: str, form: str, training: bool) -> None:
    for batch_first in (False, True):
        rnn = layer(backend, batch_first=batch_first, **FORMS[form])
        with torch.set_grad_enabled(training):
            require_own(*rnn(inputs(rnn, B, T)))
            require_own(*rnn(inputs(rnn, T)))
            lengths = torch.tensor([1, 3, 2, 2, 1][: B if batch_first else T])
            require_own(*rnn(inputs(rnn, B, T), lengths=lengths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    rnn = LipschitzRNN(P, N, dtype=dtype)
    require_own(*rnn(inputs(rnn, T, B)))
    with torch.autocast("cpu", torch.bfloat16):
        require_own(*rnn(inputs(rnn, T, B)))


def scaled(output: Tensor) -> Tensor:
    return output * 2


def scaled_(output: Tensor) -> Tensor:
    return output.mul_(2)


def first_zero(output: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(output[:1]), output[1:]))


def first_zero_(output: Tensor) -> Tensor:
    output[0] = 0
    return output


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "mul_": (scaled, scaled_),
    "item": (first_zero, first_zero_),
    "relu_": (torch.relu, torch.relu_),
    "view": (lambda output: output.view(-1, N).sin(), lambda output: output.view(-1, N).sin_()),
    "zero_": (lambda output: output * 0, torch.Tensor.zero_),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("integrator", ["euler", "rk4"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_operations_give_the_right_gradients(backend: str, integrator: str, change: str) -> None:
    """Of output and h_n both, against the same operations that make new tensors."""
    rnn = layer(backend, integrator=integrator)
    x = inputs(rnn, T, B).requires_grad_()
    found = []
    for operation in CHANGES[change]:
        output, h_n = rnn(x)
        loss = operation(output).square().sum() + operation(h_n).square().sum()
        wanted = (x, *rnn.parameters())
        found.append(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_change_of_the_output_does_not_reach_h_n() -> None:
    for name in ("lipschitz", "exprnn", "rnn"):
        unit = units.build(name, P, N)
        output, h_n = unit(inputs(unit, T, B))
        before = h_n.detach().clone()
        output.zero_()
        assert torch.equal(h_n, before)


def test_nn_rnn_allows_the_same() -> None:
    """What this is measured by."""
    rnn = nn.RNN(P, N)
    output, h_n = rnn(inputs(rnn, T, B))
    output.mul_(2)
    output[0] = 0
    h_n.relu_()
    (output.sum() + h_n.sum()).backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scan_itself(backend: str) -> None:
    """One network and several at once."""
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    for networks in ((), (2,)):
        for wanted in (True, False):
            u, A, h0 = (torch.randn(*networks, *shape, device=device) for shape in ((T, B, N), (N, N), (B, N)))
            states, last = lipschitz_scan(u, A.requires_grad_(wanted), A, h0, backend=backend)
            assert states is not None
            require_own(states, last)
            states.mul_(2)
            last.mul_(2)
            if wanted:
                (states.sum() + last.sum()).backward()


def test_compiled_and_stacked_networks_too() -> None:
    rnn = LipschitzRNN(P, N)
    x = inputs(rnn, T, B)
    require_own(*torch.compile(rnn, backend="aot_eager")(x))
    parameters, buffers = torch.func.stack_module_state([LipschitzRNN(P, N) for _ in range(2)])

    def run(*state: Any) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(rnn, state, (x,))

    output, h_n = torch.func.vmap(run)(parameters, buffers)
    require_own(output, h_n)
    output.mul_(2)
    (output.sum() + h_n.sum()).backward()


@pytest.mark.parametrize("name", ["exprnn", "lstm"])
def test_units_with_scans_of_their_own(name: str) -> None:
    options = {"fused": True} if name == "lstm" else {}
    unit = units.build(name, P, N, **options)
    found = []
    for operation in (scaled, scaled_):
        output, h_n = unit(inputs(unit, T, B))
        require_own(output, h_n if isinstance(h_n, Tensor) else h_n[0])
        found.append(torch.autograd.grad(operation(output).square().sum(), list(unit.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
