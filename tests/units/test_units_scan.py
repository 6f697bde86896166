"""Units on the fused scan: the same numbers from every backend, and all that a plain loop of operations could do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from lipschitz_rnn import units
from lipschitz_rnn.ops.lipschitz import dispatch

scanned = pytest.mark.parametrize("name", ["antisymmetric", "nais", "neural-ode", "residual"])


def gradients(unit: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    output, h_n = unit(x)
    return torch.autograd.grad(output.sin().sum() + h_n.square().sum(), [x, *unit.parameters()])


@scanned
@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 7, 1, 5])], ids=["full", "lengths"])
def test_backends_agree(
    name: str, lengths: Tensor | None, build_unit: Callable, inputs: Callable[..., Tensor], nan_memory: None
) -> None:
    unit, x = build_unit(name, 3, 8, step_size=0.4), inputs(7, 4, 3).requires_grad_()
    found = {}
    for backend in ("reference", "cpu"):
        unit.cell().backend = backend
        output, _ = unit(x, lengths=lengths)
        found[backend] = (output, *torch.autograd.grad(output.sin().sum(), [x, *unit.parameters()]))
    for fused, reference in zip(found["cpu"], found["reference"], strict=True):
        torch.testing.assert_close(fused, reference, rtol=1e-10, atol=1e-12)


@scanned
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_backend_serves_it(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` takes the compiled loop on the CPU for training; nothing in a unit's step forbids it."""
    chosen, choose = [], dispatch.choose
    monkeypatch.setattr(dispatch, "choose", lambda *given: chosen.append(choose(*given)[0]) or choose(*given))
    unit = units.build(name, 3, 8, dtype=dtype)
    gradients(unit, torch.zeros(5, 2, 3, dtype=dtype, requires_grad=True))
    assert chosen == ["cpu"]


@scanned
def test_second_derivatives(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """A Hessian needs the derivative of the derivative, in the parameters and across to the input."""
    unit, x = build_unit(name, 2, 3, step_size=0.4), inputs(3, 2, 2).requires_grad_()
    names = [name for name, _ in unit.named_parameters()]

    def last(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(unit, dict(zip(names, values, strict=True)), (x,))[1]

    values = [parameter.detach().clone().requires_grad_() for parameter in unit.parameters()]
    assert torch.autograd.gradgradcheck(last, (x, *values), eps=1e-6, atol=1e-6, rtol=1e-4)


@scanned
def test_second_derivatives_of_an_ensemble(name: str, inputs: Callable[..., Tensor]) -> None:
    """Hessian-vector products of S networks at once are those of each alone."""
    members = [units.build(name, 2, 4, step_size=0.4, dtype=torch.float64) for _ in range(3)]
    parameters, buffers = stack_module_state(members)
    x = inputs(3, 5, 4, 2)

    def loss(values: dict[str, Tensor], constants: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(members[0], (values, constants), (x,))[1].square().sum()

    def products(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(value, leaves, create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), leaves)

    together = products(vmap(loss)(parameters, buffers, x).sum(), list(parameters.values()))
    for s, member in enumerate(members):
        alone = products(member(x[s])[1].square().sum(), list(member.parameters()))
        for got, want in zip(together, alone, strict=True):
            torch.testing.assert_close(got[s], want, rtol=1e-9, atol=1e-10)
