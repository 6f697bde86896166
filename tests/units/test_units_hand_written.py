"""Units on scans with hand-written gradients: all that PyTorch does with the gradients of its own operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

UNITS: dict[str, dict[str, Any]] = {
    "fastgrnn": {},
    "fastgrnn-lsq": {},
    "exprnn": {},
    "scornn": {},
    "urnn": {},
    "full-urnn": {},
    "lstm": {"fused": True},
    "lipschitz": {},
    "antisymmetric": {},
    "cornn": {},
    "lru": {},
}
hand_written = pytest.mark.parametrize("name", UNITS)


@hand_written
def test_batched_gradients(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    """As `torch.autograd.functional.jacobian(vectorize=True)` takes them."""
    unit, x = build_unit(name, 2, 4, **UNITS[name]), inputs(4, 2, 2).requires_grad_()
    output, tensors = unit(x)[0].flatten(), [x, *unit.parameters()]
    together = torch.autograd.grad(
        output, tensors, torch.eye(len(output)).to(output), is_grads_batched=True, retain_graph=True, allow_unused=True
    )
    each = [torch.autograd.grad(one, tensors, retain_graph=True, allow_unused=True) for one in output]
    for found, expected in zip(together, zip(*each, strict=True), strict=True):
        if found is not None:
            torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-12)


@hand_written
def test_hessians(name: str, build_unit: Callable, inputs: Callable[..., Tensor]) -> None:
    unit, x = build_unit(name, 2, 3, **UNITS[name]), inputs(3, 1, 2)

    def loss(x: Tensor) -> Tensor:
        return unit(x)[0].pow(3).sum()

    expected = torch.autograd.functional.hessian(loss, x)
    for outer in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(outer(torch.func.grad(loss))(x), expected, rtol=1e-9, atol=1e-11)
